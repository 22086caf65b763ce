"""One small application of every operator that only some runtimes have: a provider that loads it has a kernel for it.

`T` stands for the element type asked about. The tables in `kernels/` are made by asking with these.
"""

from __future__ import annotations

from collections.abc import Mapping

MICROSOFT = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""

PROBES: Mapping[str, tuple[int, str]] = {
    "com.microsoft::Attention": (
        17,
        "(T[1,2,8] x, T[8,24] w, T[24] b) => (T[1,2,8] y) { y = com.microsoft.Attention<num_heads=2>(x, w, b) }",
    ),
    "com.microsoft::MultiHeadAttention": (
        17,
        "(T[1,2,16] q, T[1,2,16] k, T[1,2,16] v) => (T[1,2,16] y) "
        "{ y = com.microsoft.MultiHeadAttention<num_heads=2>(q, k, v) }",
    ),
    "com.microsoft::DecoderMaskedMultiHeadAttention": (
        17,
        "(T[1,1,16] q, T[1,1,16] k, T[1,1,16] v) => (T[1,1,16] y) "
        "{ y = com.microsoft.DecoderMaskedMultiHeadAttention<num_heads=2>(q, k, v) }",
    ),
    "com.microsoft::GroupQueryAttention": (
        17,
        "(T[1,2,32] q, T[1,2,16] k, T[1,2,16] v, T[1,1,4,16] pk, T[1,1,4,16] pv, int32[1] s, int32 t) "
        "=> (T[1,2,32] y, T[1,1,4,16] rk, T[1,1,4,16] rv) "
        "{ y, rk, rv = com.microsoft.GroupQueryAttention<num_heads=2, kv_num_heads=1>(q, k, v, pk, pv, s, t) }",
    ),
    "com.microsoft::PackedAttention": (
        17,
        "(T[2,8] x, T[8,24] w, T[24] b, int32[1,2] o, int32[2] c) => (T[2,8] y) "
        "{ y = com.microsoft.PackedAttention<num_heads=2>(x, w, b, o, c) }",
    ),
    "com.microsoft::RotaryEmbedding": (
        17,
        "(T[1,2,16] x, int64[1,2] p, T[8,4] c, T[8,4] s) => (T[1,2,16] y) "
        "{ y = com.microsoft.RotaryEmbedding<num_heads=2>(x, p, c, s) }",
    ),
    "com.microsoft::GatedRelativePositionBias": (
        17,
        "(T[1,2,16] q, T[16] b, T[1,2,4,4] r, T[8,8] w, T[8] wb, T[1,2,1,1] e) => (T[1,2,4,4] y) "
        "{ y = com.microsoft.GatedRelativePositionBias<num_heads=2>(q, b, r, w, wb, e) }",
    ),
    "com.microsoft::RelativePositionBias": (
        17,
        "(T[32,2] t, int64 q, int64 k) => (T[1,2,a,b] y) "
        "{ y = com.microsoft.RelativePositionBias<max_distance=128>(t, q, k) }",
    ),
    "com.microsoft::EmbedLayerNormalization": (
        17,
        "(int32[1,2] i, T[8,4] w, T[8,4] p, T[4] g, T[4] b) => (T[1,2,4] y, int32[1] m) "
        "{ y, m = com.microsoft.EmbedLayerNormalization(i, , w, p, , g, b) }",
    ),
    "com.microsoft::SkipLayerNormalization": (
        17,
        "(T[1,2,8] x, T[1,2,8] s, T[8] g, T[8] b) => (T[1,2,8] y) "
        "{ y = com.microsoft.SkipLayerNormalization(x, s, g, b) }",
    ),
    "com.microsoft::SkipSimplifiedLayerNormalization": (
        17,
        "(T[1,2,8] x, T[1,2,8] s, T[8] g) => (T[1,2,8] y) "
        "{ y = com.microsoft.SkipSimplifiedLayerNormalization(x, s, g) }",
    ),
    "::SimplifiedLayerNormalization": (
        17,
        "(T[1,2,8] x, T[8] g) => (T[1,2,8] y) { y = SimplifiedLayerNormalization<axis=-1>(x, g) }",
    ),
    "::LayerNormalization": (
        17,
        "(T[1,2,8] x, T[8] g, T[8] b) => (T[1,2,8] y) { y = LayerNormalization<axis=-1>(x, g, b) }",
    ),
    "::RMSNormalization": (23, "(T[1,2,8] x, T[8] g) => (T[1,2,8] y) { y = RMSNormalization<axis=-1>(x, g) }"),
    "::Attention": (
        23,
        "(T[1,2,4,8] q, T[1,2,4,8] k, T[1,2,4,8] v) => (T[1,2,4,8] y) { y = Attention(q, k, v) }",
    ),
    "::RotaryEmbedding": (
        23,
        "(T[1,2,4,8] x, T[8,4] c, T[8,4] s, int64[1,4] p) => (T[1,2,4,8] y) { y = RotaryEmbedding(x, c, s, p) }",
    ),
    "::Gelu": (20, "(T[2,8] x) => (T[2,8] y) { y = Gelu(x) }"),
    "::Swish": (24, "(T[2,8] x) => (T[2,8] y) { y = Swish(x) }"),
    "::GroupNormalization": (
        21,
        "(T[1,4,2,2] x, T[4] g, T[4] b) => (T[1,4,2,2] y) { y = GroupNormalization<num_groups=2>(x, g, b) }",
    ),
    "com.microsoft::Gelu": (17, "(T[2,8] x) => (T[2,8] y) { y = com.microsoft.Gelu(x) }"),
    "com.microsoft::FastGelu": (17, "(T[2,8] x, T[8] b) => (T[2,8] y) { y = com.microsoft.FastGelu(x, b) }"),
    "com.microsoft::QuickGelu": (17, "(T[2,8] x) => (T[2,8] y) { y = com.microsoft.QuickGelu(x) }"),
    "com.microsoft::BiasGelu": (17, "(T[2,8] x, T[8] b) => (T[2,8] y) { y = com.microsoft.BiasGelu(x, b) }"),
    "com.microsoft::BiasSplitGelu": (
        17,
        "(T[1,4,2560] x, T[2560] b) => (T[1,4,1280] y) { y = com.microsoft.BiasSplitGelu(x, b) }",
    ),
    "com.microsoft::BiasAdd": (
        17,
        "(T[1,4,320] x, T[320] b, T[1,4,320] s) => (T[1,4,320] y) { y = com.microsoft.BiasAdd(x, b, s) }",
    ),
    "com.microsoft::BiasSoftmax": (
        17,
        "(T[1,2,4,4] x, T[1,1,1,4] b) => (T[1,2,4,4] y) "
        "{ y = com.microsoft.BiasSoftmax<axis=3, is_inner_broadcast=0>(x, b) }",
    ),
    "com.microsoft::GroupNorm": (
        17,
        "(T[1,4,4,320] x, float[320] g, float[320] b) => (T[1,4,4,320] y) "
        "{ y = com.microsoft.GroupNorm<groups=32, activation=0>(x, g, b) }",
    ),
    "com.microsoft::SkipGroupNorm": (
        17,
        "(T[1,4,4,320] x, float[320] g, float[320] b, T[1,4,4,320] s) => (T[1,4,4,320] y, T[1,4,4,320] z) "
        "{ y, z = com.microsoft.SkipGroupNorm<groups=32, activation=0>(x, g, b, s) }",
    ),
    "com.microsoft::FusedMatMul": (
        17,
        "(T[2,4] a, T[2,4] b) => (T[2,2] y) { y = com.microsoft.FusedMatMul<transB=1, alpha=0.5>(a, b) }",
    ),
    "com.microsoft::GemmFastGelu": (
        17,
        "(T[2,4] a, T[4,8] w, T[8] b) => (T[2,8] y) { y = com.microsoft.GemmFastGelu(a, w, b) }",
    ),
    "com.microsoft::FusedGemm": (
        17,
        '(T[2,4] a, T[4,8] w, T[8] b) => (T[2,8] y) { y = com.microsoft.FusedGemm<activation="Relu">(a, w, b) }',
    ),
    "com.microsoft::FusedConv": (
        17,
        "(T[1,2,4,4] x, T[2,2,3,3] w, T[2] b) => (T[1,2,2,2] y) "
        '{ y = com.microsoft.FusedConv<activation="Relu">(x, w, b) }',
    ),
    "com.microsoft::NhwcConv": (
        17,
        "(T[1,4,4,8] x, T[8,3,3,8] w, T[8] b) => (T[1,2,2,8] y) { y = com.microsoft.NhwcConv(x, w, b) }",
    ),
    "com.microsoft::NhwcFusedConv": (
        17,
        "(T[1,4,4,8] x, T[8,8,3,3] w, T[8] b) => (T[1,2,2,8] y) { y = com.microsoft.NhwcFusedConv(x, w, b) }",
    ),
    "com.microsoft::NhwcMaxPool": (
        17,
        "(T[1,4,4,8] x) => (T[1,2,2,8] y) { y = com.microsoft.NhwcMaxPool<kernel_shape=[3,3]>(x) }",
    ),
    "com.microsoft::BiasDropout": (17, "(T[2,8] x, T[8] b) => (T[2,8] y) { y = com.microsoft.BiasDropout(x, b) }"),
    "com.microsoft::LayerNormalization": (
        17,
        "(T[1,2,8] x, T[8] g, T[8] b) => (T[1,2,8] y) { y = com.microsoft.LayerNormalization<axis=-1>(x, g, b) }",
    ),
}
"""`domain::operator` -> (opset of the standard domain, a model in ONNX's text syntax)."""
