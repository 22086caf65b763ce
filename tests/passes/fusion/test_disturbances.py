"""Near misses of every fusion are left alone, or give the same as before."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import chain

import pytest
from disturbances import BRAIN, DOUBLE, HALF, dropped, ends_in, inner_floats, renumbered, retyped, rewired, stretched
from onnx import ModelProto, checker
from stand_ins import STAND_IN_OPSET, with_stand_ins

from graphopt.errors import ExecutionError
from graphopt.onnxio import load, to_proto
from graphopt.pipeline import Pass, load_registry
from graphopt.pipeline.passes import Item
from graphopt.runtime import judge
from graphopt.targets import MICROSOFT, target_named
from graphopt.testing.checks import apply, example_model
from graphopt.testing.feeds import feeds_of
from graphopt.testing.variants import symbolic

_RANDOM_OPSET = 12
"""From here on Dropout is told by an operand that it trains."""
CASES = [
    pytest.param(owner, item, id=f"{owner.name}/{item.name}")
    for owner in load_registry().passes.values()
    if owner.name.startswith("fusion.")
    for item in owner.items
]
each_item = pytest.mark.parametrize(("owner", "item"), CASES)


def opset(model: ModelProto) -> int:
    return max(item.version for item in model.opset_import if item.domain == "")


def is_model(model: ModelProto) -> bool:
    try:
        checker.check_model(model)
    except checker.ValidationError:
        return False
    return True


def what_is_wrong(item: Item, before: ModelProto, after: ModelProto, sizes: dict[str, int] | None = None) -> str:
    if opset(before) < STAND_IN_OPSET and with_stand_ins(after) != after:
        return ""  # whose functions are of later operators
    feeds = feeds_of(before, sizes, item.examples.largest)
    try:
        verdict = judge(with_stand_ins(before), with_stand_ins(after), item.numeric.value, feeds, ulp=item.ulp)
    except ExecutionError:
        return ""  # it did not load before either
    return "" if verdict.ok else verdict.reason


def failures(owner: Pass, item: Item, models: Iterator[tuple[str, ModelProto]]) -> list[str]:
    found = []
    for name, model in models:
        if is_model(model):
            graph, fired = apply(owner, item, model)
            reason = what_is_wrong(item, model, to_proto(graph)) if fired else ""
            found += [f"{name}: {reason}"] if reason else []
    return found


@each_item
def test_other_shapes_numbers_and_operands(owner: Pass, item: Item) -> None:
    example = example_model(item, item.examples.before)
    assert failures(owner, item, chain(stretched(example), renumbered(example), rewired(example))) == []


@each_item
def test_free_dims_of_any_size(owner: Pass, item: Item) -> None:
    """What is written where nothing is known of the dims is right where one of them is 1, or another than the rest."""
    example = example_model(item, item.examples.before)
    free = symbolic(example)
    graph, fired = apply(owner, item, free)
    if not fired:
        return
    result = to_proto(graph)
    sizes: dict[str, int] = {}
    for info, fixed in zip(free.graph.input, example.graph.input, strict=True):
        for dim, own in zip(info.type.tensor_type.shape.dim, fixed.type.tensor_type.shape.dim, strict=True):
            sizes[dim.dim_param] = own.dim_value or 2
    # Kernels that the model brings with it may end the process where nothing is fed.
    others = (1, 3) if MICROSOFT in item.examples.before else (0, 1, 3)
    for name in sizes:
        for size in others:
            assert what_is_wrong(item, free, result, sizes | {name: size}) == "", f"{name} is {size}"


@each_item
@pytest.mark.parametrize("dtype", [DOUBLE, HALF, BRAIN])
def test_types(owner: Pass, item: Item, dtype: int) -> None:
    """No operator is written that the target has no kernel of."""
    example = retyped(example_model(item, item.examples.before), dtype)
    if not is_model(example):
        return
    own = {(node.op_type, node.domain) for node in load(example).nodes()}
    for target in owner.targets:
        there = copy.copy(owner)
        object.__setattr__(there, "targets", (target,))
        graph, fired = apply(there, item, example)
        kernels = target_named(target)
        for node in graph.nodes():
            is_new = node.domain == MICROSOFT and (node.op_type, node.domain) not in own
            assert not is_new or kernels.runs(node.op_type, node.results[0].dtype), f"{node.op_type} on {target}"
        if fired and target == "ort-cpu":
            assert what_is_wrong(item, example, to_proto(graph)) == ""


@each_item
def test_random_parts_stay(owner: Pass, item: Item) -> None:
    example = example_model(item, item.examples.before)
    if opset(example) < _RANDOM_OPSET:
        return
    names = inner_floats(example)
    for name in names:
        model = dropped(example, name, 0.5)
        if is_model(model):
            assert ends_in(to_proto(apply(owner, item, model)[0]), "Dropout"), name
    assert failures(owner, item, ((name, dropped(example, name, 0.0)) for name in names)) == []


@each_item
def test_kept_names_stay(owner: Pass, item: Item) -> None:
    example = example_model(item, item.examples.before)
    results = {info.name for info in example.graph.output}
    for name in [name for node in example.graph.node for name in node.output if name and name not in results]:
        asked, examples = copy.copy(item), copy.copy(item.examples)
        examples.options = {**examples.options, "keep": frozenset([name])}
        asked.examples = examples
        after = to_proto(apply(owner, asked, example)[0])
        assert any(name in node.output for node in after.graph.node), name
