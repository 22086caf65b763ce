from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from runtime_models import text_model

from graphopt.errors import FeedError
from graphopt.runtime.feeds import FeedMaker, FeedOptions, FeedSet
from graphopt.runtime.session import JUDGE, Port, Session
from graphopt.runtime.sizes import InputShape, SizeSpace
from graphopt.runtime.sources import ModelSource
from graphopt.runtime.structure import read_structure
from graphopt.runtime.userdata import read_data


def collect(model: bytes, **options: Any) -> FeedSet:
    session = Session(model, JUDGE)
    structure = read_structure(ModelSource("m", data=model), session.info)
    maker = FeedMaker(
        session.info.inputs,
        FeedOptions(**options),
        roles=structure.roles,
        unranked=structure.unranked,
        defaults=structure.defaults,
    )
    return maker.collect(session.run)


def with_weight(model: bytes, name: str, array: np.ndarray[Any, Any]) -> bytes:
    """Turn an input into an initializer."""
    proto = onnx.ModelProto.FromString(model)
    kept = [value for value in proto.graph.input if value.name != name]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return proto.SerializeToString()


def test_ids_stay_inside_their_table() -> None:
    model = text_model("(int64[B, S] ids, float[50, 4] t) => (float[B, S, 4] y) { y = Gather(t, ids) }")
    found = collect(with_weight(model, "t", np.ones((50, 4), np.float32)))
    ids = np.concatenate([feed.values["ids"].reshape(-1) for feed, _ in found.working])
    assert ids.min() >= 0
    assert ids.max() < 50
    assert ids.max() > 10
    edge = next(feed for feed, _ in found.working if feed.label == "edge values").values["ids"]
    assert edge.reshape(-1)[0] == 0
    assert edge.reshape(-1)[-1] == 49


def test_ids_are_followed_through_arithmetic_and_bodies() -> None:
    model = text_model(
        "(int64[S] ids, bool c, float[9, 4] t) => (float[M, 4] y)"
        "{ o = Constant<value = int64 {3}>() p = Add(ids, o)"
        "y = If(c) <then_branch = a () => (float[M, 4] u) { u = Gather(t, p) },"
        "else_branch = b () => (float[M, 4] v) { v = Gather(t, p) }> }"
    )
    model = with_weight(model, "t", np.ones((9, 4), np.float32))
    session = Session(model, JUDGE)
    role = read_structure(ModelSource("m", data=model), session.info).roles["ids"]
    assert (role.low, role.high) == (-3, 5)


def test_masks_are_zeros_and_ones() -> None:
    model = text_model(
        "(float[B, S] x, int64[B, S] keep, float[B, S] soft) => (float[B, S] y)"
        "{ b = Cast<to = 9>(keep) one = Constant<value = float {1.0}>() big = Constant<value = float {-10000.0}>()"
        "i = Sub(one, soft) p = Mul(i, big) q = Add(x, p) y = Where(b, q, x) }"
    )
    for feed, _ in collect(model).working:
        assert set(np.unique(feed.values["keep"])) <= {0, 1}
        assert set(np.unique(feed.values["soft"])) <= {0.0, 1.0}


def test_constants_that_an_input_is_compared_with_are_tried() -> None:
    model = text_model(
        "(float[N] x, int64 rate) => (float[N] y)"
        "{ a = Constant<value = int64 {16000}>() c = Equal(rate, a)"
        "y = If(c) <then_branch = a () => (float[N] u) { u = Neg(x) },"
        "else_branch = b () => (float[N] v) { v = Abs(x) }> }"
    )
    rates = {int(feed.values["rate"]) for feed, _ in collect(model).working}
    assert 16000 in rates
    assert len(rates) > 1


@pytest.mark.parametrize(
    ("text", "name", "holds"),
    [
        ("(float[2, 6] x, int64[3] s) => (float[A, B, C] y) { y = Reshape(x, s) }", "s", lambda v: v.prod() == 12),
        ("(float[2, 1] x, int64[2] s) => (float[A, B] y) { y = Expand(x, s) }", "s", lambda v: v[0] in (1, 2)),
        (
            "(int64[N] s) => (float y) { a = ConstantOfShape(s) y = ReduceSum<keepdims = 0>(a) }",
            "s",
            lambda v: v.min() > 0,
        ),
        ("(float[5] x, int64[1] k) => (float[M] y, int64[M] i) { y, i = TopK(x, k) }", "k", lambda v: 1 <= v[0] <= 5),
        ("(int64[2] x, int64[2] z) => (int64[2] y) { y = Div(x, z) }", "z", lambda v: v.min() >= 1),
        (
            "(float[T, 2, 3] x, int64[2] n) => (float[T, 2, 3] y) { y = ReverseSequence(x, n) }",
            "n",
            lambda v: v.min() >= 1,
        ),
        ("(float[4, N] x, int64[2] p) => (float[A, B] y) { y = Split<axis = 0>(x, p) }", "p", lambda v: True),
        ("(float x) => (float y) { y = Log(x) }", "x", lambda v: True),
    ],
)
def test_shape_inputs_and_parameters_fit(text: str, name: str, holds: Callable[[Any], bool]) -> None:
    if "Split" in text:
        text = text.replace("(float[A, B] y)", "(float[A, B] y, float[C, D] z)").replace("y = Split", "y, z = Split")
    found = collect(text_model(text))
    assert found.working
    assert found.working[0][0].label == "base sizes"
    assert holds(found.working[0][0].values[name])


def test_sizes_that_must_agree_are_found() -> None:
    model = text_model("(float[A, B] x, float[C, D] z) => (float[A, D] y) { y = MatMul(x, z) }")
    found = collect(model)
    assert found.working
    odd = text_model("(float[A, B] x) => (float[M, 7] y) { s = Constant<value_ints = [-1, 32]>() y = Reshape(x, s) }")
    assert collect(odd).working
    image = text_model(
        "(float[N, 3, H, W] x) => (float[N, 3, 7, 7] y)"
        "{ y = AveragePool<kernel_shape = [32, 32], strides = [32, 32]>(x) }"
    )
    assert collect(image).working or "--shape x=" in collect(image).advice


def test_dims_with_arithmetic_in_their_names_follow() -> None:
    space = SizeSpace([InputShape("a", ("past", "seq")), InputShape("b", ("past + seq", "max(past, 3) * 2"))])
    assert space.keys == ["past", "seq"]
    sizes = {"past": 4, "seq": 2}
    assert space.shape(space.inputs[1], sizes) == (6, 8)


def test_past_and_total_are_solved_by_name() -> None:
    shapes = [
        InputShape("ids", ("batch", "sequence_length")),
        InputShape("mask", ("batch", "total_sequence_length")),
        InputShape("cache", ("batch", 2, "past_sequence_length", 8)),
    ]
    space = SizeSpace(shapes)
    base = space.default()
    assert base["total_sequence_length"] == base["past_sequence_length"] + base["sequence_length"]
    for _, other in space.others(base):
        if other != dict.fromkeys(other, 1):
            assert other["total_sequence_length"] >= other["sequence_length"]


def test_what_the_user_says_is_kept() -> None:
    model = text_model("(float[N, M] x, int64[N] z) => (float[N, M] y, int64[N] w) { y = Neg(x) w = Neg(z) }")
    found = collect(model, dims={"N": 4}, shapes={"x": (4, 9)}, ranges={"z": (5, 7)}, runs=3)
    assert len(found.working) == 3
    for feed, _ in found.working:
        assert feed.values["x"].shape == (4, 9)
        assert feed.values["z"].min() >= 5
        assert feed.values["z"].max() <= 7


def test_seeds_repeat() -> None:
    model = text_model("(float[N] x) => (float[N] y) { y = Neg(x) }")
    first, again, other = (collect(model, seed=seed).working[0][0].values["x"] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_advice_names_the_input_and_the_flag() -> None:
    model = text_model(
        "(float[N] x, int64[K] i) => (float[M] y) { a = Constant<value_ints = [100]>() b = Add(i, a) y = Gather(x, b)"
        "s = Constant<value_ints = [13]>() z = Reshape(x, s) q = Reshape(y, s) y2 = Add(z, q) }"
    )
    found = collect(model)
    assert not found.working
    assert "'x'" in found.advice
    assert "--shape x=" in found.advice
    assert "--data" in found.advice


def test_initializers_that_may_be_fed_are_fed_once() -> None:
    model = text_model("(float[2] x, float[2] w = {1, 2}) => (float[2] y) { y = Mul(x, w) }")
    labels = {feed.label: feed.values for feed, _ in collect(model).working}
    assert "initializers overridden" in labels
    assert not np.array_equal(labels["initializers overridden"]["w"], [1, 2])


PORTS = (Port("x", "tensor(float)", (2,)), Port("n", "tensor(int64)", ()))


def test_npz_npy_and_their_faults(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros(2), n=np.array(3, np.int32))
    (feed,) = read_data(tmp_path / "data.npz", PORTS)
    assert feed.values["x"].dtype == np.float32
    assert feed.values["n"].dtype == np.int64
    np.save(tmp_path / "x.npy", np.zeros(2, np.float32))
    assert read_data(tmp_path / "x.npy", PORTS[:1])[0].values["x"].shape == (2,)
    with pytest.raises(FeedError, match="one array"):
        read_data(tmp_path / "x.npy", PORTS)
    np.savez(tmp_path / "short.npz", x=np.zeros(2))
    with pytest.raises(FeedError, match="lacks the input 'n'"):
        read_data(tmp_path / "short.npz", PORTS)
    np.savez(tmp_path / "wrong.npz", x=np.zeros(2), n=np.array(0.5))
    with pytest.raises(FeedError, match="lose values"):
        read_data(tmp_path / "wrong.npz", PORTS)
    np.savez(tmp_path / "more.npz", x=np.zeros(2), n=np.array(1), q=np.zeros(1))
    with pytest.raises(FeedError, match="no input"):
        read_data(tmp_path / "more.npz", PORTS)
    with pytest.raises(FeedError):
        read_data(tmp_path / "absent.npz", PORTS)


def test_data_sets_in_the_form_of_onnx(tmp_path: Path) -> None:
    for number in range(2):
        folder = tmp_path / f"test_data_set_{number}"
        folder.mkdir()
        for place, array in enumerate([np.full(2, number, np.float32), np.array(7)]):
            (folder / f"input_{place}.pb").write_bytes(numpy_helper.from_array(array).SerializeToString())
        (folder / "output_0.pb").write_bytes(b"ignored")
    feeds = read_data(tmp_path, PORTS)
    assert [feed.label for feed in feeds] == ["test_data_set_0", "test_data_set_1"]
    assert feeds[1].values["x"].tolist() == [1, 1]
    assert len(read_data(tmp_path / "test_data_set_1", PORTS)) == 1


def test_scripts(tmp_path: Path) -> None:
    script = tmp_path / "inputs.py"
    script.write_text(
        "import numpy as np\n"
        "def one(): return {'x': np.ones(2), 'n': 4}\n"
        "def many():\n"
        "    while True: yield one()\n"
        "def bad(): raise RuntimeError('no')\n"
        "def odd(): return 3\n"
    )
    assert read_data(f"{script}:one", PORTS)[0].values["n"] == 4
    assert len(read_data(f"{script}:many", PORTS, 5)) == 5
    for function in ("bad", "odd", "absent"):
        with pytest.raises(FeedError):
            read_data(f"{script}:{function}", PORTS)


def test_all_rows_of_a_small_table_are_named() -> None:
    model = text_model("(int64[B, S] ids, float[300, 4] t) => (float[B, S, 4] y) { y = Gather(t, ids) }")
    found = collect(with_weight(model, "t", np.ones((300, 4), np.float32)))
    ids = np.concatenate([feed.values["ids"].reshape(-1) for feed, _ in found.working])
    assert set(ids.tolist()) == set(range(300))


def test_one_feed_is_longer_where_that_is_cheap() -> None:
    found = collect(text_model("(float[batch, samples] x) => (float[batch, samples] y) { y = Abs(x) }"))
    assert max(feed.values["x"].shape[1] for feed, _ in found.working) >= 64
    kept = collect(
        text_model("(float[batch, samples] x) => (float[batch, samples] y) { y = Abs(x) }"), dims={"samples": 5}
    )
    assert {feed.values["x"].shape[1] for feed, _ in kept.working if not feed.is_empty} == {5}


def test_each_side_of_a_switch_gets_a_feed() -> None:
    model = text_model(
        "(float[N] x, int64 rate, bool fast, float low) => (float[N] y)"
        "{ a = Constant<value = int64 {16000}>() b = Constant<value = int64 {8000}>()"
        "t = Constant<value = float[3] {1.0, 50.0, 90.0}>()"
        "c = Equal(rate, a) d = Equal(rate, b) e = Or(c, d) f = And(e, fast)"
        "g = GreaterOrEqual(t, low) h = Cast<to = 1>(g) s = ReduceSum<keepdims = 0>(h) z = Mul(x, s)"
        "y = If(f) <then_branch = p () => (float[N] u) { u = Neg(z) },"
        "else_branch = q () => (float[N] v) { v = Abs(z) }> }"
    )
    feeds = [feed for feed, _ in collect(model).working if not feed.is_empty]
    rates = {int(feed.values["rate"]) for feed in feeds}
    assert {8000, 16000} < rates
    assert {bool(feed.values["fast"]) for feed in feeds} == {True, False}
    lows = {float(feed.values["low"]) for feed in feeds}
    assert {1.0, 50.0, 91.0} <= lows


def test_feeds_at_which_outputs_tell_nothing_are_replaced() -> None:
    model = text_model(
        "(float[N] x, float low) => (float[N] y) { t = Constant<value = float[1] {70.0}>()"
        "c = GreaterOrEqual(low, t) n = Constant<value = float {0.0}>() y = Where(c, x, n) }"
    )
    found = collect(model)
    assert not found.note
    assert any(np.ptp(outputs["y"]) > 0 for feed, outputs in found.working if not feed.is_empty)
