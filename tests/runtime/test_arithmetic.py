"""Shape arithmetic with numpy gives what ONNX Runtime gives, and gives nothing where the runtime fails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

from graphopt import load
from graphopt.errors import ExecutionError
from graphopt.runtime.arithmetic import compute
from graphopt.runtime.session import JUDGE, Session

Array = np.ndarray[Any, np.dtype[Any]]

LIMITS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LARGEST = 2**63 - 1
EDGES = [0, 1, -1, 2, 5, -3, 7, 64, 2**31 - 1, -(2**31), 2**31, LARGEST, -LARGEST]


def run_both(op_type: str, arrays: list[Array | None], opset: int = 17, **attributes: Any) -> tuple[Any, Any]:
    """What numpy gives (None: nothing) and what the runtime gives (None: it fails)."""
    names = ["" if array is None else f"i{index}" for index, array in enumerate(arrays)]
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, arrays, strict=True)
        if array is not None
    ]
    node = helper.make_node(op_type, names, ["y"], **attributes)
    feeds = {name: array for name, array in zip(names, arrays, strict=True) if array is not None}
    fed = helper.make_graph([node], "g", infos, [ValueInfoProto(name="y")])
    constants = [numpy_helper.from_array(array, name) for name, array in feeds.items()]
    stored = helper.make_graph([node], "g", [], [ValueInfoProto(name="y")], constants)
    models = [
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8).SerializeToString()
        for graph in (fed, stored)
    ]
    (operator,) = load(models[1]).nodes()
    tensor = compute(operator, lambda value: value.const)
    try:
        expected = Session(models[0], JUDGE).run(feeds)["y"]
    except ExecutionError:
        expected = None
    return None if tensor is None else tensor.numpy(), expected


def check(op_type: str, arrays: list[Array | None], opset: int = 17, *, must: bool = True, **attributes: Any) -> None:
    got, expected = run_both(op_type, arrays, opset, **attributes)
    if expected is None:
        assert got is None, f"the runtime fails, numpy gives {got!r}"
        return
    if got is None:
        assert not must, f"numpy gives nothing, the runtime {expected!r}"
        return
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got, expected)


def integers(rank: int | None = None, dtype: Any = np.int64, low: int = -9, high: int = 9) -> st.SearchStrategy[Array]:
    shapes = st.lists(st.integers(1, 3), min_size=rank or 0, max_size=2 if rank is None else rank)
    edges = [item for item in EDGES if np.iinfo(dtype).min < item <= np.iinfo(dtype).max]
    items = st.one_of(st.integers(low, high), st.sampled_from(edges))
    return shapes.flatmap(
        lambda shape: st.lists(items, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))).map(
            lambda flat: np.array(flat, dtype).reshape(shape)
        )
    )


PAIRS = st.sampled_from([np.int64, np.int32]).flatmap(
    lambda kind: st.tuples(integers(dtype=kind), integers(dtype=kind))
)


@LIMITS
@given(
    st.sampled_from(["Add", "Sub", "Mul", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "Min", "Max"]),
    PAIRS,
)
def test_pairs(op_type: str, arrays: tuple[Array, Array]) -> None:
    check(op_type, list(arrays), must=False)


@LIMITS
@given(
    st.sampled_from([("Div", {}), ("Mod", {}), ("Mod", {"fmod": 1})]),
    PAIRS,
)
def test_division(operation: tuple[str, dict[str, int]], arrays: tuple[Array, Array]) -> None:
    check(operation[0], list(arrays), must=False, **operation[1])


@pytest.mark.parametrize("op_type", ["Div", "Mod"])
def test_division_that_would_end_the_process_is_not_made(op_type: str) -> None:
    least = np.array([np.iinfo(np.int64).min], np.int64)
    node = helper.make_node(op_type, ["a", "b"], ["y"])
    constants = [numpy_helper.from_array(least, "a"), numpy_helper.from_array(np.array([-1], np.int64), "b")]
    graph = helper.make_graph([node], "g", [], [ValueInfoProto(name="y")], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (operator,) = load(model).nodes()
    assert compute(operator, lambda value: value.const) is None


@LIMITS
@given(st.sampled_from(["Neg", "Abs", "Sign", "Identity"]), integers())
def test_single(op_type: str, array: Array) -> None:
    check(op_type, [array], must=op_type != "Sign")


@LIMITS
@given(st.sampled_from(["And", "Or", "Xor"]), st.lists(st.booleans(), min_size=1, max_size=4), st.booleans())
def test_logic(op_type: str, items: list[bool], other: bool) -> None:
    check(op_type, [np.array(items), np.array(other)])
    check("Not", [np.array(items)])
    check("Where", [np.array(items), np.array([1, 2, 3, 4], np.int64)[: len(items)], np.array(9, np.int64)])


@LIMITS
@given(
    integers(),
    st.sampled_from([TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL]),
    st.sampled_from([np.int64, np.int32, np.bool_]),
)
def test_cast(array: Array, target: int, dtype: Any) -> None:
    check("Cast", [array.astype(dtype)], to=target)


SLICE_BOUNDS = st.one_of(st.integers(-9, 9), st.sampled_from([LARGEST, -LARGEST - 1, 2**31 - 1]))
STEPS = st.one_of(st.integers(-3, 3), st.sampled_from([LARGEST, -LARGEST]))


@LIMITS
@given(st.integers(0, 5), st.integers(1, 3), st.data())
def test_slice(rows: int, columns: int, data: st.DataObject) -> None:
    array = np.arange(rows * columns, dtype=np.int64).reshape(rows, columns)
    axes = data.draw(st.lists(st.integers(-2, 1), min_size=1, max_size=2))
    count = len(axes)
    starts, ends = (data.draw(st.lists(SLICE_BOUNDS, min_size=count, max_size=count)) for _ in range(2))
    steps = data.draw(st.lists(STEPS, min_size=count, max_size=count))
    operands = [np.array(part, np.int64) for part in (starts, ends, axes, steps)]
    check("Slice", [array, *operands], must=False)


@pytest.mark.parametrize("step", [1, -1])
def test_slice_by_attributes(step: int) -> None:
    check("Slice", [np.arange(6, dtype=np.int64)], opset=9, starts=[-4], ends=[2**31 - 1], axes=[0])
    bounds = [np.array([number], np.int64) for number in (-4, 9)]
    check("Slice", [np.arange(6, dtype=np.int64), *bounds, None, np.array([step], np.int64)])


@LIMITS
@given(integers(rank=2), integers(), st.integers(-3, 2))
def test_gather(array: Array, indices: Array, axis: int) -> None:
    check("Gather", [array, indices], axis=axis)


@LIMITS
@given(st.lists(integers(rank=1), min_size=1, max_size=3), st.integers(-2, 1))
def test_concat(arrays: list[Array], axis: int) -> None:
    check("Concat", list(arrays), axis=axis)


@LIMITS
@given(integers(rank=2), st.lists(st.integers(-1, 6), max_size=3), st.sampled_from([0, 1]))
def test_reshape(array: Array, shape: list[int], allowzero: int) -> None:
    check("Reshape", [array, np.array(shape, np.int64)], must=False, allowzero=allowzero)


@pytest.mark.parametrize("shape", [[0, 0, 3], [0, -1], [3, 0], [0, 0], [-1, 3], [0, 3], [0], []])
@pytest.mark.parametrize("allowzero", [0, 1])
@pytest.mark.parametrize("data", [(0, 3), (2, 3), (3, 0), ()])
def test_reshape_of_empty_tensors(shape: list[int], allowzero: int, data: tuple[int, ...]) -> None:
    check("Reshape", [np.zeros(data, np.float32), np.array(shape, np.int64)], must=False, allowzero=allowzero)


@LIMITS
@given(st.lists(st.integers(1, 2), max_size=3), st.lists(st.integers(-5, 5), max_size=2))
def test_squeeze_and_unsqueeze(shape: list[int], axes: list[int]) -> None:
    array = np.zeros(shape, np.int64)
    check("Unsqueeze", [array, np.array(axes, np.int64)])
    check("Squeeze", [array, np.array(axes, np.int64)], must=False)
    check("Squeeze", [array])


@pytest.mark.parametrize("axes", [[0], [0, 2], [1]])
def test_axes_as_attributes(axes: list[int]) -> None:
    check("Unsqueeze", [np.zeros((2, 3), np.int64)], opset=11, axes=axes)
    check("Squeeze", [np.zeros((1, 1, 1, 2), np.int64)], opset=11, axes=axes)


@LIMITS
@given(st.integers(-4, 4), st.sampled_from([(2, 3), (), (0, 2), (1, 2, 3)]))
def test_flatten(axis: int, shape: tuple[int, ...]) -> None:
    check("Flatten", [np.zeros(shape, np.float32)], axis=axis)


@LIMITS
@given(st.integers(-40, 40), st.integers(-40, 40), st.integers(-4, 4), st.sampled_from([np.int64, np.int32]))
def test_range(start: int, limit: int, step: int, dtype: Any) -> None:
    few = step != 0 and len(range(start, limit, step)) <= 64
    check("Range", [np.array(number, dtype) for number in (start, limit, step)], must=few)


@LIMITS
@given(st.sampled_from(["ReduceSum", "ReduceProd", "ReduceMin", "ReduceMax"]), integers(rank=2), st.data())
def test_reductions(op_type: str, array: Array, data: st.DataObject) -> None:
    axes = data.draw(st.lists(st.integers(-3, 2), max_size=2))
    flags = {"keepdims": data.draw(st.integers(0, 1))}
    if op_type == "ReduceSum":
        flags["noop_with_empty_axes"] = data.draw(st.integers(0, 1))
        check(op_type, [array, np.array(axes, np.int64)], must=False, **flags)
    else:
        check(op_type, [array], must=False, axes=axes or [0], **flags)


@LIMITS
@given(st.lists(st.integers(0, 3), max_size=3), st.lists(st.integers(-1, 3), max_size=3))
def test_growing(shape: list[int], target: list[int]) -> None:
    array = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    check("Expand", [array, np.array(target, np.int64)], must=False)
    check("Tile", [array, np.array(target, np.int64)], must=False)
    seven = numpy_helper.from_array(np.array([7], np.int32))
    check("ConstantOfShape", [np.array(target, np.int64)], must=False, value=seven)


@LIMITS
@given(st.permutations([0, 1, 2]))
def test_transpose(perm: list[int]) -> None:
    check("Transpose", [np.arange(6, dtype=np.int64).reshape(1, 2, 3)], perm=perm)
    check("Transpose", [np.arange(6, dtype=np.int64).reshape(1, 2, 3)])


@LIMITS
@given(st.integers(-5, 5), st.one_of(st.none(), st.integers(-5, 5)))
def test_shape(start: int, end: int | None) -> None:
    attributes = {"start": start} if end is None else {"start": start, "end": end}
    check("Shape", [np.zeros((2, 0, 3), np.float32)], **attributes)
    check("Size", [np.zeros((2, 0, 3), np.float32)])


def test_large_tensors_are_left_to_the_runtime() -> None:
    got, _ = run_both("Add", [np.zeros(65, np.int64), np.zeros(65, np.int64)])
    assert got is None


def test_a_large_tensor_is_relabelled_without_copying() -> None:
    array = np.arange(1 << 16, dtype=np.float32).reshape(256, 256)
    constants = [numpy_helper.from_array(array, "w"), numpy_helper.from_array(np.array([-1, 128], np.int64), "s")]
    node = helper.make_node("Reshape", ["w", "s"], ["y"])
    graph = helper.make_graph([node], "g", [], [ValueInfoProto(name="y")], constants)
    loaded = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    (operator,) = loaded.nodes()
    tensor = compute(operator, lambda value: value.const)
    weight = operator.operands[0]
    assert tensor is not None
    assert weight is not None
    assert weight.const is not None
    assert tensor.shape == (512, 128)
    assert np.shares_memory(tensor.numpy(), weight.const.numpy())
