"""Which operators do what: the sets behind `effects`, with an entry for every operator of the standard domains."""

from __future__ import annotations

from typing import Final


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


UNARY: Final = _names(
    """Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish
    Identity IsInf IsNaN LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh
    Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu"""
)
"""Each element of the result is a function of that element of the only operand; nothing of it can fail."""

BINARY: Final = _names(
    """Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Mod Mul Or
    PRelu Pow Sub Xor"""
)
VARIADIC: Final = frozenset(("Max", "Mean", "Min", "Sum"))
BROADCASTING: Final = BINARY | VARIADIC | {"Where"}
"""Elementwise over operands that broadcast against each other."""

ELEMENTWISE_IN_FIRST: Final = frozenset(("BitCast", "Cast", "CastLike", "Clip"))
"""Elementwise in operand 0; what else they read is a scalar or only a type."""

COMMUTATIVE: Final = frozenset(("Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal", "Mul", "Or", "Xor"))
"""Two operands may change places for every element type."""

RANDOM: Final = _names("""Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike""")

CHECKED: Final = _names(
    """BitCast Cast CastLike Clip Concat ConstantOfShape Dropout Expand Flatten Gather MatMul Pad Reshape Slice Softmax
    LogSoftmax Hardmax Split Squeeze Tile Transpose Unsqueeze"""
)
"""Pure; whether they can fail is looked up from shapes and constants."""

ALWAYS_TOTAL: Final = _names(
    """Constant Optional OptionalHasElement SequenceConstruct SequenceEmpty SequenceLength Shape Size"""
)

MAY_FAIL: Final = _names(
    """AffineGrid ArgMax ArgMin Attention AveragePool BatchNormalization BlackmanWindow CausalConvWithState
    CenterCropPad Col2Im Compress ConcatFromSequence Conv ConvInteger ConvTranspose CumProd CumSum DFT
    DeformConv DepthToSpace DequantizeLinear Det DynamicQuantizeLinear Einsum EyeLike GRU GatherElements
    GatherND Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool GridSample GroupNormalization HammingWindow
    HannWindow ImageDecoder InstanceNormalization LRN LSTM LayerNormalization LinearAttention LpNormalization
    LpPool MatMulInteger MaxPool MaxRoiPool MaxUnpool MeanVarianceNormalization MelWeightMatrix
    NegativeLogLikelihoodLoss NonMaxSuppression NonZero OneHot OptionalGetElement QLinearConv QLinearMatMul
    QuantizeLinear RMSNormalization RNN Range ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax
    ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare RegexFullMatch Resize ReverseSequence RoiAlign
    RotaryEmbedding STFT Scatter ScatterElements ScatterND SequenceAt SequenceErase SequenceInsert
    SoftmaxCrossEntropyLoss SpaceToDepth SplitToSequence StringConcat StringNormalizer StringSplit SwiGLU
    TensorScatter TfIdfVectorizer TopK Trilu Unique Upsample"""
)

WITH_BODIES: Final = frozenset(("If", "Loop", "Scan", "SequenceMap"))
"""What their bodies do, and what they add themselves."""

STANDARD: Final = UNARY | BROADCASTING | RANDOM | CHECKED | ALWAYS_TOTAL | MAY_FAIL | WITH_BODIES

PREVIEW: Final = frozenset(("Adagrad", "Adam", "Momentum"))
"""Of `ai.onnx.preview.training`: functions of their operands. `Gradient` is none: it names tensors of its graph."""

CONTRIB_TOTAL: Final = frozenset(("Gelu", "QuickGelu"))
"""Of `com.microsoft`: elementwise with one operand."""

CONTRIB_DROPOUT: Final = {"BiasDropout": 4, "BitmaskBiasDropout": 4, "BitmaskDropout": 2}
"""Random in training; the position of the operand that says so."""

CONTRIB_RANDOM: Final = frozenset(("Sampling",))

CONTRIB_MAY_FAIL: Final = _names(
    """Attention BeamSearch BiasAdd BiasGelu BiasSoftmax BiasSplitGelu CDist ComplexMul ComplexMulConj
    ConvTransposeWithDynamicPads CropAndResize DecoderAttention DecoderMaskedMultiHeadAttention
    DecoderMaskedSelfAttention DequantizeBFP DequantizeLinear DequantizeWithOrder DynamicQuantizeLSTM
    DynamicQuantizeMatMul EmbedLayerNormalization ExpandDims FastGelu FusedConv FusedGemm FusedMatMul
    FusedMatMulActivation GatedRelativePositionBias GatherBlockQuantized GatherND GemmFastGelu GemmFloat8
    GemmaRotaryEmbedding GreedySearch GridSample GroupNorm GroupQueryAttention Inverse Irfft IsAllFinite
    LongformerAttention MatMulBnb4 MatMulFpQ4 MatMulInteger16 MatMulIntegerToFloat MatMulNBits MaxpoolWithMask
    MoE MulInteger MultiHeadAttention MurmurHash3 NGramRepeatBlock NhwcConv NhwcFusedConv NhwcMaxPool
    PackedAttention PackedMultiHeadAttention Pad QAttention QEmbedLayerNormalization QGemm QLinearAdd
    QLinearAveragePool QLinearConcat QLinearConv QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul
    QLinearReduceMean QLinearSigmoid QLinearSoftmax QLinearWhere QMoE QOrderedAttention QOrderedGelu
    QOrderedLayerNormalization QOrderedLongformerAttention QOrderedMatMul QuantizeBFP QuantizeLinear
    QuantizeWithOrder Range ReduceSumInteger RelativePositionBias RemovePadding RestorePadding Rfft
    RotaryEmbedding SkipGroupNorm SkipLayerNormalization SkipSimplifiedLayerNormalization SparseAttention
    SparseToDenseMatMul Tokenizer TorchEmbedding TransposeMatMul Trilu UnfoldTensor Unique WhisperBeamSearch
    WordConvEmbedding"""
)
"""Of `com.microsoft`: functions of their operands. Not listed, so unknown: what writes a cache in place (paged
attention), what runs a foreign engine (`EPContext`, `Snpe`), and what is newer than this list."""

SIMPLIFIED_LAYER_NORMALIZATION: Final = "SimplifiedLayerNormalization"
"""ONNX Runtime registers this one in the standard domain."""
