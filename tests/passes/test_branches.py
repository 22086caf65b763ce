from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper
from pass_runs import assert_equal, floats, model_of, nodes_of, operators, run

import graphopt
import passes.branches as branches
import passes.common_subexpressions as common
import passes.identities as identities
import passes.pruning as pruning

ALL = (pruning, identities, common, branches)
X = {"x": floats(2), "z": floats(2, seed=1)}
BOTH = [{**X, "c": np.array(flag)} for flag in (True, False)]
FOUR = [{**feeds, "d": np.array(flag)} for feeds in BOTH for flag in (True, False)]


def _if(then: str, other: str, outputs: str = "float[2] y", *, extra: str = "", after: str = "") -> ModelProto:
    names = ", ".join(part.split()[-1] for part in outputs.split(", "))
    return model_of(
        f"""g (float[2] x, float[2] z, bool c{extra}) => ({outputs}) {{
            {after}
            {names} = If (c) <then_branch = t () {then}, else_branch = e () {other}>
        }}"""
    )


# --- work of both branches


def test_equal_branches_in_another_order_leave_no_if() -> None:
    model = _if(
        "=> (float[2] r) { a = Exp(x) b = Sin(z) r = Sub(a, b) }",
        "=> (float[2] s) { p = Sin(z) q = Exp(x) s = Sub(q, p) }",
    )
    result = run(model, *ALL)
    assert operators(result) == {"Exp": 1, "Sin": 1, "Sub": 1}
    assert_equal(model, result, BOTH)


def test_work_that_both_branches_return_elsewhere_stays_unless_it_pays() -> None:
    outputs = "float[2] y, float[2] w"
    crossed = _if(
        "=> (float[2] r, float[2] u) { r = Exp(x) u = Sin(x) }",
        "=> (float[2] s, float[2] v) { s = Sin(x) v = Exp(x) }",
        outputs,
    )
    assert operators(run(crossed, *ALL)) == operators(crossed)
    model = _if(
        "=> (float[2] r, float[2] u) { p = Exp(x) r = Sin(p) u = Abs(r) }",
        "=> (float[2] s, float[2] v) { p = Exp(x) v = Sin(p) s = Neg(v) }",
        outputs,
    )
    result = run(model, *ALL)
    assert operators(result) == {"Exp": 1, "If": 1, "Sin": 2, "Abs": 1, "Neg": 1}
    assert_equal(model, result, BOTH)


def test_equal_results_are_given_once_before_the_if() -> None:
    model = _if(
        "=> (float[2] r, float[2] u) { r = Exp(x) u = Sin(x) }",
        "=> (float[2] s, float[2] v) { s = Exp(x) v = Neg(z) }",
        "float[2] y, float[2] w",
    )
    result = run(model, *ALL)
    assert operators(result) == {"Exp": 1, "If": 1, "Sin": 1, "Neg": 1}
    assert [value.name for value in result.graph.output] == ["y", "w"]
    assert_equal(model, result, BOTH)


def test_equal_constants_of_both_branches_come_out() -> None:
    body = "=> (float[2] k, float[2] r) <float[2] k = {1, 2}> { r = %s(x) }"
    model = _if(body % "Exp", body % "Neg", "float[2] y, float[2] w")
    result = run(model, *ALL)
    assert operators(result) == {"If": 1, "Exp": 1, "Neg": 1}
    assert_equal(model, result, BOTH)


def test_nested_branches_count_as_work() -> None:
    inner = """=> (float[2] {0}) {{
        {0} = If (d) <
            then_branch = a () => (float[2] {0}1) {{ {0}1 = Exp(x) }},
            else_branch = b () => (float[2] {0}2) {{ {0}2 = Sin(x) }}
        >
    }}"""
    model = _if(inner.format("r"), inner.format("s"), extra=", bool d")
    result = run(model, *ALL)
    assert operators(result) == {"If": 1, "Exp": 1, "Sin": 1}
    assert_equal(model, result, FOUR)


@pytest.mark.parametrize("op_type", ["RandomNormalLike", "Bernoulli"])
def test_random_work_stays_where_it_is(op_type: str) -> None:
    model = _if(
        f"=> (float[2] r) {{ p = {op_type}(x) r = Exp(p) }}", f"=> (float[2] s) {{ p = {op_type}(x) s = Neg(p) }}"
    )
    assert operators(run(model, *ALL)) == operators(model)


def test_what_is_kept_by_name_stays() -> None:
    text = "=> (float[2] r) { kept = Exp(x) r = Sin(kept) }"
    model = _if(text, "=> (float[2] s) { p = Exp(x) s = Neg(p) }")
    assert operators(run(model, *ALL, keep=["kept"])) == operators(model)


# --- conditions


def _nested(condition: str, inner: str, other: str = "Abs(x)") -> ModelProto:
    return _if(
        f"""=> (float[2] r) {{
            {inner}
            r = If (n) <
                then_branch = a () => (float[2] p) {{ p = Exp(x) }},
                else_branch = b () => (float[2] q) {{ q = Sin(x) }}
            >
        }}""",
        f"=> (float[2] s) {{ s = {other} }}",
        extra=", bool d",
        after=condition,
    )


@pytest.mark.parametrize(
    ("inner", "left"),
    [
        ("n = Not(c)", {"Sin": 1}),
        ("n = Or(d, c)", {"Exp": 1}),
        ("m = Not(c) n = And(m, d)", {"Sin": 1}),
        ("n = And(c, d)", {"Exp": 1, "Sin": 1, "If": 1}),
    ],
)
def test_conditions_inside_a_branch_follow_from_its_own(inner: str, left: dict[str, int]) -> None:
    import passes.constant_folding as folding
    import passes.trivial_arithmetic as arithmetic

    model = _nested("", inner)
    result = run(model, *ALL)
    found = operators(result)
    assert found.pop("If") == 1 + left.pop("If", 0)
    assert found.pop("Abs") == 1
    found.pop("And", None)
    assert found == left
    assert_equal(model, result, FOUR)
    assert_equal(model, run(model, *ALL, folding, arithmetic), FOUR)


def test_parts_of_a_condition_are_known_inside() -> None:
    model = model_of(
        """g (float[2] x, float[2] z, bool c, bool d) => (float[2] y) {
            both = And(c, d)
            y = If (both) <
                then_branch = t () => (float[2] r) {
                    r = If (d) <
                        then_branch = a () => (float[2] p) { p = Exp(x) },
                        else_branch = b () => (float[2] q) { q = Sin(x) }
                    >
                },
                else_branch = e () => (float[2] s) {
                    s = If (d) <
                        then_branch = a () => (float[2] p) { p = Abs(x) },
                        else_branch = b () => (float[2] q) { q = Neg(x) }
                    >
                }
            >
        }"""
    )
    result = run(model, *ALL)
    assert operators(result) == {"And": 1, "If": 2, "Exp": 1, "Abs": 1, "Neg": 1}
    assert_equal(model, result, FOUR)


def test_a_shared_negation_stays_for_its_other_readers() -> None:
    model = model_of(
        """g (float[2] x, bool c) => (float[2] y, bool n) {
            n = Not(c)
            y = If (n) <
                then_branch = a () => (float[2] t) { t = Relu(x) },
                else_branch = b () => (float[2] e) { e = Neg(x) }
            >
        }"""
    )
    result = run(model, *ALL)
    (node,) = [node for node in result.graph.node if node.op_type == "If"]
    assert node.input[0] == "c"
    assert_equal(model, result, [{"x": X["x"], "c": np.array(flag)} for flag in (True, False)])


def test_chains_of_ifs_on_one_condition_become_one() -> None:
    choice = """If (c) <
        then_branch = {0} () => (float[2] t) {{ t = {1}({2}) }},
        else_branch = {0}e () => (float[2] e) {{ e = {3}({4}) }}
    >"""
    steps = [("p", "Exp", "x", "Sin", "x"), ("q", "Neg", "p", "Abs", "x"), ("y", "Tanh", "q", "Relu", "p")]
    lines = " ".join(f"{step[0]} = " + choice.format(*step) for step in steps)
    model = model_of(f"g (float[2] x, bool c) => (float[2] y) {{ {lines} }}")
    result = run(model, *ALL)
    assert operators(result)["If"] == 1
    assert len(result.graph.node[0].output) == 1
    assert_equal(model, result, [{"x": X["x"], "c": np.array(flag)} for flag in (True, False)])


# --- choices


def _choice(dtype: str, shapes: tuple[str, str] = ("[2]", "[2]"), condition: str = "") -> ModelProto:
    return model_of(
        f"""g ({dtype}{shapes[0]} x, {dtype}{shapes[1]} z, bool{condition} c) => ({dtype}[k] y) {{
            y = If (c) <
                then_branch = t () => ({dtype}[k] r) {{ r = Identity(x) }},
                else_branch = e () => ({dtype}[k] s) {{ s = Identity(z) }}
            >
        }}"""
    )


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "string", "float", "double", "float16", "int16", "bool"])
def test_a_choice_of_values_is_a_where_if_there_is_a_kernel(dtype: str) -> None:
    model = _choice(dtype)
    for level in ("exact", "default"):
        result = run(model, *ALL, level=level)
        is_selected = dtype in ("int64", "int32", "uint8", "string") or (
            level == "default" and dtype in ("float", "double")
        )
        assert operators(result) == ({"Where": 1} if is_selected else {"If": 1, "Identity": 2})
        if dtype != "string":
            kind = helper.tensor_dtype_to_np_dtype(getattr(TensorProto, dtype.upper()))
            feeds = [
                {"x": np.array([1, 0], kind), "z": np.array([0, 1], kind), "c": np.array(f)} for f in (True, False)
            ]
            assert_equal(model, result, feeds)


def test_the_sign_of_a_zero_is_kept_at_level_exact() -> None:
    model = _choice("float")
    feeds = [{"x": np.array([-0.0, np.nan], np.float32), "z": floats(2), "c": np.array(True)}]
    assert_equal(model, run(model, *ALL), feeds, "E")
    assert_equal(model, run(model, *ALL, level="default"), feeds, "Z")


@pytest.mark.parametrize(
    ("shapes", "condition"),
    [(("[n]", "[2]"), ""), (("[2]", "[1]"), ""), (("[n]", "[n]"), ""), (("[2]", "[2]"), "[1,1]")],
)
def test_a_choice_between_other_shapes_stays(shapes: tuple[str, str], condition: str) -> None:
    model = _choice("int64", shapes, condition)
    assert "Where" not in operators(run(model, *ALL))


def test_a_choice_of_true_and_false_is_the_condition() -> None:
    body = "=> (bool r) <bool r = {%d}> {}"
    for first, left in ((1, {"Cast": 1}), (0, {"Not": 1, "Cast": 1})):
        model = model_of(
            f"""g (bool c) => (float y) {{
                b = If (c) <then_branch = t () {body % first}, else_branch = e () {body % (1 - first)}>
                y = Cast<to = 1>(b)
            }}"""
        )
        result = run(model, *ALL)
        assert operators(result) == left
        assert_equal(model, result, [{"c": np.array(flag)} for flag in (True, False)])


def test_a_rank_that_the_branch_settles_needs_no_test() -> None:
    model = model_of(
        """g (float[2, 1] x, bool c) => (float[a, b] y) {
            s = If (c) <
                then_branch = t () => (float[2] r) { axes = Constant<value = int64[1] {1}>() r = Squeeze(x, axes) },
                else_branch = e () => (float[2, 1] u) { u = Neg(x) }
            >
            shape = Shape(s) rank = Size(shape) two = Constant<value = int64 {2}>() is_matrix = Equal(rank, two)
            y = If (is_matrix) <
                then_branch = t2 () => (float[a, b] p) { p = Exp(s) },
                else_branch = e2 () => (float[a, b] q) {
                    first = Constant<value = int64[1] {0}>()
                    q = Unsqueeze(s, first)
                }
            >
        }"""
    )
    result = run(model, *ALL)
    assert operators(result) == {"If": 1, "Squeeze": 1, "Unsqueeze": 1, "Neg": 1, "Exp": 1}
    assert_equal(model, result, [{"x": floats(2, 1), "c": np.array(flag)} for flag in (True, False)])


def test_names_stay_unique_where_bodies_use_the_same() -> None:
    body = "=> (float[2] r) {{ p = Exp(x) q = Add(p, z) r = {}(q) }}"
    model = _if(body.format("Sin"), body.format("Neg"))
    result = run(model, *ALL)
    names = [name for node in nodes_of(result.graph) for name in node.output]
    assert operators(result) == {"Exp": 1, "Add": 1, "If": 1, "Sin": 1, "Neg": 1}
    assert {"p", "q"} <= set(names)
    assert_equal(model, result, BOTH)


def test_a_choice_stays_an_if_where_the_opset_asked_for_has_no_where() -> None:
    model = _if("=> (float[2] r) { r = Identity(x) }", "=> (float[2] s) { s = Identity(z) }")
    assert "Where" in graphopt.optimize(model).report.operators_after
    kept = graphopt.optimize(model, opset=8).report.operators_after
    assert kept["If"] == 1
    assert "Where" not in kept
