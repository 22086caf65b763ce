"""The evaluator: few runs, limits, and what happens where the runtime refuses, raises or dies."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

from graphopt import DType, Graph, Node, Tensor, Value, load
from graphopt.analysis.inference import Inference
from graphopt.onnxio import parse_text
from graphopt.runtime import folding
from graphopt.runtime.folding import NodeEvaluator
from graphopt.runtime.folding_batches import Limits
from graphopt.runtime.session import JUDGE, Session


def model_of(nodes: Sequence[Any], constants: dict[str, Any], outputs: Sequence[str], opset: int = 17) -> ModelProto:
    tensors = [
        array if isinstance(array, TensorProto) else numpy_helper.from_array(np.asarray(array), name)
        for name, array in constants.items()
    ]
    graph = helper.make_graph(nodes, "g", [], [ValueInfoProto(name=name) for name in outputs], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def inferred(model: ModelProto | bytes) -> Graph:
    graph = load(model)
    Inference(graph.model).run()
    return graph


def evaluated(
    graph: Graph, nodes: Sequence[Node] | None = None, **limits: Any
) -> tuple[dict[str, Tensor], NodeEvaluator]:
    evaluator = NodeEvaluator(graph.model, Limits(**limits))
    found = evaluator(graph.order() if nodes is None else nodes)
    return {value.name or "": tensor for value, tensor in found.items()}, evaluator


def node(op_type: str, operands: str, results: str, name: str = "", **attributes: Any) -> Any:
    return helper.make_node(op_type, operands.split(), results.split(), name=name, **attributes)


ONES = np.ones(3, np.float32)


# --- what is given back


def test_only_what_others_read_is_given_back() -> None:
    graph = inferred(
        model_of([node("Exp", "a", "b"), node("Neg", "b", "c"), node("Abs", "c", "d")], {"a": ONES}, ["d"])
    )
    found, evaluator = evaluated(graph)
    assert list(found) == ["d"]
    assert evaluator.sessions == 1
    np.testing.assert_allclose(found["d"].numpy(), np.exp(ONES), rtol=1e-6)


def test_a_part_of_the_nodes_gives_what_the_rest_reads() -> None:
    graph = inferred(
        model_of([node("Exp", "a", "b"), node("Neg", "b", "c"), node("Abs", "c", "d")], {"a": ONES}, ["d"])
    )
    found, _ = evaluated(graph, graph.order()[:2])
    assert list(found) == ["c"]


def test_a_read_inside_a_body_counts() -> None:
    text = """(bool which) => (float[2] y) <float[2] a = {1, 4}> {
        root = Sqrt(a)
        y = If(which) <then_branch = t () => (float[2] u) { u = Neg(root) },
                       else_branch = e () => (float[2] v) { v = Exp(root) }>
    }"""
    graph = inferred(parse_text(text, {"": 17}))
    found, _ = evaluated(graph, graph.order()[:1])
    assert found["root"].tolist() == [1, 2]


def test_nodes_of_a_body_read_constants_around_it() -> None:
    text = """(bool which) => (float[2] y) <float[2] a = {1, 4}> {
        y = If(which) <then_branch = t () => (float[2] u) <float[2] b = {1, 1}> { s = Add(a, b) u = Neg(s) },
                       else_branch = e () => (float[2] v) { v = Exp(a) }>
    }"""
    graph = inferred(parse_text(text, {"": 17}))
    body = graph.order()[0].bodies["then_branch"]
    found, _ = evaluated(body)
    assert found["u"].tolist() == [-2, -5]


def test_the_bits_are_those_of_the_unoptimized_runtime() -> None:
    rng = np.random.default_rng(3)
    nodes = [node("MatMul", "a b", "m"), node("Softmax", "m", "s"), node("Log", "s", "l"), node("ReduceMean", "l", "y")]
    constants = {"a": rng.normal(size=(5, 33)).astype(np.float32), "b": rng.normal(size=(33, 7)).astype(np.float32)}
    model = model_of(nodes, constants, ["y"])
    expected = Session(model.SerializeToString(), JUDGE).run({})["y"]
    found, _ = evaluated(inferred(model))
    assert found["y"].numpy().tobytes() == expected.tobytes()


# --- element types


@pytest.mark.parametrize(
    "dtype",
    [
        DType.INT4,
        DType.UINT4,
        DType.BFLOAT16,
        DType.FLOAT16,
        DType.FLOAT8E4M3FN,
        DType.FLOAT8E5M2,
        DType.INT8,
        DType.BOOL,
    ],
)
def test_element_types_are_kept_exactly(dtype: DType) -> None:
    constants = {"a": helper.make_tensor("a", int(dtype), [3], [1, 0, 1])}
    graph = inferred(model_of([node("Transpose", "a", "t"), node("Concat", "t t", "y", axis=0)], constants, ["y"], 21))
    found, evaluator = evaluated(graph)
    if "y" not in found:  # then the runtime cannot compute it, and says so
        assert evaluator.reasons
        return
    assert found["y"].dtype is dtype
    assert found["y"].shape == (6,)
    assert [float(item) for item in found["y"].numpy()] == [1, 0, 1, 1, 0, 1]


def test_sub_byte_results_are_packed_right() -> None:
    constants = {"a": np.array([-8, 7, 3, -1, 2], np.float32)}
    graph = inferred(model_of([node("Cast", "a", "y", to=TensorProto.INT4)], constants, ["y"], 21))
    found, _ = evaluated(graph)
    assert found["y"].dtype is DType.INT4
    assert bytes(found["y"].raw()) == bytes([0x78, 0xF3, 0x02])


def test_strings() -> None:
    strings = helper.make_tensor("a", TensorProto.STRING, [3], ["é".encode(), b"", b"a\0b"])
    graph = inferred(model_of([node("Concat", "a a", "c", axis=0), node("Identity", "c", "y")], {"a": strings}, ["y"]))
    found, _ = evaluated(graph)
    assert found["y"].numpy().tolist() == ["é".encode(), b"", b"a\0b"] * 2


def test_strings_that_are_not_text_stay() -> None:
    strings = helper.make_tensor("a", TensorProto.STRING, [1], [b"\xff"])
    graph = inferred(model_of([node("Concat", "a a", "y", axis=0)], {"a": strings}, ["y"]))
    found, evaluator = evaluated(graph)
    assert not found
    assert "UTF-8" in next(iter(evaluator.reasons.values()))


def test_sequences_are_passed_on_but_not_given_back() -> None:
    nodes = [
        node("SequenceConstruct", "a b", "s"),
        node("SequenceAt", "s i", "e"),
        node("Neg", "e", "y"),
        node("SequenceLength", "s", "n"),
    ]
    graph = inferred(model_of(nodes, {"a": ONES, "b": 2 * ONES, "i": np.array(1)}, ["y", "s", "n"]))
    found, _ = evaluated(graph)
    assert sorted(found) == ["n", "y"]
    assert found["n"].tolist() == 2
    assert found["y"].tolist() == [-2, -2, -2]


def test_a_scalar_and_an_empty_tensor() -> None:
    nodes = [node("ReduceSum", "a", "s", keepdims=0), node("Slice", "a n n", "z"), node("Exp", "z", "e")]
    graph = inferred(model_of(nodes, {"a": ONES, "n": np.array([0])}, ["s", "e"]))
    found, _ = evaluated(graph)
    assert found["s"].shape == ()
    assert found["s"].tolist() == 3
    assert found["e"].shape == (0,)


# --- failures


def test_a_node_without_kernel_costs_only_itself() -> None:
    bfloats = helper.make_tensor("b", TensorProto.BFLOAT16, [2], [1.0, 2.0])
    nodes = []
    for number in range(20):
        source = "b" if number % 3 == 0 else "a"
        nodes += [node("Add", f"{source} {source}", f"t{number}"), node("Cast", f"t{number}", f"y{number}", to=1)]
    graph = inferred(model_of(nodes, {"a": ONES, "b": bfloats}, [f"y{number}" for number in range(20)]))
    found, evaluator = evaluated(graph)
    assert sorted(found) == sorted(f"y{number}" for number in range(20) if number % 3)
    assert evaluator.sessions <= 6  # one tells of the operator at this type; the others of its kind are not tried
    assert set(evaluator.reasons.values()) == {"the runtime has no kernel for it"}


def test_a_node_that_raises_costs_only_itself() -> None:
    nodes = []
    for number in range(20):
        index = "far" if number in (3, 11) else "near"
        nodes += [node("Gather", f"a {index}", f"t{number}"), node("Neg", f"t{number}", f"y{number}")]
    graph = inferred(
        model_of(nodes, {"a": ONES, "near": np.array(1), "far": np.array(7)}, [f"y{number}" for number in range(20)])
    )
    found, evaluator = evaluated(graph)
    assert sorted(found) == sorted(f"y{number}" for number in range(20) if number not in (3, 11))
    assert sorted(node.results[0].name or "" for node in evaluator.reasons) == ["t11", "t3"]


def test_what_a_failing_node_reads_is_given_back() -> None:
    nodes = [node("Exp", "a", "b"), node("Gather", "b far", "c"), node("Neg", "c", "d")]
    graph = inferred(model_of(nodes, {"a": ONES, "far": np.array(7)}, ["d"]))
    found, _ = evaluated(graph)
    assert list(found) == ["b"]


def test_what_was_refused_is_not_tried_again_until_it_reads_something_else() -> None:
    graph = inferred(
        model_of([node("Gather", "a far", "y")], {"a": ONES, "far": np.array(7), "b": np.ones(9, np.float32)}, ["y"])
    )
    evaluator = NodeEvaluator(graph.model)
    (gather,) = graph.order()
    assert not evaluator([gather])
    sessions = evaluator.sessions
    assert not evaluator([gather])
    assert evaluator.sessions == sessions
    other = next(constant.result for constant in graph.constants() if constant.result.name == "b")
    graph.set_operand(gather, 0, other)
    graph.retype(gather.result, None)
    assert evaluator([gather])[gather.result].tolist() == 1


@pytest.mark.parametrize("op_type", ["Div", "Mod"])
@pytest.mark.parametrize("divisor", [0, -1])
def test_integer_division_that_may_end_the_process_never_runs_in_this_one(op_type: str, divisor: int) -> None:
    least = np.full(100, np.iinfo(np.int64).min)
    direct = inferred(model_of([node(op_type, "a b", "y")], {"a": least, "b": np.full(100, divisor)}, ["y"]))
    found, evaluator = evaluated(direct)
    assert not found
    assert evaluator.sessions == 0
    assert "divides by zero" in next(iter(evaluator.reasons.values()))
    # Where the divisor is computed beside it, only the worker can tell.
    nodes = [node("Add", "b zero", "c"), node(op_type, "a c", "y"), node("Neg", "f", "z")]
    constants = {"a": least, "b": np.full(100, divisor), "zero": np.zeros(100, np.int64), "f": ONES}
    found, evaluator = evaluated(inferred(model_of(nodes, constants, ["y", "z"])))
    assert sorted(found) == ["c", "z"]


def test_a_loop_without_end_is_stopped() -> None:
    text = """() => (float[1] y) <bool go = {1}, float[1] start = {1}> {
        half = Exp(start)
        y = Loop( , go, half) <body = b (int64 i, bool c, float[1] s) => (bool d, float[1] t) {
            d = Identity(c)
            t = Add(s, start)
        }>
    }"""
    graph = inferred(parse_text(text, {"": 17}))
    found, evaluator = evaluated(graph, call_seconds=1.5)
    assert list(found) == ["half"]
    assert next(iter(evaluator.reasons.values())) == "it takes too long"


def test_a_loop_that_eats_memory_is_stopped() -> None:
    text = """() => (float[N] y) <bool go = {1}, int64 n = {40}, float[1024] start = {1}> {
        y = Loop(n, go, start) <body = b (int64 i, bool c, float[M] s) => (bool d, float[K] t) {
            d = Identity(c)
            t = Concat<axis = 0>(s, s)
        }>
    }""".replace("float[1024] start = {1}", "float[4] start = {1, 1, 1, 1}")
    graph = inferred(parse_text(text, {"": 17}))
    found, evaluator = evaluated(graph, worker_bytes=600 << 20)
    assert not found
    assert next(iter(evaluator.reasons.values())) in (
        "it takes too much memory",
        "the runtime refuses it or fails on it",
    )


def test_when_the_time_is_used_up_the_rest_stays() -> None:
    graph = inferred(model_of([node("NonZero", "a", "y"), node("Neg", "a", "z")], {"a": ONES}, ["y", "z"]))
    graph.retype(graph.order()[0].result, None)  # nobody knows how large it will be
    found, evaluator = evaluated(graph, total_seconds=0.0)
    assert list(found) == ["z"]
    assert list(evaluator.reasons.values()) == ["it takes too long"]


def test_a_result_unlike_its_type_is_refused() -> None:
    graph = inferred(model_of([node("Exp", "a", "b"), node("Neg", "b", "y")], {"a": ONES}, ["y"]))
    from graphopt import TensorType

    neg = graph.order()[1]
    graph.retype(neg.result, TensorType(DType.FLOAT, (4,)))
    found, evaluator = evaluated(graph)
    assert "y" not in found
    assert "not what its type says" in evaluator.reasons[neg]


def test_without_the_runtime_small_integers_are_still_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    from graphopt.errors import ProviderMissingError

    def missing(*_: object, **__: object) -> None:
        raise ProviderMissingError("onnxruntime cannot be used; install it")

    monkeypatch.setattr(folding, "evaluate_model", missing)
    nodes = [node("Add", "i i", "j"), node("Neg", "a", "y"), node("Exp", "a", "z")]
    graph = inferred(model_of(nodes, {"a": ONES, "i": np.array([3])}, ["j", "y", "z"]))
    found, evaluator = evaluated(graph)
    assert found["j"].tolist() == [6]
    assert list(found) == ["j"]
    assert evaluator.sessions == 1


# --- limits and speed


def test_small_integers_need_neither_session_nor_runtime() -> None:
    nodes = [node("Shape", "w", "s"), node("Gather", "s i", "g"), node("Mul", "g g", "y")]
    model = model_of(nodes, {"w": np.zeros((3, 4), np.float32), "i": np.array([1])}, ["y"])
    code = f"""
import sys
from graphopt import load
from graphopt.runtime.folding import NodeEvaluator
graph = load({model.SerializeToString()!r})
found = NodeEvaluator(graph.model)(graph.order())
assert [tensor.tolist() for tensor in found.values()] == [[16]], found
assert "onnxruntime" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_batches_are_bounded_in_nodes_and_bytes() -> None:
    nodes = [node("Exp", "a" if index == 0 else f"t{index - 1}", f"t{index}") for index in range(10)]
    constants = {"a": np.full(1000, -1, np.float32)}
    expected, whole = evaluated(inferred(model_of(nodes, constants, ["t9"])))
    for limits in ({"batch_nodes": 3}, {"batch_bytes": 13_000}):
        found, evaluator = evaluated(inferred(model_of(nodes, constants, ["t9"])), **limits)
        assert list(found) == ["t9"]
        assert found["t9"].equals(expected["t9"])
        assert evaluator.sessions >= 4
    assert whole.sessions == 1


def test_a_node_that_is_too_large_is_not_run() -> None:
    nodes = [node("ConstantOfShape", "s", "b"), node("ReduceSum", "b", "y"), node("Neg", "a", "z")]
    graph = inferred(model_of(nodes, {"s": np.array([1 << 20, 1 << 20]), "a": ONES}, ["y", "z"]))
    found, evaluator = evaluated(graph)
    assert list(found) == ["z"]
    assert "too large" in next(iter(evaluator.reasons.values()))


def test_weights_are_neither_serialized_nor_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, dict[str, Any]]] = []
    real = folding.evaluate_model

    def spy(model: bytes, feeds: dict[str, Any], **options: Any) -> Any:
        seen.append((len(model), feeds))
        return real(model, feeds, **options)

    monkeypatch.setattr(folding, "evaluate_model", spy)
    weight = np.ones((512, 512), np.float32)
    graph = inferred(model_of([node("Transpose", "w", "t"), node("Neg", "t", "y")], {"w": weight}, ["y"]))
    evaluated(graph)
    ((size, feeds),) = seen
    stored = graph.constants()[0].tensor
    assert size < 1000
    assert stored is not None
    assert np.shares_memory(next(iter(feeds.values())), stored.numpy())


def test_many_nodes_take_linear_time() -> None:
    nodes = [node("Mul", f"c{index} k", f"y{index}") for index in range(3000)]
    constants: dict[str, Any] = {f"c{index}": np.full(4, index, np.float32) for index in range(3000)}
    graph = inferred(
        model_of(nodes, {**constants, "k": np.full(4, 2, np.float32)}, [f"y{index}" for index in range(3000)])
    )
    found, evaluator = evaluated(graph)
    assert len(found) == 3000
    assert evaluator.sessions == 8
    assert found["y2999"].tolist() == [5998] * 4


def test_functions_have_an_opset_of_their_own() -> None:
    text = """
        (float[2] x) => (float[2] y) { y = local.f(x) }
        <opset_import: ["" : 11], domain: "local">
        f (a) => (b) {
            k = Constant<value = float[1, 2] {1, 4}>()
            root = Sqrt(k)
            flat = Squeeze<axes = [0]>(root)
            b = Mul(a, flat)
        }
    """
    graph = inferred(parse_text(text, {"": 17, "local": 1}))
    (function,) = graph.model.functions.values()
    nodes = function.graph.order()[:2]
    evaluator = NodeEvaluator(graph.model)
    found = evaluator([*nodes])
    assert [tensor.tolist() for tensor in found.values()] == [[1, 2]]


def test_values_are_those_of_the_graph() -> None:
    graph = inferred(
        model_of([node("Exp", "a", "b"), node("Split", "b", "p q", axis=0)], {"a": np.ones(4, np.float32)}, ["q"], 13)
    )
    found = NodeEvaluator(graph.model)(graph.order())
    split = graph.order()[1]
    assert isinstance(next(iter(found)), Value)
    assert list(found) == [split.results[1]]
