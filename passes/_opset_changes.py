"""Every change of every standard operator since opset 8, and how a node gets over it.

A version that is not in the table is one this page has not been told of: the operator is not converted over it.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphopt import Node, schema
from passes import _opset_handlers as on
from passes import _opset_pictures as pictures
from passes._opset_spelling import Refusal, Spelling


@dataclass(frozen=True, slots=True)
class Change:
    """How to get over one change; None where moving parameters is all there is to it."""

    up: on.Handler | None = None
    down: on.Handler | None = None


SAME = Change()
"""The meaning is the same: types were added, a parameter moved, or one came whose absence says what was true before."""

_SAME = """
    Abs 13; Acos 22; Acosh 22; Add 13 14; ArgMax 12 13; ArgMin 12 13; Asin 22; Asinh 22; Atan 22; Atanh 22;
    Attention 24 25; AveragePool 10 11; BatchNormalization 9 15; Bernoulli 22; BitShift 28; Cast 9 13 19 21 23 25 28;
    CastLike 19 21 23 25; Ceil 13; Celu 28; Clip 12 13; Compress 28; Concat 13; Constant 9 11 12 13 19 21 23 24 25;
    ConstantOfShape 20 21 23 24 25; Conv 11 22; ConvTranspose 22; Cos 22; Cosh 22; CumSum 14; DeformConv 22;
    DepthToSpace 11 13 28; DequantizeLinear 19 21 24 25 28; Det 22; Div 13 14; Dropout 13 22; Einsum 28; Elu 22;
    Equal 11 13 19; Erf 13; Exp 13; Expand 13; EyeLike 22; Flatten 9 13 21 23 24 25; Floor 13; GRU 14 22; Gather 13;
    GatherElements 13; GatherND 12 13; Gemm 9 13; GlobalAveragePool 22; GlobalLpPool 22; GlobalMaxPool 22;
    Greater 9 13; GreaterOrEqual 16; GridSample 22; HardSigmoid 22; HardSwish 22; Identity 13 14 16 19 21 23 24 25;
    If 11 13 16 19 21 23 24 25; InstanceNormalization 22; IsInf 20; IsNaN 13 20; LRN 13; LSTM 14 22; LeakyRelu 16;
    Less 9 13; LessOrEqual 16; Log 13; Loop 11 13 16 19 21 23 24 25; LpNormalization 22; LpPool 11 22; MatMul 9 13;
    Max 12 13; MaxPool 8 11 12; MaxRoiPool 22; MaxUnpool 11 22; Mean 13; MeanVarianceNormalization 13; Min 12 13;
    Mish 22; Mod 13; Mul 13 14; Multinomial 22; Neg 13; NegativeLogLikelihoodLoss 13 22; NonMaxSuppression 11;
    NonZero 13; OneHot 28; Optional 28; OptionalGetElement 18 28; OptionalHasElement 18 28; PRelu 9 16;
    Pad 11 13 21 23 24 25; Pow 13 15; QLinearMatMul 21; QuantizeLinear 19 23 25 28; RNN 14 22; RandomNormal 22;
    RandomNormalLike 22; RandomUniform 22; RandomUniformLike 22; Range 27; Reciprocal 13; ReduceL1 13; ReduceL2 13;
    ReduceLogSum 13 28; ReduceLogSumExp 13 28; ReduceMax 12 13 20; ReduceMean 13; ReduceMin 12 13 20; ReduceProd 13;
    ReduceSumSquare 13; Relu 13 14; Reshape 13 19 21 23 24 25; ReverseSequence 28; RoiAlign 22; Round 22;
    Scan 16 19 21 23 24 25; ScatterElements 13 16; ScatterND 13 16; Selu 22; Shape 13 19 21 23 24 25; Sigmoid 13;
    Sign 13; Sin 22; Sinh 22; Size 13 19 21 23 24 25; Slice 13; SoftmaxCrossEntropyLoss 13; Softplus 22; Softsign 22;
    SpaceToDepth 13 28; Split 13; SplitToSequence 24; Sqrt 13; Squeeze 13 21 23 24 25; Sub 13 14; Sum 13; Tan 22;
    Tanh 13; ThresholdedRelu 22; Tile 13; TopK 11 24; Transpose 13 21 23 24 25; Unique 28; Unsqueeze 13 21 23 24 25;
    Upsample 9; Where 16
"""

_AXIS = Change(down=on.axis_from_front("axis"))
_AXES = Change(down=on.axis_from_front("axes"))
_SHAPES = Change(down=on.broadcast_8_down)
_POOL = Change(pictures.pool_22, pictures.pool_22)
_SOFTMAX = Change(on.softmax_13_up, on.softmax_13_down)
_REDUCE = Change(down=on.reduce_down)
_CAST = Change(pictures.cast_24, pictures.cast_24)
_UNDILATED = Change(down=on.neutral(dilations=1))
_SAME_PADDING = Change(pictures.same_padding_11, pictures.same_padding_11)
_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

_HANDLED: dict[tuple[str, int], Change] = {
    **{(name, 8): _SHAPES for name in ("Max", "Mean", "Min", "Sum")},
    **{(name, 11): _AXIS for name in ("ArgMax", "ArgMin", "Compress", "Concat", "Flatten", "Split")},
    **{(name, 11): _AXIS for name in ("Hardmax", "LogSoftmax", "Softmax")},
    **{(f"Reduce{name}", 11): _AXES for name in _REDUCTIONS},
    **{(f"Reduce{name}", 18): _REDUCE for name in _REDUCTIONS if name != "Sum"},
    **{(name, 13): _SOFTMAX for name in ("Hardmax", "LogSoftmax", "Softmax")},
    ("AveragePool", 19): _UNDILATED,
    ("AveragePool", 22): _POOL,
    ("BatchNormalization", 14): Change(up=on.batch_normalization_14_up),
    ("Cast", 24): _CAST,
    ("CastLike", 24): _CAST,
    ("Clip", 11): Change(on.clip_11, on.clip_11),
    ("ConvTranspose", 11): _SAME_PADDING,
    ("DequantizeLinear", 13): Change(down=pictures.per_tensor_13_down),
    ("DequantizeLinear", 23): Change(down=pictures.dequantize_23_down),
    ("DFT", 20): Change(pictures.dft_20_up, pictures.dft_20_down),
    ("Dropout", 10): Change(on.dropout_mask, on.dropout_mask),
    ("Dropout", 12): Change(on.dropout_mask, on.dropout_12_down),
    ("Gather", 11): Change(down=on.gather_11_down),
    ("Gemm", 11): Change(down=on.gemm_11_down),
    ("GridSample", 20): Change(pictures.grid_sample_20_up, pictures.grid_sample_20_down),
    ("GroupNormalization", 21): Change(
        on.group_normalization_21_up,
        on.refuses("its scale and bias are per channel, and per group before opset 21"),
    ),
    ("LpPool", 18): _UNDILATED,
    ("MaxPool", 10): _UNDILATED,
    ("MaxPool", 22): _POOL,
    ("Mod", 28): Change(down=pictures.mod_28_down),
    ("OneHot", 11): Change(on.one_hot_11, on.one_hot_11),
    ("Pad", 18): Change(down=on.pad_18_down),
    ("Pad", 19): Change(down=on.pad_19_down),
    ("Pow", 12): Change(down=on.pow_12_down),
    ("QuantizeLinear", 13): Change(down=pictures.per_tensor_13_down),
    ("QuantizeLinear", 21): Change(down=pictures.quantize_21_down),
    ("QuantizeLinear", 24): _CAST,
    ("ReduceSum", 13): _REDUCE,
    ("Reshape", 14): Change(down=on.reshape_14_down),
    ("Resize", 10): Change(down=on.renamed("Upsample")),
    ("Resize", 11): Change(pictures.resize_11_up, pictures.resize_11_down),
    ("Resize", 13): Change(pictures.resize_13_up, pictures.resize_13_down),
    ("Resize", 18): Change(down=pictures.resize_18_down),
    ("Resize", 19): Change(down=pictures.resize_19_down),
    ("RoiAlign", 16): Change(pictures.roi_align_16_up, pictures.roi_align_16_down),
    ("Scan", 9): Change(
        on.refuses("its batch axis is gone from opset 9"), on.refuses("it has no batch axis, as Scan of opset 8 has")
    ),
    ("Scan", 11): Change(down=on.scan_11_down),
    ("Scatter", 11): Change(up=on.renamed("ScatterElements")),
    ("ScatterElements", 11): Change(down=on.renamed("Scatter")),
    ("ScatterElements", 18): Change(down=on.one_mode_less(("none", "add", "mul"))),
    ("ScatterND", 18): Change(down=on.one_mode_less(("none", "add", "mul"))),
    ("Shape", 15): Change(down=on.shape_15_down),
    ("Slice", 10): Change(down=on.slice_10_down),
    ("Slice", 11): Change(down=on.slice_11_down),
    ("Split", 18): Change(on.split_18_up, on.split_18_down),
    ("Squeeze", 11): _AXES,
    ("TopK", 10): Change(up=on.topk_10_up),
    ("Unsqueeze", 11): Change(down=on.axis_from_front("axes", of_result=True)),
    ("Upsample", 10): Change(up=on.renamed("Resize")),
}


def _table() -> dict[tuple[str, int], Change]:
    table = dict(_HANDLED)
    for line in _SAME.split(";"):
        name, *numbers = line.split()
        table.update(((name, int(number)), SAME) for number in numbers)
    return table


CHANGES = _table()
"""(operator, opset in which it changed) to how a node gets over it."""


def converted(node: Node, source: int, target: int) -> Spelling | None:
    """How a node of the standard domain is written in another opset; None if as it is.

    Args:
        node: The node, in a graph of opset `source`.
        source: The opset it is written in.
        target: The opset to write it in.

    Raises:
        Refusal: it cannot be written there.
    """
    start = here = schema.operator("", node.op_type, source)
    if here is None:
        return None  # no operator ONNX knows: a function's name, or a vendor's
    s = Spelling(node, target)
    while here is not None:
        versions = schema.versions(s.op_type)
        if target >= source:
            ahead = [version for version in versions if here.since < version <= target]
            if not ahead:
                break
            there, at, is_up = ahead[0], ahead[0], True
        else:
            if here.since <= target:
                break
            behind = [version for version in versions if version < here.since]
            there, at, is_up = max(behind, default=0), here.since, False
        here = _step(s, here, there, at, is_up=is_up)
        if s.expansion is not None:
            return s
    if here is start:
        return None
    assert here is not None
    s.require_allowed(here)
    return s


def _step(s: Spelling, here: schema.Operator, there: int, at: int, *, is_up: bool) -> schema.Operator | None:
    """Over one change; gives the version in which the node is written then."""
    change = CHANGES.get((s.op_type, at), None if there else SAME)
    if change is None:
        raise Refusal(f"what opset {at} changed in {s.op_type} is not known to this version of graphopt")
    handler, op_type = change.up if is_up else change.down, s.op_type
    new = schema.operator("", op_type, there) if there else None

    def respell() -> None:
        if new is None:
            s.refuse(f"{op_type} does not exist before opset {at}")
        s.respell(here, new)

    if handler is None:
        respell()
    else:
        handler(s, respell)
    if s.op_type != op_type:
        return schema.operator("", s.op_type, at if is_up else at - 1)
    return new
