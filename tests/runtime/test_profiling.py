from __future__ import annotations

import numpy as np
import onnx
import pytest
from runtime_models import text_model

from graphopt.runtime import Touched, benchmark, device_memory
from graphopt.runtime.contents import count_operators, node_names
from graphopt.runtime.cupti import Collector, Kernel, _plain
from graphopt.runtime.hotspots import BY_RUNTIME, UNTOUCHED, profile_of
from graphopt.runtime.placement import graph_here, placement_of
from graphopt.runtime.profiling import Look, NodeTime, look_here, read_events
from graphopt.runtime.session import CPU, CUDA, Session, SessionSettings
from graphopt.runtime.sources import ModelSource
from graphopt.runtime.timing import default_settings

BRANCHES = text_model(
    "(bool c, float[4, 4] x) => (float[4, 4] y) { [outer] z = MatMul(x, x) [choice] y = If(c) <"
    "then_branch = t () => (float[4, 4] a) { [inner] a = MatMul(z, x) },"
    "else_branch = e () => (float[4, 4] b) { [other] b = Neg(z) }> }"
)


def named(nodes: str) -> bytes:
    model = onnx.ModelProto.FromString(text_model(f"(float[8, 8] x) => (float[8, 8] y) {{ {nodes} }}"))
    for node in model.graph.node:
        node.name = f"node_{node.output[0]}"
    return bytes(model.SerializeToString())


def event(name: str, operator: str, start: float, duration: float, provider: str = CPU) -> dict[str, object]:
    arguments = {"op_name": operator, "provider": provider}
    return {"cat": "Node", "name": f"{name}_kernel_time", "ts": start, "dur": duration, "args": arguments}


def run_at(start: float) -> dict[str, object]:
    return {"cat": "Session", "name": "model_run", "ts": start, "dur": 90, "args": {}}


def test_only_the_last_runs_count_and_bodies_are_taken_out() -> None:
    look = Look(runs=1)
    events = [run_at(0), event("if", "If", 1, 900), run_at(1000)]
    events += [event("if", "If", 1010, 50), event("inner", "Add", 1020, 30), event("after", "Mul", 1061, 5)]
    read_events(look, events)
    assert {node.name: (node.microseconds, node.calls) for node in look.nodes} == {
        "if": (20.0, 1),
        "inner": (30.0, 1),
        "after": (5.0, 1),
    }


def test_kernels_belong_to_the_node_that_launched_them() -> None:
    look = Look(runs=1, kernel_runs=1)
    events = [run_at(0), event("a", "MatMul", 1, 2, CUDA), event("b", "If", 5, 9, CUDA), run_at(100)]
    events += [event("a", "MatMul", 110, 20, CUDA), event("b", "If", 140, 40, CUDA), event("c", "Add", 150, 5, CUDA)]
    begin = 1_000_000
    launched = {"gemm": 115, "setup": 135, "copy": 145, "sum": 152, "more": 170}
    kernels = [Kernel(name, begin + at * 1000, 7000) for name, at in launched.items()]
    read_events(look, events, kernels, begin)
    assert {kernel.name: kernel.node for kernel in look.kernels} == {
        "gemm": "a",
        "setup": "",
        "copy": "b",
        "sum": "c",
        "more": "b",
    }
    assert [kernel.operator for kernel in look.kernels] == ["MatMul", "", "If", "", "If"]
    assert all(kernel.microseconds == 7 for kernel in look.kernels)
    assert {node.name: node.microseconds for node in look.nodes} == {"a": 2.0, "b": 9.0}  # the slower runs are left out


def test_names_of_kernels_are_readable() -> None:
    assert _plain(b"_ZN11onnxruntime4cuda17_UnaryElementWiseI6__halfEEvPKT_") == "_UnaryElementWise"
    assert _plain(b"ampere_sgemm_128x64_tn") == "ampere_sgemm_128x64_tn"
    assert Collector().stop() == []


def test_placement_tells_what_the_cpu_was_left_with() -> None:
    assigned = [("a", "MatMul", CUDA), ("b", "Shape", CPU), ("c", "MemcpyToHost", CUDA), ("a", "MatMul", CUDA)]
    found = placement_of(assigned, {"MatMul": 1, "Shape": 1, "MemcpyToHost": 1, "Neg": 1}, CUDA)
    assert (found.nodes, found.copies) == (4, 1)
    assert found.providers == {CUDA: 2, CPU: 1}
    assert found.on_host == {"Shape": 1}
    assert placement_of(assigned, None, CUDA).nodes == 3


def test_the_graph_that_runs_is_smaller_than_the_file() -> None:
    model = text_model("(float[8] x) => (float[8] y) { a = Identity(x) b = Identity(a) c = Neg(b) y = Abs(c) }")
    provider, operators = graph_here(model, default_settings(CPU, 1, ()))
    assert provider == CPU
    assert operators == {"Abs": 1, "Neg": 1}


def test_a_look_sees_memory_nodes_and_branches_not_taken() -> None:
    feeds = {"c": np.asarray(True), "x": np.ones((4, 4), np.float32)}
    look = look_here(BRANCHES, default_settings(CPU, 1, ()), feeds, 4, 1.0, True, len(BRANCHES))
    assert look.runs >= 1
    assert look.peak_bytes is None or look.peak_bytes > 1 << 20
    assert look.device_bytes is None
    assert look.placement is not None
    assert look.placement.nodes == 4
    assert look.placement.providers == {CPU: 3}
    assert sorted(node.operator for node in look.nodes) == ["If", "MatMul", "MatMul"]


def test_rows_name_operators_and_the_rules_that_touched_nodes() -> None:
    sources = (
        ModelSource("a", data=named("a = Neg(x) b = Neg(a) y = Abs(b)")),
        ModelSource("b", data=named("b = Neg(x) y = Abs(b)")),
    )
    looks = (
        Look(runs=1, nodes=[NodeTime(f"node_{n}", "Neg", durations=[3.0]) for n in "ab"]),
        Look(
            runs=1, nodes=[NodeTime("node_b", "Neg", durations=[2.0]), NodeTime("fused_thing", "Gelu", durations=[1])]
        ),
    )
    looks[0].nodes.append(NodeTime("node_y", "Abs", durations=[4.0]))
    looks[1].nodes.append(NodeTime("wrapped/node_y/Fusion", "Abs", durations=[4.0]))
    touched = Touched({"node_a": "involutions/two"}, {"node_y": "views/one"})
    profile = profile_of(looks, sources, touched)
    assert profile is not None
    assert profile.clock == "host"
    assert {row.name: (row.original_ms, row.rewritten_ms) for row in profile.operators} == {
        "Neg": (0.006, 0.002),
        "Abs": (0.004, 0.004),
        "Gelu": (0.0, 0.001),
    }
    assert {row.name: (row.original_count, row.rewritten_count) for row in profile.rewrites} == {
        "involutions/two": (1, 0),
        UNTOUCHED: (2, 1),
        "views/one": (0, 1),
        BY_RUNTIME: (0, 1),
    }
    assert sum(row.original_share for row in profile.operators) == pytest.approx(1)
    assert profile_of((looks[0], Look()), sources, touched) is None


def test_bench_profiles_in_other_processes() -> None:
    before, after = named("a = MatMul(x, x) b = Tanh(a) y = Abs(b)"), named("a = MatMul(x, x) y = Abs(a)")
    result = benchmark(before, after, threads=1, max_time=1.0, memory=False, profile=True)
    assert result.profile is not None
    rows = {row.name: (row.original_count, row.rewritten_count) for row in result.profile.operators}
    assert rows == {"MatMul": (1, 1), "Tanh": (1, 0), "Abs": (1, 1)}
    assert result.profile.rewrites == ()
    assert result.profile.to_json()["clock"] == "host"


def test_contents_count_functions_and_bodies() -> None:
    source = ModelSource("m", data=BRANCHES)
    assert count_operators(source) == {"MatMul": 2, "If": 1, "Neg": 1}
    assert node_names(ModelSource("m", data=named("y = Neg(x)"))) == {"node_y"}
    with pytest.raises(ValueError, match="not a readable model"):
        count_operators(ModelSource("m", data=b"nonsense" * 4))


def test_device_memory_is_unknown_without_a_device_and_says_so() -> None:
    known = device_memory.device_bytes()
    assert known is None or known > 0
    assert bool(device_memory.reason()) == (known is None)
    if known is None:
        assert device_memory.own_device_bytes() is None


@pytest.mark.gpu
def test_device_memory_grows_with_a_session(cuda: str) -> None:
    before = device_memory.device_bytes()
    assert before is not None
    session = Session(BRANCHES, SessionSettings(provider=CUDA))
    after = device_memory.device_bytes()
    assert session.info.provider == CUDA
    assert after is not None
    assert after > before
