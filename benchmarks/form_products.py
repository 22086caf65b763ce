"""Questions of `forms.py` about matrix products and what stands around them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from form_graphs import Array, Build, Graph, Question, gelu_parts, layer_norm, projected, silu, weight


def gated(small: bool, rows: int, width: int, half: int) -> Question:
    """Gated feed-forward layers with Gelu."""
    rows, width, half = (16, 64, 1280) if small else (rows, width, half)
    question = Question(
        f"GEGLU of a diffusion UNet: {rows} rows, {width} to 2*{half}, 3 times", {"x": (2, rows, width)}
    )

    def chain(make: Callable[[Graph, str, int], str]) -> Build:
        def build(g: Graph) -> list[str]:
            x = "x"
            for number in range(3):
                x = projected(g, make(g, x, number), f"down{number}", half, width)
            return [x]

        return build

    def parts(gelu: Callable[[Graph, str], str]) -> Callable[[Graph, str, int], str]:
        def make(g: Graph, x: str, number: int) -> str:
            both = projected(g, x, f"up{number}", width, 2 * half)
            left, right = g.op("Split", both, axis=-1, num_outputs=2, outputs=2)
            return str(g.op("Mul", left, gelu(g, right)))

        return make

    def fused(g: Graph, x: str, number: int) -> str:
        product = projected(g, x, f"up{number}", width, 2 * half, bias=False)
        return str(g.ms("BiasSplitGelu", product, g.constant(weight(f"up{number}b", 2 * half))))

    def apart(g: Graph, x: str, number: int) -> str:
        w, b = weight(f"up{number}", width, 2 * half), weight(f"up{number}b", 2 * half)
        left = g.op("Add", g.op("MatMul", x, g.constant(w[:, :half])), g.constant(b[:half]))
        right = g.ms("BiasGelu", g.op("MatMul", x, g.constant(w[:, half:])), g.constant(b[half:]))
        return str(g.op("Mul", left, right))

    question.add("MatMul, Add, Split, parts of Gelu, Mul", chain(parts(gelu_parts)))
    question.add("MatMul, Add, Split, Gelu, Mul", chain(parts(lambda g, x: str(g.ms("Gelu", x)))))
    question.add("two MatMul, BiasGelu, Mul", chain(apart))
    question.add("MatMul, BiasSplitGelu", chain(fused), cuda=True)
    return question


def biased_sums(small: bool) -> Question:
    """A bias and a residual."""
    rows, width = (16, 320) if small else (4096, 320)
    question = Question(
        f"projection, bias and residual of a diffusion UNet, {rows}x{width}, 4 times; LayerNormalization reads it",
        {"x": (2, rows, width)},
    )

    def chain(make: Callable[[Graph, str, str, int], tuple[str, str]]) -> Build:
        def build(g: Graph) -> list[str]:
            skip = x = "x"
            for number in range(4):
                product = projected(g, x, f"p{number}", width, width, bias=False)
                skip, x = make(g, product, skip, number)
            return [x]

        return build

    def bias(g: Graph, number: int) -> str:
        return g.constant(weight(f"p{number}b", width))

    def plain(g: Graph, x: str, skip: str, number: int) -> tuple[str, str]:
        total = str(g.op("Add", g.op("Add", x, bias(g, number)), skip))
        return total, layer_norm(g, total, width, number)

    def bias_add(g: Graph, x: str, skip: str, number: int) -> tuple[str, str]:
        total = str(g.ms("BiasAdd", x, bias(g, number), skip))
        return total, layer_norm(g, total, width, number)

    def skip_norm(g: Graph, x: str, skip: str, number: int) -> tuple[str, str]:
        scale, shift = weight(f"scale{number}", width) + 1, weight(f"shift{number}", width)
        operands = (x, skip, g.constant(scale), g.constant(shift), bias(g, number))
        y, _, _, total = g.ms("SkipLayerNormalization", *operands, outputs=4, epsilon=1e-5)
        return str(total), str(y)

    def skip_norm_apart(g: Graph, x: str, skip: str, number: int) -> tuple[str, str]:
        scale, shift = weight(f"scale{number}", width) + 1, weight(f"shift{number}", width)
        operands = (g.op("Add", x, bias(g, number)), skip, g.constant(scale), g.constant(shift))
        y, _, _, total = g.ms("SkipLayerNormalization", *operands, outputs=4, epsilon=1e-5)
        return str(total), str(y)

    question.add("Add, Add, LayerNormalization", chain(plain))
    question.add("BiasAdd, LayerNormalization", chain(bias_add), cuda=True)
    question.add("Add, SkipLayerNormalization", chain(skip_norm_apart))
    question.add("SkipLayerNormalization with bias", chain(skip_norm))
    return question


def scaled_products(small: bool) -> Question:
    """Products of heads."""
    dims = (1, 2, 32, 16) if small else (4, 12, 512, 64)
    batch, heads, rows, size = dims
    inputs = {"q": (batch, rows, heads, size), "k": (batch, rows, heads, size), "v": dims}
    question = Question("scaled products of heads with a Tanh between: transposed keys, scale", inputs)
    scale = 1 / math.sqrt(size)

    def ends(g: Graph, scores: str) -> list[str]:
        return [str(g.op("MatMul", g.op("Tanh", scores), "v"))]

    def plain(g: Graph) -> list[str]:
        q, k = g.op("Transpose", "q", perm=[0, 2, 1, 3]), g.op("Transpose", "k", perm=[0, 2, 3, 1])
        return ends(g, g.op("Mul", g.op("MatMul", q, k), g.number(scale)))

    def turned(g: Graph) -> list[str]:
        q, k = g.op("Transpose", "q", perm=[0, 2, 1, 3]), g.op("Transpose", "k", perm=[0, 2, 1, 3])
        return ends(g, g.ms("FusedMatMul", q, k, transB=1, alpha=scale))

    def scaled(g: Graph) -> list[str]:
        q, k = g.op("Transpose", "q", perm=[0, 2, 1, 3]), g.op("Transpose", "k", perm=[0, 2, 3, 1])
        return ends(g, g.ms("FusedMatMul", q, k, alpha=scale))

    question.add("Transpose, MatMul, Mul", plain)
    question.add("FusedMatMul transB alpha", turned)
    question.add("FusedMatMul alpha", scaled)
    return question


def turned_products(small: bool) -> Question:
    """Products of a turned value."""
    dims = (2, 32, 16) if small else (48, 512, 64)
    question = Question("batched product of a turned value", {"a": dims, "b": dims})

    def plain(g: Graph) -> list[str]:
        x = "a"
        for _ in range(4):
            x = g.op("MatMul", g.op("Tanh", g.op("MatMul", x, g.op("Transpose", "b", perm=[0, 2, 1]))), "b")
        return [x]

    def fused(g: Graph) -> list[str]:
        x = "a"
        for _ in range(4):
            x = g.op("MatMul", g.op("Tanh", g.ms("FusedMatMul", x, "b", transB=1)), "b")
        return [x]

    question.add("Transpose, MatMul", plain)
    question.add("FusedMatMul transB", fused)
    return question


def biased_gelu(small: bool) -> Question:
    """Feed-forward layers."""
    rows, width = (16, 64) if small else (512, 768)
    question = Question(f"feed-forward layers of BERT, {rows}x{width}, 4 times", {"x": (4, rows // 4, width)})

    def chain(make: Callable[[Graph, str, int], str]) -> Build:
        def build(g: Graph) -> list[str]:
            x = "x"
            for number in range(4):
                x = projected(g, make(g, x, number), f"down{number}", 4 * width, width)
            return [x]

        return build

    def parts(g: Graph, x: str, number: int) -> str:
        return gelu_parts(g, projected(g, x, f"up{number}", width, 4 * width))

    def whole(g: Graph, x: str, number: int) -> str:
        return str(g.ms("Gelu", projected(g, x, f"up{number}", width, 4 * width)))

    def biased(kind: str) -> Callable[[Graph, str, int], str]:
        def make(g: Graph, x: str, number: int) -> str:
            product = projected(g, x, f"up{number}", width, 4 * width, bias=False)
            return str(g.ms(kind, product, g.constant(weight(f"up{number}b", 4 * width))))

        return make

    question.add("MatMul, Add, parts of Gelu", chain(parts))
    question.add("MatMul, Add, Gelu", chain(whole))
    question.add("MatMul, BiasGelu", chain(biased("BiasGelu")))
    question.add("MatMul, FastGelu with bias (another function)", chain(biased("FastGelu")))
    return question


def biased_products(small: bool) -> Question:
    """Layers with a bias."""
    rows, width = (16, 64) if small else (512, 768)
    question = Question(f"layers with a bias and Relu, {rows}x{width}, 6 times", {"x": (4, rows // 4, width)})

    def three(g: Graph) -> list[str]:
        x = "x"
        for number in range(6):
            x = g.op("Relu", projected(g, x, f"p{number}", width, width))
        return [x]

    def gemm(g: Graph, x: str, number: int, turned: bool = False) -> str:
        w, b = weight(f"p{number}", width, width), g.constant(weight(f"p{number}b", width))
        return str(g.op("Gemm", x, g.constant(w.T if turned else w), b, transB=int(turned)))

    def two(turned: bool, fused: bool) -> Build:
        def build(g: Graph) -> list[str]:
            x = g.op("Reshape", "x", g.shape(rows, width))
            for number in range(6):
                if fused:
                    w, b = g.constant(weight(f"p{number}", width, width)), g.constant(weight(f"p{number}b", width))
                    x = g.ms("FusedGemm", x, w, b, activation="Relu")
                else:
                    x = g.op("Relu", gemm(g, x, number, turned))
            return [g.op("Reshape", x, g.shape(4, rows // 4, width))]

        return build

    def zero(g: Graph) -> list[str]:
        x = "x"
        for number in range(6):
            product = g.ms("FusedMatMul", x, g.constant(weight(f"p{number}", width, width)))
            x = g.op("Relu", g.op("Add", product, g.constant(weight(f"p{number}b", width))))
        return [x]

    question.add("MatMul, Add, Relu", three)
    question.add("FusedMatMul, Add, Relu (no Gemm made of it)", zero)
    question.add("Gemm, Relu", two(False, False))
    question.add("Gemm transB, Relu", two(True, False))
    question.add("FusedGemm", two(False, True), dtypes=("f32",))
    return question


def projections(small: bool, rows: int, bias: bool) -> Question:
    """Queries, keys and values."""
    rows, width = (min(rows, 128), 256) if small else (rows, 768)
    kind = "with" if bias else "without"
    question = Question(f"queries, keys and values {kind} bias, {rows}x{width}, 6 times", {"x": (1, rows, width)})

    def after(g: Graph, q: str, k: str, v: str) -> str:
        return str(g.op("Mul", g.op("Tanh", g.op("Add", q, k)), v))

    def apart(g: Graph) -> list[str]:
        x = "x"
        for number in range(6):
            x = after(g, *[projected(g, x, f"{part}{number}", width, width, bias) for part in "qkv"])
        return [x]

    def merged(g: Graph) -> list[str]:
        x = "x"
        for number in range(6):
            w = np.concatenate([weight(f"{part}{number}", width, width) for part in "qkv"], 1)
            y = g.op("MatMul", x, g.constant(w))
            if bias:
                y = g.op("Add", y, g.constant(np.concatenate([weight(f"{part}{number}b", width) for part in "qkv"])))
            x = after(g, *g.op("Split", y, axis=-1, num_outputs=3, outputs=3))
        return [x]

    question.add("three MatMul", apart)
    question.add("one MatMul, Split", merged)
    return question


def vectors(small: bool) -> Question:
    """Layers of the time in a diffusion network."""
    width, parts = (128, [32, 64, 128] * 3) if small else (1280, [320] * 7 + [640] * 6 + [1280] * 9)
    inputs = {"x": (2, width)} | {f"m{part}": (2, part) for part in sorted(set(parts))}
    question = Question(f"{len(parts)} layers of one vector for each of a batch of 2", inputs)

    def weights(number: int, part: int) -> tuple[Array, Array]:
        return weight(f"p{number}", width, part).T, weight(f"p{number}b", part)

    def apart(g: Graph) -> list[str]:
        made = []
        for number, part in enumerate(parts):
            w, b = weights(number, part)
            made.append(g.op("Mul", g.op("Gemm", "x", g.constant(w), g.constant(b), transB=1), f"m{part}"))
        return made

    def merged(g: Graph) -> list[str]:
        every = [weights(number, part) for number, part in enumerate(parts)]
        w, b = (np.concatenate([pair[side] for pair in every]) for side in (0, 1))
        whole = g.op("Gemm", "x", g.constant(w), g.constant(b), transB=1)
        split = g.op("Split", whole, g.shape(*parts), axis=1, outputs=len(parts))
        return [g.op("Mul", one, f"m{part}") for one, part in zip(split, parts, strict=True)]

    question.add("one Gemm for each", apart)
    question.add("one Gemm, Split", merged)
    return question


def gates(small: bool, rows: int) -> Question:
    """Gated feed-forward layers with SiLU."""
    rows, width, inner = (min(rows, 64), 512, 1408) if small else (rows, 2048, 5632)
    question = Question(f"SwiGLU of a language model, {rows} rows, {width} to {inner}, twice", {"x": (1, rows, width)})

    def after(g: Graph, gate: str, up: str, number: int, quick: bool) -> str:
        activated = g.ms("QuickGelu", gate, alpha=1.0) if quick else silu(g, gate)
        return projected(g, g.op("Mul", activated, up), f"down{number}", inner, width, bias=False)

    def apart(quick: bool) -> Build:
        def build(g: Graph) -> list[str]:
            x = "x"
            for number in range(2):
                gate, up = (projected(g, x, f"{part}{number}", width, inner, bias=False) for part in ("gate", "up"))
                x = after(g, gate, up, number, quick)
            return [x]

        return build

    def merged(quick: bool) -> Build:
        def build(g: Graph) -> list[str]:
            x = "x"
            for number in range(2):
                w = np.concatenate([weight(f"{part}{number}", width, inner) for part in ("gate", "up")], 1)
                gate, up = g.op("Split", g.op("MatMul", x, g.constant(w)), axis=-1, num_outputs=2, outputs=2)
                x = after(g, gate, up, number, quick)
            return [x]

        return build

    question.add("two MatMul", apart(False))
    question.add("two MatMul, QuickGelu", apart(True))
    question.add("one MatMul, Split", merged(False))
    question.add("one MatMul, Split, QuickGelu", merged(True))
    return question


def quick_gelus(small: bool) -> Question:
    """SiLU alone."""
    dims = (4, 64) if small else (2048, 3072)
    question = Question(f"x*sigmoid(x), {dims}, 8 times with a Tanh between", {"x": dims})

    def chain(activate: Callable[[Graph, str], str]) -> Build:
        def build(g: Graph) -> list[str]:
            x = "x"
            for _ in range(8):
                x = str(g.op("Tanh", activate(g, x)))
            return [x]

        return build

    question.add("Sigmoid, Mul", chain(silu))
    question.add("QuickGelu alpha=1", chain(lambda g, x: str(g.ms("QuickGelu", x, alpha=1.0))))
    return question


def norms(small: bool) -> Question:
    """Residuals and normalization."""
    rows, width = (16, 64) if small else (512, 768)
    question = Question(
        f"MatMul, bias, residual, LayerNormalization, {rows}x{width}, 6 times", {"x": (4, rows // 4, width)}
    )

    def chain(fused: str) -> Build:
        def build(g: Graph) -> list[str]:
            x = "x"
            for number in range(6):
                product = projected(g, x, f"p{number}", width, width, bias=fused != "bias")
                if not fused:
                    x = layer_norm(g, g.op("Add", product, x), width, number)
                    continue
                scale, shift = weight(f"scale{number}", width) + 1, weight(f"shift{number}", width)
                operands = [product, x, g.constant(scale), g.constant(shift)]
                if fused == "bias":
                    operands.append(g.constant(weight(f"p{number}b", width)))
                x = g.ms("SkipLayerNormalization", *operands, epsilon=1e-5)
            return [x]

        return build

    question.add("Add, Add, LayerNormalization", chain(""))
    question.add("Add, SkipLayerNormalization", chain("skip"))
    question.add("SkipLayerNormalization with bias", chain("bias"))
    return question


PRODUCTS: dict[str, Callable[[bool], Question]] = {
    "geglu_320": lambda small: gated(small, 4096, 320, 1280),
    "geglu_1280": lambda small: gated(small, 256, 1280, 5120),
    "bias_add": biased_sums,
    "fused_matmul": scaled_products,
    "turned_matmul": turned_products,
    "skip_layer_norm": norms,
    "quick_gelu": quick_gelus,
    "bias_gelu": biased_gelu,
    "gemm": biased_products,
    "qkv_bias_512": lambda small: projections(small, 512, True),
    "qkv_bias_1": lambda small: projections(small, 1, True),
    "qkv_512": lambda small: projections(small, 512, False),
    "vector_layers": vectors,
    "gates_1": lambda small: gates(small, 1),
    "gates_512": lambda small: gates(small, 512),
}
"""Name -> the question, small ones for the CPU."""
