"""Questions of `forms.py` about images: group normalization and convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from form_graphs import (
    BIAS,
    GROUPS,
    NHWC,
    NHWC_BIAS,
    Array,
    Build,
    Graph,
    Question,
    conv,
    fused_conv,
    kernel,
    nhwc_conv,
    silu,
    to_first,
    to_last,
    weight,
)


def norm_weights(number: int, channels: int) -> tuple[Array, Array]:
    """Scale and shift of a normalization."""
    return weight(f"scale{number}", channels) + 1, weight(f"shift{number}", channels)


def instance_norm(g: Graph, x: str, number: int, dims: Sequence[int]) -> str:
    """Group normalization as exporters write it."""
    batch = dims[0]
    scale, shift = norm_weights(number, dims[1])
    grouped = g.op("Reshape", x, g.shape(batch, GROUPS, -1))
    ones, zeros = g.constant(np.ones(GROUPS, np.float32)), g.constant(np.zeros(GROUPS, np.float32))
    normal = g.op("Reshape", g.op("InstanceNormalization", grouped, ones, zeros), g.shape(*dims))
    scaled = g.op("Mul", normal, g.constant(scale.reshape(-1, 1, 1)))
    return str(g.op("Add", scaled, g.constant(shift.reshape(-1, 1, 1))))


def as_layer_norm(g: Graph, x: str, number: int, dims: Sequence[int]) -> str:
    """The same around the operator that normalizes the last axis."""
    batch, channels, height, width = dims
    scale, shift = norm_weights(number, channels)
    inner = channels // GROUPS * height * width
    grouped = g.op("Reshape", x, g.shape(batch, GROUPS, inner))
    normal = g.op("LayerNormalization", grouped, g.constant(np.ones(inner, np.float32)), axis=-1)
    scaled = g.op("Mul", g.op("Reshape", normal, g.shape(*dims)), g.constant(scale.reshape(-1, 1, 1)))
    return str(g.op("Add", scaled, g.constant(shift.reshape(-1, 1, 1))))


def standard_norm(g: Graph, x: str, number: int, dims: Sequence[int]) -> str:
    """The same as the operator of opset 21."""
    scale, shift = norm_weights(number, dims[1])
    return str(g.op("GroupNormalization", x, g.constant(scale), g.constant(shift), num_groups=GROUPS))


def group_norm(g: Graph, x: str, number: int, dims: Sequence[int], activation: int = 1) -> str:
    """The same as the runtime's operator, channels last."""
    scale, shift = (g.constant(array, keep=True) for array in norm_weights(number, dims[1]))
    return str(g.ms("GroupNorm", x, scale, shift, groups=GROUPS, activation=activation, channels_last=1))


Norm = Callable[[Graph, str, int, Sequence[int]], str]


def images(small: bool) -> Question:
    """GroupNorm and its neighbours."""
    dims = (1, 64, 16, 16) if small else (2, 320, 64, 64)
    question = Question("diffusion UNet block: group normalization, SiLU, convolution, 4 times", {"x": dims})
    channels = dims[1]

    def blocks(norm: Norm, activate: Callable[[Graph, str], str]) -> Build:
        def build(g: Graph) -> list[str]:
            x = "x"
            for number in range(4):
                x = conv(g, activate(g, norm(g, x, number, dims)), number, channels, channels)
            return [x]

        return build

    def turned(g: Graph) -> list[str]:
        x = "x"
        for number in range(4):
            x = conv(g, to_first(g, group_norm(g, to_last(g, x), number, dims)), number, channels, channels)
        return [x]

    def last(g: Graph) -> list[str]:
        x = to_last(g, "x")
        for number in range(4):
            x = nhwc_conv(g, group_norm(g, x, number, dims), number, channels, channels)
        return [to_first(g, x)]

    def quick(g: Graph, x: str) -> str:
        return str(g.ms("QuickGelu", x, alpha=1.0))

    question.add("InstanceNormalization", blocks(instance_norm, silu))
    question.add("InstanceNormalization, QuickGelu", blocks(instance_norm, quick))
    question.add("LayerNormalization", blocks(as_layer_norm, silu))
    question.add("LayerNormalization, QuickGelu", blocks(as_layer_norm, quick))
    question.add("GroupNormalization 21", blocks(standard_norm, silu), falls_back=True)
    question.add("GroupNorm between Transposes", turned, cuda=True)
    question.add("GroupNorm, NhwcConv", last, cuda=True)
    question.add("GroupNorm, NhwcConv, fuse_conv_bias", last, cuda=True, options=BIAS)
    question.add("InstanceNormalization, prefer_nhwc", blocks(instance_norm, silu), cuda=True, options=NHWC)
    question.add("LayerNormalization, prefer_nhwc+bias", blocks(as_layer_norm, silu), cuda=True, options=NHWC_BIAS)
    question.add("GroupNorm between Transposes, prefer_nhwc+bias", turned, cuda=True, options=NHWC_BIAS)
    return question


def skipped_images(small: bool) -> Question:
    """A residual before it."""
    dims = (1, 64, 16, 16) if small else (2, 640, 32, 32)
    question = Question("addition, group normalization with SiLU; sum and result are read", {"x": dims, "s": dims})

    def plain(norm: Norm) -> Build:
        def build(g: Graph) -> list[str]:
            total, x = "s", "x"
            for number in range(4):
                total = g.op("Add", x, total)
                x = silu(g, norm(g, total, number, dims))
            return [x, total]

        return build

    def fused(g: Graph) -> list[str]:
        total, x = to_last(g, "s"), to_last(g, "x")
        for number in range(4):
            scale, shift = (g.constant(array, keep=True) for array in norm_weights(number, dims[1]))
            attributes = {"groups": GROUPS, "activation": 1, "channels_last": 1}
            x, total = g.ms("SkipGroupNorm", x, scale, shift, total, outputs=2, **attributes)
        return [to_first(g, x), to_first(g, total)]

    def apart(g: Graph) -> list[str]:
        total, x = to_last(g, "s"), to_last(g, "x")
        for number in range(4):
            total = g.op("Add", x, total)
            x = group_norm(g, total, number, dims)
        return [to_first(g, x), to_first(g, total)]

    question.add("Add, InstanceNormalization", plain(instance_norm))
    question.add("Add, LayerNormalization", plain(as_layer_norm))
    question.add("Add, GroupNorm", apart, cuda=True)
    question.add("SkipGroupNorm", fused, cuda=True)
    return question


def residual(small: bool, batch: int) -> Question:
    """Convolutions with residuals."""
    dims = (1, 128, 28, 28) if small else (batch, 256, 14, 14)
    channels = dims[1]
    inner = channels // 4
    question = Question(f"ResNet bottlenecks, batch {dims[0]}, 6 times: Conv Relu Conv Relu Conv Add Relu", {"x": dims})

    def plain(one: Callable[..., str], ends: bool) -> Build:
        def build(g: Graph) -> list[str]:
            x = to_last(g, "x") if ends else "x"
            for number in range(6):
                y = g.op("Relu", one(g, x, f"{number}a", inner, channels, 1))
                y = g.op("Relu", one(g, y, f"{number}b", inner, inner, 3))
                x = g.op("Relu", g.op("Add", one(g, y, f"{number}c", channels, inner, 1), x))
            return [to_first(g, x) if ends else x]

        return build

    def fused(with_sum: bool) -> Build:
        def build(g: Graph) -> list[str]:
            x = "x"
            for number in range(6):
                y = fused_conv(g, x, f"{number}a", inner, channels, 1)
                y = fused_conv(g, y, f"{number}b", inner, inner, 3)
                if with_sum:
                    x = fused_conv(g, y, f"{number}c", channels, inner, 1, x)
                else:
                    x = str(g.op("Relu", g.op("Add", conv(g, y, f"{number}c", channels, inner, 1), x)))
            return [x]

        return build

    question.add("Conv", plain(conv, False))
    question.add("FusedConv without the sum", fused(False), dtypes=("f32",))
    question.add("FusedConv", fused(True), dtypes=("f32",))
    question.add("Conv, prefer_nhwc", plain(conv, False), cuda=True, options=NHWC)
    question.add("Conv, prefer_nhwc+bias", plain(conv, False), cuda=True, options=NHWC_BIAS)
    question.add("NhwcConv", plain(nhwc_conv, True), cuda=True)
    question.add("NhwcConv, fuse_conv_bias", plain(nhwc_conv, True), cuda=True, options=BIAS)
    return question


def activated(small: bool) -> Question:
    """Convolutions with SiLU."""
    dims = (1, 32, 20, 20) if small else (8, 128, 40, 40)
    question = Question("YOLO blocks, 6 times: Conv with SiLU", {"x": dims})

    def blocks(one: Callable[..., str], activate: Callable[[Graph, str], str], ends: bool = False) -> Build:
        def build(g: Graph) -> list[str]:
            x = to_last(g, "x") if ends else "x"
            for number in range(6):
                x = activate(g, one(g, x, number, dims[1], dims[1], 3))
            return [to_first(g, x) if ends else x]

        return build

    def quick(g: Graph, x: str) -> str:
        return str(g.ms("QuickGelu", x, alpha=1.0))

    question.add("Conv, Sigmoid, Mul", blocks(conv, silu))
    question.add("Conv, QuickGelu", blocks(conv, quick))
    question.add("NhwcConv, Sigmoid, Mul", blocks(nhwc_conv, silu, True), cuda=True)
    question.add("NhwcConv, QuickGelu", blocks(nhwc_conv, quick, True), cuda=True)
    question.add("Conv, Sigmoid, Mul, prefer_nhwc+bias", blocks(conv, silu), cuda=True, options=NHWC_BIAS)
    question.add("Conv, QuickGelu, prefer_nhwc+bias", blocks(conv, quick), cuda=True, options=NHWC_BIAS)
    return question


def parallel_convs(small: bool, batch: int) -> Question:
    """Convolutions of one value."""
    dims = (1, 64, 14, 14) if small else (batch, 512, 14, 14)
    parts = (32, 24, 8) if small else (160, 112, 24)
    question = Question(f"Inception: three 1x1 Conv with Relu of one value, batch {dims[0]}, 4 times", {"x": dims})
    into, total = dims[1], sum(parts)

    def ends(g: Graph, branches: Sequence[str], number: int) -> str:
        joined = g.op("Concat", *[g.op("MaxPool", one, kernel_shape=[3, 3], pads=[1] * 4) for one in branches], axis=1)
        return conv(g, str(joined), f"{number}j", into, total, 1)

    def apart(g: Graph) -> list[str]:
        x = "x"
        for number in range(4):
            made = [g.op("Relu", conv(g, x, f"{number}p{index}", part, into, 1)) for index, part in enumerate(parts)]
            x = ends(g, made, number)
        return [x]

    def merged(g: Graph) -> list[str]:
        x = "x"
        for number in range(4):
            names = [f"{number}p{index}" for index in range(len(parts))]
            w = np.concatenate([kernel(f"k{n}", part, into, 1) for n, part in zip(names, parts, strict=True)])
            b = np.concatenate([weight(f"kb{n}", part) for n, part in zip(names, parts, strict=True)])
            y = g.op("Relu", g.op("Conv", x, g.constant(w), g.constant(b), kernel_shape=[1, 1]))
            made = g.op("Split", y, g.shape(*parts), axis=1, outputs=len(parts))
            x = ends(g, made, number)
        return [x]

    question.add("three Conv", apart)
    question.add("one Conv, Split", merged)
    question.add("three Conv, prefer_nhwc+bias", apart, cuda=True, options=NHWC_BIAS)
    question.add("one Conv, Split, prefer_nhwc+bias", merged, cuda=True, options=NHWC_BIAS)
    return question


IMAGES: dict[str, Callable[[bool], Question]] = {
    "group_norm": images,
    "skip_group_norm": skipped_images,
    "conv_8": lambda small: residual(small, 8),
    "conv_64": lambda small: residual(small, 64),
    "conv_silu": activated,
    "parallel_conv_8": lambda small: parallel_convs(small, 8),
}
"""Name -> the question, small ones for the CPU."""
