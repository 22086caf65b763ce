from __future__ import annotations

import numpy as np
import pytest
from runtime_models import conv_bn, linear, text_model

from graphopt.runtime import verify
from graphopt.runtime.adversarial import OVERFLOWING, PREFIX, adversarial_feeds, where_defined
from graphopt.runtime.feeds import Feed, FeedMaker, FeedOptions
from graphopt.runtime.roles import Role
from graphopt.runtime.session import Port
from graphopt.runtime.worker import Worker


def made(options: FeedOptions | None = None) -> dict[str, dict[str, np.ndarray]]:
    ports = (
        Port("x", "tensor(float)", ("N", 8)),
        Port("ids", "tensor(int64)", ("N", 6)),
        Port("attention_mask", "tensor(int64)", ("N", 6)),
        Port("scales", "tensor(float)", (2,)),
    )
    roles = {"ids": Role(low=0, high=99), "scales": Role(low=1.0, high=2.0)}
    maker = FeedMaker(ports, options, roles=roles)
    base = maker.feed("base sizes", next(iter(maker.space.assignments())))
    return {feed.label.removeprefix(PREFIX): feed.values for feed in adversarial_feeds(maker, base)}


def test_every_kind_is_made_and_roles_hold() -> None:
    feeds = made()
    assert np.isnan(feeds["NaN"]["x"]).any()
    assert not np.isnan(feeds["NaN"]["x"]).all()
    assert {np.inf, -np.inf} <= set(feeds["infinities"]["x"].reshape(-1).tolist())
    small = np.abs(feeds["zeros and subnormals"]["x"])
    assert ((small > 0) & (small < np.finfo(np.float32).tiny)).any()
    assert np.abs(feeds["largest numbers"]["x"]).max() == np.finfo(np.float32).max
    assert np.unique(feeds["all equal"]["x"]).size == 1
    assert not feeds["all zero"]["x"].any()
    assert (np.diff(feeds["ascending"]["x"].reshape(-1)) >= 0).all()
    assert (np.diff(feeds["descending"]["x"].reshape(-1)) <= 0).all()
    assert (feeds["smallest integers"]["ids"] == 0).all()
    assert (feeds["largest integers"]["ids"] == 99).all()
    assert (feeds["masks all 0"]["attention_mask"] == 0).all()
    assert (feeds["masks all 1"]["attention_mask"] == 1).all()
    for values in feeds.values():
        assert 1 <= values["scales"].min() <= values["scales"].max() <= 2
        assert 0 <= values["ids"].min() <= values["ids"].max() <= 99
    for one, other in zip(feeds.values(), made().values(), strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_ranges_of_the_users_hold() -> None:
    feeds = made(FeedOptions(ranges={"x": (0, 1), "ids": (3, 5)}))
    assert not any(np.isnan(values["x"]).any() or values["x"].max() > 1 for values in feeds.values())
    assert (feeds["largest integers"]["ids"] == 5).all()


def test_equal_models_are_equal_on_adversarial_values(worker: Worker) -> None:
    for original, rewritten in ((linear(), linear()), (conv_bn(), conv_bn(folded=True))):
        result = verify(original, rewritten, adversarial=True, provider="cpu", worker=worker)
        assert result.verdict == "equal", result.reason
        assert result.adversarial is not None
        assert result.adversarial.equal
        assert any(feed.label == OVERFLOWING[0] for feed in result.adversarial.feeds)
        assert all(feed.label.startswith(PREFIX) for feed in result.adversarial.feeds)
        assert not any(feed.label.startswith(PREFIX) for feed in result.feeds)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("z = Sub(x, x) y = Add(x, z)", "y = Identity(x)"),  # NaN and infinities
        ("a = Abs(x) y = Add(a, x)", "a = Relu(x) y = Add(a, a)"),  # the negative infinity
    ],
)
def test_what_differs_on_adversarial_values_only_says_so(left: str, right: str, worker: Worker) -> None:
    one, two = (text_model(f"(float[N, 8] x) => (float[N, 8] y) {{ {text} }}") for text in (left, right))
    plain = verify(one, two, provider="cpu", worker=worker)
    assert plain.verdict == "equal", plain.reason
    assert plain.adversarial is None
    result = verify(one, two, adversarial=True, provider="cpu", worker=worker)
    assert result.verdict == "different"
    assert "adversarial ones only" in result.reason
    assert result.adversarial is not None
    assert result.adversarial.verdict == "different"


def test_where_a_product_overflows_is_held_to_the_originals_numbers(worker: Worker) -> None:
    text = "(float[N, 8] x) => (float[N, 8] y) {{ a = Constant<value = float {{{}}}>()"
    text += " b = Constant<value = float {{{}}}>() m = Mul(x, a) y = Mul(m, b) }}"
    early, late = (text_model(text.format(*pair)) for pair in (("8", "0.25"), ("2", "1")))
    # The original overflows on its way, the rewritten model does not: it has a number where there was none.
    assert verify(early, late, adversarial=True, provider="cpu", worker=worker).verdict == "equal"
    halves = [text_model(text.format(*pair)) for pair in (("0.5", "1"), ("8", "0.0625"))]
    result = verify(*halves, adversarial=True, provider="cpu", worker=worker)
    assert result.verdict == "different"
    assert OVERFLOWING[0] in result.reason
    original, other = np.array([1.0, np.inf, np.nan], np.float32), np.array([2.0, 3.0, 4.0], np.float32)
    np.testing.assert_array_equal(where_defined(original, other), np.array([2.0, np.inf, np.nan], np.float32))


def test_bytes_go_to_their_ends() -> None:
    maker = FeedMaker((Port("x", "tensor(uint8)", (3,)),))
    feeds = list(adversarial_feeds(maker, Feed("base", {"x": np.array([1, 2, 3], np.uint8)})))
    assert [feed.values["x"].tolist() for feed in feeds] == [[0, 0, 0], [255, 255, 255]]


def test_nothing_to_make_is_a_remark(worker: Worker) -> None:
    model = text_model("(string[N] x) => (string[N] y) { y = Identity(x) }")
    result = verify(model, model, adversarial=True, provider="cpu", worker=worker)
    assert result.verdict == "equal"
    assert any("no adversarial feeds" in note for note in result.notes)


def test_a_feed_without_floats_or_roles_gives_none() -> None:
    maker = FeedMaker((Port("x", "tensor(int64)", (3,)),))
    assert not list(adversarial_feeds(maker, Feed("base", {"x": np.arange(3)})))
