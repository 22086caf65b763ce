"""Random attentions give what their parts gave: masks of every rank, spelling and content, any sizes, dims that lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, parser
from sessions import session

from graphopt import optimize
from graphopt.runtime import judge

LOWEST = float(np.finfo(np.float32).min)
FILLS = (-np.inf, LOWEST, -1e9, -1e4, -100.0, 0.0)
SHAPES = (
    "B,1,1,K",
    "B,1,S,K",
    "1,1,S,K",
    "B,H,S,K",
    "1,H,S,K",
    "S,K",
    "K",
    "1,K",
    "B,1,S,1",
    "1",
    "1,1,1,1",
    "B,H,1,K",
)
LOOSE = ("M,1,S,K", "1,1,M,K", "1,1,S,M", "M,1,1,K")
SIZES = ({"B": 2, "S": 5, "K": 5}, {"B": 1, "S": 1, "K": 1}, {"B": 2, "S": 3, "K": 3}, {"B": 0, "S": 2, "K": 2})


@dataclass
class Drawn:
    """A model's text in the making."""

    random: np.random.Generator
    inputs: list[str] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)

    def pick(self, choices: Any) -> Any:
        return choices[int(self.random.integers(len(choices)))]

    def node(self, text: str) -> str:
        name = f"n{len(self.nodes)}"
        self.nodes.append(f"{name} = {text}")
        return name

    def number(self, value: float) -> str:
        name = f"c{len(self.constants)}"
        text = "-inf" if np.isinf(value) else f"{value:.9g}"
        self.constants.append(f"float {name} = {{{text}}}")
        return name

    def either_way(self, op_type: str, left: str, right: str) -> str:
        first, second = self.pick([(left, right), (right, left)])
        return self.node(f"{op_type}({first}, {second})")


def drawn(seed: int) -> ModelProto:
    """A model of one attention."""
    made = Drawn(np.random.default_rng(seed))
    heads, width = made.pick((1, 2, 3)), made.pick((1, 2, 4))
    values, is_cached = made.pick((width, width, 3)), made.random.random() < 0.25
    keys = "T" if is_cached else "S"
    made.inputs += [f"float[B,S,{heads * width}] q", f"float[B,S,{heads * width}] k", f"float[B,S,{heads * values}] v"]
    made.constants += [
        f"int64[4] {name} = {{{zero},-1,{heads},{size}}}" for name, zero, size in (("qs", 0, width), ("vs", 0, values))
    ]
    sides = [
        made.node(f"Transpose<perm = [0,2,1,3]>({made.node(f'Reshape({name}, {shape})')})")
        for name, shape in (("q", "qs"), ("k", "qs"), ("v", "vs"))
    ]
    results = ["float[B,S,N,D] y"]
    if is_cached:
        made.inputs += [f"float[B,{heads},P,{width}] pk", f"float[B,{heads},P,{values}] pv"]
        sides[1:] = [
            made.node(f"Concat<axis = 2>({past}, {new})") for past, new in zip(("pk", "pv"), sides[1:], strict=True)
        ]
        made.nodes += [f"kk = Identity({sides[1]})", f"vv = Identity({sides[2]})"]
        results += [f"float[B,{heads},L,{width}] kk", f"float[B,{heads},L,{values}] vv"]
    scores = made.node(f"MatMul({sides[0]}, {made.node(f'Transpose<perm = [0,1,3,2]>({sides[1]})')})")
    if made.random.random() < 0.6:
        scores = made.either_way("Mul", scores, made.number(made.pick((0.5, 2.0, -1.0))))
    for place in range(made.pick((0, 1, 1, 2))):
        scores = masked(made, scores, place, heads, keys)
    weights = made.node(f"Softmax<axis = -1>({scores})")
    mixed = made.node(f"MatMul({weights}, {sides[2]})")
    made.nodes.append(f"y = Transpose<perm = [0,2,1,3]>({mixed})")
    text = f"g ({', '.join(made.inputs)}) => ({', '.join(results)}) <{', '.join(made.constants)}>"
    return parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\n{text} {{ {"  ".join(made.nodes)} }}')


def masked(made: Drawn, scores: str, place: int, heads: int, keys: str) -> str:
    """The scores with one more mask."""
    dims = made.pick(SHAPES + LOOSE).replace("H", str(heads)).replace("K", keys)
    kind, name = made.pick(("add", "choice", "choice", "sum of a choice")), f"m{place}"
    if kind == "add":
        made.inputs.append(f"float[{dims}] {name}")
        return made.either_way("Add", scores, name)
    made.inputs.append(f"bool[{dims}] {name}")
    fill = made.number(made.pick(FILLS))
    if kind == "choice":
        first, second = made.pick([(scores, fill), (fill, scores)])
        return made.node(f"Where({name}, {first}, {second})")
    first, second = made.pick([(made.number(0.0), fill), (fill, made.number(0.0))])
    return made.either_way("Add", scores, made.node(f"Where({name}, {first}, {second})"))


def fed(model: ModelProto, sizes: Mapping[str, int], random: np.random.Generator, odd: str = "") -> dict[str, Any]:
    """Feeds with masks that hide whole rows; at the input `odd` each dim with a name is 1."""
    feeds: dict[str, Any] = {}
    for item in model.graph.input:
        dims = item.type.tensor_type.shape.dim
        shape = [(1 if item.name == odd else sizes[dim.dim_param]) if dim.dim_param else dim.dim_value for dim in dims]
        is_hidden = random.random(shape) < random.choice([0.0, 0.3, 1.0])
        if len(shape) > 1 and is_hidden.size:
            is_hidden[..., 0, :] = True
        if not item.name.startswith("m"):
            feeds[item.name] = (random.choice([1.0, 8.0]) * random.standard_normal(shape)).astype(np.float32)
        elif item.type.tensor_type.elem_type == 9:
            feeds[item.name] = is_hidden
        else:
            feeds[item.name] = np.where(is_hidden, random.choice([-np.inf, LOWEST]), 0.0).astype(np.float32)
    return feeds


@pytest.mark.parametrize("first", range(0, 72, 12))
def test_random_attentions(first: int) -> None:
    fused = raised = 0
    for seed in range(first, first + 12):
        model = drawn(seed)
        result = optimize(model, target="ort-cpu", strict=True).model
        is_fused = any(node.op_type in ("Attention", "MultiHeadAttention") for node in result.graph.node)
        fused += is_fused
        before, after, random = session(model), session(result), np.random.default_rng(seed)
        for sizes in SIZES:
            for past, other in ((0, 1), (3, sizes["S"]), (1, sizes["B"])):
                known = {**sizes, "P": past, "T": sizes["S"] + past, "M": other}
                feeds = fed(model, known, random)
                verdict = judge(model, result, "R", [feeds])
                assert verdict.ok or (not sizes["B"] and "fails where" in verdict.reason), f"{seed}: {verdict.reason}"
                if not is_fused or not sizes["B"]:
                    continue
                for odd in model.graph.input:  # a name that stands for two sizes
                    raised += raises_or_agrees(model, result, before, after, known, odd.name, random)
    assert fused >= 3
    assert raised  # or the question was never put


def raises_or_agrees(
    model: ModelProto,
    result: ModelProto,
    before: Any,
    after: Any,
    sizes: Mapping[str, int],
    odd: str,
    random: np.random.Generator,
) -> bool:
    """Whether the result raises where the original stretches an operand; it never gives other numbers."""
    feeds = fed(model, sizes, random, odd)
    try:
        before.run(None, feeds)
    except Exception:
        return False
    try:
        after.run(None, feeds)
    except Exception:
        return True
    verdict = judge(model, result, "R", [feeds])
    assert verdict.ok, f"dims of {odd} are 1: {verdict.reason}"
    return False
