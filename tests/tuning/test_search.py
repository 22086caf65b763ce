"""The search, with made-up devices in place of the runtime."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from graphopt.tuning.candidates import Block, Machine, blocks
from graphopt.tuning.search import Found, Outcome, Request, Told, search

CUDA = "CUDAExecutionProvider"
Speed = Callable[[Mapping[str, str]], float | str]


class Device:
    """Milliseconds of a run as a function of the settings, or why they do not hold; a clock that trials move on."""

    def __init__(self, speed: Speed, *, slots: int = 1, seconds: float = 10.0, noise: float = 0.005) -> None:
        self.speed = speed
        self.slots = slots
        self.seconds = seconds
        self.noise = noise
        self.now = 0.0
        self.requests: list[Request] = []
        self.batches: list[int] = []

    def clock(self) -> float:
        return self.now

    def run(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Outcome]]:
        self.batches.append(len(requests))
        self.now += self.seconds
        for request in requests:
            self.requests.append(request)
            yield request, self.outcome(request)

    def outcome(self, request: Request) -> Outcome:
        mine, theirs = self.speed(dict(request.settings)), self.speed(dict(request.against))
        if isinstance(mine, str):
            return Outcome("refused", mine, math.inf, "y", seconds=self.seconds)
        against = theirs if isinstance(theirs, float) else 10.0
        ratio = against / mine
        low, high = ratio * (1 - self.noise), ratio * (1 + self.noise)
        if not request.thorough and 1.01 <= ratio < 0.9 * request.bar:
            return Outcome("outdone", "", 1e-6, "y", mine, against, ratio, seconds=self.seconds / 3)
        said = "faster" if low > 1.02 else "slower" if high < 0.98 else "no faster"
        return Outcome(said, "", 1e-6, "y", mine, against, ratio, low, high, seconds=self.seconds)

    def search(self, space: Sequence[Block], max_time: float = 1e9, **options: object) -> Found:
        return search(space, self, max_time=max_time, clock=self.clock, **options)  # type: ignore[arg-type]


def h200(settings: Mapping[str, str]) -> float | str:
    """resnet50 at batch 64 as it was measured: a bias kernel for NHWC alone, which gives NaN in NCHW."""
    nhwc, bias = settings.get("prefer_nhwc") == "1", settings.get("fuse_conv_bias") == "1"
    if bias and not nhwc:
        return "output 'y' has NaN or infinity where the original is finite, or the other way round"
    milliseconds = 5.6 if bias else 8.24 if nhwc else 9.74
    if settings.get("cudnn_conv_algo_search") in ("HEURISTIC", "DEFAULT"):
        milliseconds *= 1.2
    if settings.get("enable_cuda_graph") == "1":
        milliseconds -= 0.02
    if settings.get("use_tf32") == "0":
        milliseconds *= 2
    return milliseconds


def space_of(*operators: str) -> list[Block]:
    return blocks(CUDA, dict.fromkeys(operators, 1), Machine(16, 16))


def test_layout_and_bias_are_found_together_and_the_bias_alone_is_refused() -> None:
    device = Device(h200)
    found = device.search(space_of("Conv", "Relu"), max_time=170)
    assert dict(found.settings or ()) == {"prefer_nhwc": "1", "fuse_conv_bias": "1"}
    assert found.final is not None
    assert found.final.ratio == pytest.approx(9.74 / 5.6)
    refused = [item for item in found.records if item.verdict == "refused"]
    assert [item.settings for item in refused] == [{"fuse_conv_bias": "1"}]
    assert "NaN" in refused[0].reason
    assert device.now <= 170 + device.seconds
    assert found.baseline_ms == 9.74
    by_settings = {tuple(sorted(item.settings)): item for item in found.records if not item.against}
    assert by_settings["prefer_nhwc",].verdict == "outdone"
    assert ((("prefer_nhwc", "1"),)) not in [request.settings for request in device.requests if request.against]


def test_the_most_promising_come_first() -> None:
    device = Device(h200)
    device.search(space_of("Conv"), max_time=35)
    assert {name for request in device.requests for name, _ in request.settings} == {"prefer_nhwc", "fuse_conv_bias"}


def test_a_request_is_never_made_twice() -> None:
    device = Device(h200)
    device.search(space_of("Conv", "Gelu", "com.microsoft::Attention"))
    assert len(device.requests) == len(set(device.requests))


def test_a_trial_is_timed_against_the_best_so_far() -> None:
    device = Device(h200)
    device.search(space_of("Conv"))
    rivals = [dict(request.against) for request in device.requests]
    both = {"prefer_nhwc": "1", "fuse_conv_bias": "1"}
    assert rivals[:3] == [{}, {}, {}]
    assert all(rival == both for rival in rivals[3:])


def test_nothing_gained_is_the_defaults() -> None:
    found = Device(lambda settings: 1.0 + 0.001 * len(settings)).search(space_of("Conv"))
    assert found.settings == ()
    assert found.final is None
    assert not any(item.kept for item in found.records)


def test_ties_go_to_what_is_simpler() -> None:
    """Both settings at once are faster; one of them does nothing."""
    speed = {frozenset(): 10.0, frozenset("a"): 5.0, frozenset("b"): 10.0, frozenset("ab"): 5.0}
    device = Device(lambda settings: speed[frozenset(settings)])
    found = device.search([Block("both", ({"a": "1", "b": "1"},))])
    assert dict(found.settings or ()) == {"a": "1"}
    assert found.final is not None
    assert (dict(device.requests[-1].settings), device.requests[-1].against) == ({"a": "1"}, ())


def test_of_equals_in_a_block_the_simplest_or_first_is_taken() -> None:
    speed = {(): 10.0, ("a",): 5.02, ("b",): 5.0, ("a", "b"): 4.95}
    device = Device(lambda settings: speed[tuple(sorted(settings))])
    found = device.search([Block("all", ({"a": "1", "b": "1"}, {"a": "1"}, {"b": "1"}))])
    assert found.settings == (("a", "1"),)


def test_a_setting_that_pays_only_later_is_tried_again() -> None:
    def speed(settings: Mapping[str, str]) -> float:
        return 10.0 / (2.0 if "late" in settings else 1.0) / (1.5 if {"early", "late"} <= set(settings) else 1.0)

    found = Device(speed).search([Block("early", ({"early": "1"},)), Block("late", ({"late": "1"},))])
    assert dict(found.settings or ()) == {"early": "1", "late": "1"}


def test_steps_that_do_not_add_up_are_given_up() -> None:
    """Each step is faster than the one before, and in the end the whole is not faster than the defaults."""

    class Drifting(Device):
        def outcome(self, request: Request) -> Outcome:
            if not request.against and len(request.settings) == 2:
                return Outcome("no faster", "", 0.0, "y", 10.0, 10.0, 1.0, 0.99, 1.01, seconds=10.0)
            return super().outcome(request)

    device = Drifting(lambda settings: 10.0 * 0.8 ** len(settings))
    found = device.search([Block("a", ({"a": "1"},)), Block("b", ({"b": "1"},))])
    assert found.settings == (("a", "1"),)


def test_several_devices_take_several_candidates_at_a_time() -> None:
    alone, four = Device(h200), Device(h200, slots=4)
    space = space_of("Conv", "Gelu")
    first, second = alone.search(space), four.search(space)
    assert first.settings == second.settings
    assert max(four.batches) == 4
    assert four.now < alone.now / 2


def test_gains_of_one_batch_add_up() -> None:
    device = Device(lambda settings: 10.0 * 0.8 ** len(settings), slots=3)
    found = device.search([Block(name, ({name: "1"},)) for name in "abc"])
    assert dict(found.settings or ()) == {"a": "1", "b": "1", "c": "1"}


def test_time_is_kept_for_the_comparison_with_the_defaults() -> None:
    device = Device(lambda settings: 10.0 * 0.9 ** len(settings))
    found = device.search([Block(name, ({name: "1"},)) for name in "abcdefgh"], max_time=60)
    assert found.ran_out
    assert device.now <= 70
    assert device.requests[-1].against == ()
    assert any(item.verdict == "not tried" for item in found.records)


def test_defaults_too_far_from_the_original_do_not_count() -> None:
    closer = [Block("precision", ({"use_tf32": "0"},))]
    found = Device(lambda settings: 20.0 if "use_tf32" in settings else 10.0).search(
        [], closer=closer, baseline_ok=False
    )
    assert dict(found.settings or ()) == {"use_tf32": "0"}
    assert found.final is not None
    assert found.final.ratio == 0.5


def test_nothing_close_enough_finds_nothing() -> None:
    found = Device(lambda settings: "too far" if settings else 10.0).search(
        space_of("Conv"), closer=[Block("precision", ({"use_tf32": "0"},))], baseline_ok=False
    )
    assert found.settings is None
    assert [item.verdict for item in found.records] == ["refused"]


def test_whoever_watches_hears_of_every_trial() -> None:
    heard: list[Told] = []
    device = Device(h200)
    found = device.search(space_of("Conv"), max_time=100, tell=heard.append)
    ended = [told.record for told in heard if told.record is not None]
    assert [item.settings for item in ended] == [item.settings for item in found.records if item.verdict != "not tried"]
    starts = [told.done for told in heard if told.starting]
    assert starts == sorted(starts)
    assert heard[-1].best_ms == 5.6


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_order_within_a_block_does_not_matter(order: tuple[int, ...]) -> None:
    space = space_of("Conv")
    changes = space[0].changes
    shuffled = [Block("convolutions", tuple(changes[number] for number in order)), *space[1:]]
    assert Device(h200).search(shuffled).settings == Device(h200).search(space).settings
