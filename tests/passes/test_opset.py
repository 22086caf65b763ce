"""Conversion between opsets: nothing forgotten, nothing changed in meaning, nothing converted by half."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper
from pass_runs import assert_equal, floats, model_of, nodes_of, operators

from graphopt import load, optimize, schema
from graphopt.analysis.inference import Inference
from graphopt.errors import OpsetError, UsageError
from graphopt.ir import Journal, check_model
from graphopt.pipeline import Context, Options, load_registry
from passes._opset_changes import CHANGES, converted
from passes._opset_spelling import Refusal

X = {"x": floats(2, 3, 4)}


def convert(
    text: str, source: int, target: int, *, feeds: Any = (X,), numeric: str = "E", imports: str = ""
) -> ModelProto:
    """The model in the other opset, which gives the same numbers."""
    model = model_of(f"g {text}", opset=source, imports=imports)
    result = optimize(model, opset=target, passes=["lowering", "opset"], strict=True).model
    assert {entry.domain: entry.version for entry in result.opset_import}[""] == target
    assert_equal(model, result, feeds, numeric)
    return result


def refusal(text: str, source: int, target: int) -> str:
    """Why a model is not converted."""
    model = model_of(f"g {text}", opset=source)
    with pytest.raises(OpsetError) as caught:
        optimize(model, opset=target, passes=["lowering", "opset"], strict=True)
    return str(caught.value)


# --- nothing forgotten


def test_every_change_of_every_operator_is_told_of() -> None:
    """Whoever installs an onnx with a new opset learns here what to look at."""
    missing = [
        (op_type, version)
        for op_type in schema.operator_names()
        for version in schema.versions(op_type)[1:]
        if version > 7 and (op_type, version) not in CHANGES
    ]
    assert not missing


def test_no_change_is_told_of_that_there_is_not() -> None:
    introduced = {("Resize", 10), ("ScatterElements", 11)}  # under another name before
    wrong = [
        (op_type, version)
        for op_type, version in CHANGES
        if version not in schema.versions(op_type)[1:] and (op_type, version) not in introduced
    ]
    assert not wrong


def test_what_is_not_told_of_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(CHANGES, ("Relu", 14))
    assert "what opset 14 changed in Relu is not known" in refusal(
        "(float[2] x) => (float[2] y) { y = Relu(x) }", 13, 14
    )


@pytest.mark.parametrize("op_type", schema.operator_names())
def test_every_operator_gets_over_every_change_or_says_why_not(op_type: str) -> None:
    """A bare application, without parameters: it is written, or refused in words; it never fails."""
    said: list[str] = []
    for source in range(7, schema.latest_opset() + 1):
        operator = schema.operator("", op_type, source)
        if operator is None or operator.is_deprecated or operator.since not in (source, 7):
            continue
        names = [f"x{index}" for index in range(operator.min_inputs)]
        outputs = [f"y{index}" for index in range(max(operator.min_outputs, 1))]
        node = helper.make_node(op_type, names, outputs)
        inputs = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names]
        graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name=name) for name in outputs])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", source)])
        (applied,) = load(model).nodes()
        for target in range(7, schema.latest_opset() + 1):
            try:
                converted(applied, source, target)
            except Refusal as why:
                said.append(str(why))
            except (TypeError, KeyError):
                assert operator.required, "only a missing required attribute may be stumbled over"
    assert all(said)


# --- the whole model or nothing


def test_the_message_names_node_and_reason_and_nothing_is_converted() -> None:
    text = "(float[2,3] x) => (float[2,3] y) { [first] s = Softmax<axis = 0>(x)  [bits] y = Mish(s) }"
    model = model_of(f"g {text}", opset=18)
    with pytest.raises(
        OpsetError, match=r"cannot be converted to opset 12: Mish 'bits': Mish does not exist before opset 18"
    ):
        optimize(model, opset=12, passes=["opset"])


def test_opsets_out_of_range_are_a_usage_error() -> None:
    model = model_of("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    for opset in (6, schema.latest_opset() + 1):
        with pytest.raises(UsageError, match="is not known"):
            optimize(model, opset=opset)


def test_leaving_the_pass_out_is_an_error() -> None:
    model = model_of("g (float[2] x) => (float[2] y) { y = Relu(x) }", opset=18)
    with pytest.raises(OpsetError, match="do not leave it out"):
        optimize(model, opset=17, skip=["opset"])


def test_a_stopped_run_is_no_error() -> None:
    model = model_of("g (float[2] x) => (float[2] y) { y = Relu(x) }", opset=18)
    assert optimize(model, opset=17, stop_after=0).graph.opsets[""] == 18


def test_a_runtime_that_does_not_know_the_opset_is_remarked() -> None:
    from graphopt import runtime

    newest = schema.latest_opset()
    if runtime.loads_opset(newest):
        pytest.skip("the runtime knows every opset onnx knows")
    result = optimize(model_of("g (float[2] x) => (float[2] y) { y = Relu(x) }"), opset=newest)
    assert any("does not load models of opset" in note for note in result.report.notes)


def test_it_can_be_undone() -> None:
    model = model_of(
        "g (float[2,3,4] x) => (float[2,3] y) { s = Softmax<axis = 1>(x)  y = ReduceSum<axes = [2], keepdims = 0>(s) }",
        opset=11,
        ir_version=3,
    )
    graph = load(model)
    context, journal = Context(Inference(graph.model), Options(opset=21)), Journal()
    context.inference.run()
    registry = load_registry()
    from graphopt.pipeline.passes import Settled

    with graph.model.listening(journal):
        registry.find("opset").run(graph.model, context, frozenset(), Settled())
    assert graph.opsets[""] == 21
    assert graph.model.ir_version == 10
    check_model(graph.model)
    journal.roll_back()
    from graphopt import to_proto

    assert to_proto(graph) == model


def test_computed_parameters_that_folding_makes_constant_are_converted() -> None:
    model = model_of(
        """g (float[2,3,4] x) => (float[2,3] y) <int64[1] a = {1}, int64[1] b = {1}> {
            c = Add(a, b)
            y = ReduceSum<keepdims = 0>(x, c)
        }""",
        opset=13,
    )
    result = optimize(model, opset=11).model
    (node,) = nodes_of(result.graph)
    assert [item.name for item in node.attribute if item.name == "axes"]
    assert_equal(model, result, (X,))


def test_an_initializer_listed_as_an_input_stays_a_constant() -> None:
    """From IR version 4 on, which newer opsets want, it would be one a caller may override."""
    model = model_of(
        "g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1.0, 2.0}> { y = Add(x, w) }", opset=8, ir_version=3
    )
    result = optimize(model, opset=13, passes=["opset"]).model
    assert [info.name for info in result.graph.input] == ["x"]
    assert result.ir_version >= 7


def test_bodies_and_functions_are_converted() -> None:
    model = model_of(
        """g (float[2,3] x, bool c) => (float[2] y) {
            y = If (c) <
                then_branch = a () => (float[2] t) { t = ReduceSum<axes = [1], keepdims = 0>(x) },
                else_branch = b () => (float[2] e) { e = local.last(x) }
            >
        }
        <domain: "local", opset_import: ["" : 11]> last (v) => (w) { w = ReduceSum<axes = [1], keepdims = 0>(v) }
        """,
        opset=11,
        imports='"local" : 1',
    )
    result = optimize(model, opset=18, passes=["opset"], strict=True).model
    feeds = [{"x": floats(2, 3), "c": np.array(value)} for value in (True, False)]
    assert_equal(model, result, feeds)
    assert [entry.version for entry in result.functions[0].opset_import if entry.domain == ""] == [18]


def test_an_attribute_of_the_caller_becomes_a_constant_of_the_function() -> None:
    text = """g (float[2,3] x) => (float[2] y) { y = local.total<axes = [1]>(x) }
        <domain: "local", opset_import: ["" : 12]> total <axes> (v) => (w) {
            w = ReduceSum<axes: ints = @axes, keepdims = 0>(v)
        }
        """
    model = model_of(text, opset=12, imports='"local" : 1')
    result = optimize(model, opset=18, passes=["opset"], strict=True).model
    assert_equal(model, result, ({"x": floats(2, 3)},))


# --- operator by operator

CASES = {
    "axes": ("(float[2,3,4] x) => (float[2,3] y) { y = ReduceMean<axes = [-1], keepdims = 0>(x) }", 11),
    "squeeze": (
        "(float[2,3,4] x) => (float[2,3,4] y) { u = Unsqueeze<axes = [0, 2]>(x)  y = Squeeze<axes = [0, 2]>(u) }",
        11,
    ),
    "split": ("(float[2,3,4] x) => (float[2,3,2] y, float[2,3,2] z) { y, z = Split<axis = 2>(x) }", 11),
    "sizes": (
        "(float[2,3,4] x) => (float[2,3,1] y, float[2,3,3] z) { y, z = Split<axis = -1, split = [1, 3]>(x) }",
        11,
    ),
    "clip": ("(float[2,3,4] x) => (float[2,3,4] y) { y = Clip<min = -0.5>(x) }", 7),
    "pad": ("(float[2,3,4] x) => (float[2,3,7] y) { y = Pad<pads = [0,0,1,0,0,2], value = 2.5>(x) }", 7),
    "slice": (
        "(float[2,3,4] x) => (float[2,2,3] y) { y = Slice<starts = [0, -3], ends = [2, 9], axes = [1, 2]>(x) }",
        7,
    ),
    "dropout": ("(float[2,3,4] x) => (float[2,3,4] y) { y = Dropout<ratio = 0.25>(x) }", 7),
    "topk": ("(float[2,3,4] x) => (float[2,3,2] y, int64[2,3,2] i) { y, i = TopK<k = 2>(x) }", 7),
    "softmax": ("(float[2,3,4] x) => (float[2,3,4] y) { y = Softmax(x) }", 7),
    "first": ("(float[2,3,4] x) => (float[2,3,4] y) { y = LogSoftmax<axis = 0>(x) }", 9),
    "last": ("(float[2,3,4] x) => (float[2,3,4] y) { y = Hardmax<axis = 2>(x) }", 7),
    "maximum": ("(float[2,3,4] x) => (float[2,3,4] y) { y = Max(x, x) }", 7),
    "upsample": (
        '(float[1,1,2,2] x) => (float[1,1,4,4] y) { y = Upsample<mode = "nearest", scales = [1.0, 1.0, 2.0, 2.0]>(x) }',
        7,
    ),
    "linear": (
        '(float[1,1,2,2] x) => (float[1,1,4,4] y) { y = Upsample<mode = "linear", scales = [1.0, 1.0, 2.0, 2.0]>(x) }',
        7,
    ),
    "normalization": (
        "(float[2,3,4] x) => (float[2,3,4] y) <float[3] s = {1.0, 2.0, 3.0}> { y = BatchNormalization(x, s, s, s, s) }",
        7,
    ),
    "power": ("(float[2,3,4] x) => (float[2,3,4] y) <float e = {2.0}> { y = Pow(x, e) }", 7),
    "pooling": ("(float[2,3,4] x) => (float[2,3,2] y) { y = AveragePool<kernel_shape = [2], strides = [2]>(x) }", 7),
}
FEEDS = {"upsample": ({"x": floats(1, 1, 2, 2)},), "linear": ({"x": floats(1, 1, 2, 2)},)}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", [9, 10, 11, 12, 13, 14, 15, 18, 19, 20, 21, 22, 23, 25])
def test_up_and_back(name: str, target: int) -> None:
    text, source = CASES[name]
    feeds = FEEDS.get(name, (X,))
    there = convert(text, source, target, feeds=feeds)
    back = optimize(there, opset=max(source, 11), passes=["constant_folding", "opset"], strict=True).model
    assert_equal(there, back, feeds)


@pytest.mark.parametrize(
    ("text", "source", "target"),
    [
        ("(float[2,3,4] x) => (float[2,3,4] y) { y = Softmax<axis = 1>(x) }", 13, 11),
        ("(float[2,3,4] x) => (int64[2] y) { y = Shape<start = 1, end = 3>(x) }", 15, 13),
        ("(float[2,3,4] x) => (float[2,2,4] y, float[2,1,4] z) { y, z = Split<axis = 1, num_outputs = 2>(x) }", 18, 13),
        ("(float[2,3,4] x) => (float[2,5,4] y) <int64[2] p = {1,1}, int64[1] a = {-2}> { y = Pad(x, p, , a) }", 18, 13),
        ("(float[2,3,4] x) => (float[2,3,4] y) { y = ReduceSum<noop_with_empty_axes = 1>(x) }", 13, 11),
        ("(float[2,3,4] x) => (float[2,3,4] y) { y = ReduceSumSquare<noop_with_empty_axes = 1>(x) }", 18, 13),
        ("(float[2,3,4] x) => (float[2,3,4] y) <int64 e = {2}> { y = Pow(x, e) }", 13, 7),
        ("(float[2,3,4] x) => (float[2,12] y) <int64[2] s = {2,12}> { y = Reshape<allowzero = 1>(x, s) }", 14, 13),
        ("(float[2,3,4] x) => (float[2,1,4] y) <int64[1] i = {-1}> { y = Gather<axis = 1>(x, i) }", 13, 10),
        ("(float[2,3] x) => (float[2,4] y) <float[3,4] w = {1,2,3,4,5,6,7,8,9,10,11,12}> { y = Gemm(x, w) }", 13, 9),
        ("(float[1,3,4,2] x) => (float[1,3,4,2] y) { y = DFT<axis = 2>(x) }", 17, 20),
        (
            '(float[1,1,4,4] x, float[1,2,2,2] g) => (float[1,1,2,2] y) { y = GridSample<mode = "bicubic">(x, g) }',
            16,
            20,
        ),
        ("(float[2,3,4] x) => (bool[2,3,4] y) { y = GreaterOrEqual(x, x) }", 16, 11),
    ],
)
def test_changes_of_meaning(text: str, source: int, target: int) -> None:
    model = model_of(f"g {text}", opset=source)
    feeds = (
        {info.name: floats(*(dim.dim_value for dim in info.type.tensor_type.shape.dim)) for info in model.graph.input},
    )
    convert(text, source, target, feeds=feeds, numeric="R" if "DFT" in text else "E")


@pytest.mark.parametrize(
    ("text", "source", "target", "reason"),
    [
        ("(float[2,3] x, int64[1] a) => (float[n,3] y) { y = ReduceSum(x, a) }", 13, 11, "'axes' is computed"),
        (
            "(float[2,3] x) => (float[2,3] y) { y = Dropout<seed = 1>(x) z, m = Dropout(x) t = Not(m) }",
            12,
            10,
            "mask is read",
        ),
        (
            "(float[2,3] x) => (float[2,3] y) { y = Relu(x) s = Cast<to = 17>(y) t = Cast<to = 1>(s) }",
            19,
            18,
            "float8e4m3fn",
        ),
        (
            """(float[1,1,5,5] x) => (float[1,1,n,m] y) {
                y = MaxPool<kernel_shape = [1,1], strides = [3,3], ceil_mode = 1, pads = [0,0,2,2]>(x)
            }""",
            21,
            22,
            "last window",
        ),
        (
            """(float[3,4] x) => (float[n,4] y, float[m,4] z) {
                y, z = Split<num_outputs = 2>(x)
                w = NonZero(x)
                a, b = Split<num_outputs = 2, axis = 1>(w)
            }""",
            18,
            13,
            "may not be equal",
        ),
        ('(float[2,3] x, int64[2] s) => (float[2,3] y) { y = Pad<mode = "wrap">(x, s) }', 19, 18, "wrapping"),
        (
            """(float[2,3,4] x, float[3] s) => (float[2,3,4] y, float[3] a, float[3] b, float[3] c, float[3] d) {
                y, a, b, c, d = BatchNormalization(x, s, s, s, s)
            }""",
            9,
            14,
            "trains",
        ),
        (
            "(float[1,1,2,2] x) => (float[1,1,1,1] y) <float[4] s = {1.0, 1.0, 0.5, 0.5}> { y = Resize(x, s) }",
            10,
            11,
            "shrink",
        ),
        ("(int64[2] x) => (int64[2] y) { y = Mul(x, x) z = Max(x, x) }", 12, 11, "int64"),
    ],
)
def test_refusals(text: str, source: int, target: int, reason: str) -> None:
    assert reason in refusal(text, source, target)


def test_a_scale_for_each_group_becomes_one_for_each_channel() -> None:
    text = """(float[2,6,4] x) => (float[2,6,4] y) <float[2] s = {1.0, 2.0}> {
        y = GroupNormalization<num_groups = 2>(x, s, s)
    }"""
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 18]> g {text}'
    )  # the checker takes it no more
    result = optimize(model, opset=21, passes=["opset"], strict=True).model
    scale = next(item for item in result.graph.initializer if item.name == result.graph.node[0].input[1])
    assert onnx.numpy_helper.to_array(scale).tolist() == [1, 1, 1, 2, 2, 2]


def test_constants_of_other_forms_are_tensors_before_opset_12() -> None:
    result = convert(
        "(float[2,3,4] x) => (float[2,3,4] y) { c = Constant<value_floats = [2.0]>()  y = Mul(x, c) }", 13, 11
    )
    assert [item.name for node in result.graph.node if node.op_type == "Constant" for item in node.attribute] == [
        "value"
    ]


def test_a_zero_scale_dim_is_kept() -> None:
    """Flattening for Softmax is undone for empty dims, too."""
    text = "(float[n,m,4] x) => (float[n,m,4] y) { y = Softmax<axis = 2>(x)  z = Softmax<axis = 1>(x) }"
    for shape in ((2, 3, 4), (0, 3, 4), (2, 0, 4)):
        convert(text, 11, 14, feeds=({"x": floats(*shape)},))
    assert "flattens" in refusal("(float[n,m,k] x) => (float[n,m,k] y) { y = Softmax<axis = 0>(x) }", 11, 13)


def test_attention_is_written_in_parts() -> None:
    text = """(float[1,4,3,8] q, float[1,2,5,8] k, float[1,2,5,8] v, bool[3,5] m) => (float[1,4,3,8] y) {
        y = Attention<is_causal = 1, softcap = 2.0>(q, k, v, m)
    }"""
    mask = np.ones((3, 5), bool)
    mask[1, :2] = False
    feed = {"q": floats(1, 4, 3, 8), "k": floats(1, 2, 5, 8, seed=1), "v": floats(1, 2, 5, 8, seed=2), "m": mask}
    result = convert(text, 23, 14, feeds=(feed,), numeric="R")
    assert "Attention" not in operators(result)


def test_a_loop_without_condition_and_states_keeps_its_place_for_both() -> None:
    model = model_of(
        """g (float[2] x, int64 n) => (float[M,2] z) {
            z = Loop(n, "") <body = b (int64 i, bool go) => (bool again, float[2] q) {
                again = Identity(go)
                f = Cast<to = 1>(i)
                q = Add(x, f)
            }>
        }""",
        opset=17,
    )
    result = optimize(model, opset=20, strict=True).model
    assert [len(node.input) for node in result.graph.node if node.op_type == "Loop"] == [2]
    assert_equal(model, result, ({"x": floats(2), "n": np.array(3)},))


def test_exactly_no_average_is_taken_by_another_kernel() -> None:
    text = "g (float[1,2,4,4] x) => (float[1,2,2,2] y) { y = AveragePool<kernel_shape = [2,2], strides = [2,2]>(x) }"
    model = model_of(text, opset=17)
    with pytest.raises(OpsetError, match="round otherwise"):
        optimize(model, opset=20, level="exact")
    assert operators(optimize(model, opset=20).model) == {"AveragePool": 1}
    assert operators(optimize(model, opset=18, level="exact").model) == {"AveragePool": 1}
