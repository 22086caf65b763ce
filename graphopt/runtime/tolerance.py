"""How far is far: noise floors measured on the original, ceilings per dtype, and the verdict on one output."""

from __future__ import annotations

import math
import statistics
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphopt.runtime.compare import Difference, compare, eps, is_float
from graphopt.runtime.values import Data

# An error may be this many times the floor: two correct roundings of one model differ from each other by about the
# floor, and the largest of few elements scatters by a factor (1.5 at most in 210 rewritings by four other tools).
FACTOR = 3.0
# No tolerance goes above this share of the largest value that the output takes over all feeds.
CEILINGS = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1, "complex64": 1e-4, "complex128": 1e-9}
# TF32 keeps as many bits of a number as float16 does.
_TF32_CEILING = CEILINGS["float16"]
_COARSE_CEILING = 0.5  # float8 and float4
# From so many elements on, the root mean square is steady enough to be held to the floor's as well (1.2 at most there).
_MANY = 64
_RMS_FACTOR = 2.0
# The part of the floor by which rounding some constants once more may move a value.
_CONSTANTS = 0.25


@dataclass(frozen=True, slots=True)
class Noise:
    """How far one output moved between two runs of the original, as shares of its scale.

    Attributes:
        most: Largest difference.
        rms: Root mean square of the differences.
    """

    most: float = 0.0
    rms: float = 0.0

    def __or__(self, other: Noise) -> Noise:
        """The larger of two."""
        return Noise(max(self.most, other.most), max(self.rms, other.rms))


@dataclass(slots=True)
class Floor:
    """The noise of one output, feed by feed.

    Attributes:
        optimizer: Feed label -> the original with the runtime's optimizer on against off.
        ulp: Feed label -> the original under a one-ulp change of its float inputs.
        sessions: Feed label -> the original against itself in another session of the same set-up.
        tf32: Feed label -> the original as users run it, with TF32 on against off; counts in the final run only.
        least: What is known of the noise from other feeds, where those at hand move little.
        largest: Largest value over all feeds.
        quantized: The model rounds to few steps inside, so that noise comes in whole steps.
        coarsest: A coarser float dtype than that of the output that the model computes with, if any.
    """

    optimizer: dict[str, Noise] = field(default_factory=dict)
    ulp: dict[str, Noise] = field(default_factory=dict)
    sessions: dict[str, Noise] = field(default_factory=dict)
    tf32: dict[str, Noise] = field(default_factory=dict)
    least: Noise = Noise()
    largest: float = 0.0
    quantized: bool = False
    coarsest: str = ""

    def at(self, label: str, users: bool = False) -> Noise:
        """The noise at a feed: what was measured there, or what is usual for this output if that is more.

        Args:
            label: The feed.
            users: In the final run, where TF32 counts too.
        """
        found = self.least | _at(self.optimizer, label) | _at(self.ulp, label) | _at(self.sessions, label)
        return found | _at(self.tf32, label) if users else found

    def tolerance(self, difference: Difference, label: str, users: bool = False) -> float:
        """What an error of this output may be at a feed, as a share of its scale there."""
        floor = max(self.at(label, users).most, difference.epsilon)
        if self.quantized:
            return FACTOR * floor
        ceiling = self.ceiling(difference)
        if users and self.at(label, users).most > self.at(label).most:
            ceiling = max(ceiling, _TF32_CEILING)
        return min(FACTOR * floor, ceiling)

    def ceiling(self, difference: Difference) -> float:
        """The limit of all tolerances at a feed, as a share of the output's scale there."""
        ceiling = max(CEILINGS.get(difference.dtype, _COARSE_CEILING), CEILINGS.get(self.coarsest, 0.0))
        if difference.scale > 0:
            ceiling *= max(1.0, self.largest / difference.scale)
        return ceiling

    def accepts(self, difference: Difference, label: str, users: bool = False) -> bool:
        """True where a difference is no more than noise: neither its largest element nor all of them together."""
        if difference.error > self.tolerance(difference, label, users):
            return False
        return difference.elements < _MANY or difference.rms <= self.rms_tolerance(difference, label, users)

    def covers(self, gap: Difference, difference: Difference, label: str) -> bool:
        """True where two float64 runs are no further apart than constants make them that were rounded once more.

        A constant that one model has and the other computes, or has merged, is off by half an ulp. Each moves a value
        by half a rounding of its own at most, or, where numbers cancel out behind it, by a part of what an ulp in its
        operands does, which the floor is: 0.16 of it at most was seen.

        Args:
            gap: How far the runs are apart.
            difference: What is judged, which has the dtype and the scale.
            label: The feed.
        """
        if gap.mismatch or gap.error > min(
            self._rounded(self.at(label).most, difference.epsilon), self.ceiling(difference)
        ):
            return False
        return gap.elements < _MANY or gap.rms <= self._rounded(self.at(label).rms, difference.epsilon / math.sqrt(12))

    @staticmethod
    def _rounded(floor: float, rounding: float) -> float:
        return max(_CONSTANTS * floor, rounding)

    def rms_tolerance(self, difference: Difference, label: str, users: bool = False) -> float:
        """What the root mean square of the differences may be.

        One rounding of the largest numbers alone makes `epsilon / sqrt(12)`: its error is evenly spread over a step.
        """
        return _RMS_FACTOR * max(self.at(label, users).rms, difference.epsilon / math.sqrt(12))


def _at(measured: Mapping[str, Noise], label: str) -> Noise:
    """One sample of noise can be zero by luck; the median over feeds is not."""
    if not measured:
        return Noise()
    usual = Noise(
        statistics.median(noise.most for noise in measured.values()),
        statistics.median(noise.rms for noise in measured.values()),
    )
    return measured.get(label, Noise()) | usual


def one_ulp(values: Mapping[str, Data], seed: int, keep: Container[str] = ()) -> dict[str, Data]:
    """The same inputs with every finite float moved to a neighbouring number, up or down at random.

    Inputs to keep are masks and other switches: 1 - mask times -10,000 would turn an ulp into a landslide.
    """
    moved: dict[str, Data] = {}
    rng = np.random.default_rng(seed)
    for name, value in values.items():
        moved[name] = value if name in keep else _moved(value, rng)
    return moved


def _moved(value: Data, rng: np.random.Generator) -> Data:
    if isinstance(value, list | tuple):
        return [_moved(item, rng) for item in value]
    if not isinstance(value, np.ndarray) or not is_float(value.dtype) or value.size == 0:
        return value
    if value.dtype.kind == "f" and value.dtype.itemsize > 1:
        towards = np.where(rng.random(value.shape) < 0.5, -np.inf, np.inf).astype(value.dtype)
        with np.errstate(all="ignore"):
            neighbour = np.nextafter(value, towards)
        keep = ~np.isfinite(value) | ~np.isfinite(neighbour) | (value == 0)
        return np.where(keep, value, neighbour).astype(value.dtype)
    if value.dtype.name == "bfloat16":
        bits = value.view(np.uint16)
        step = np.where((value.astype(np.float32) != 0) & np.isfinite(value.astype(np.float32)), 1, 0)
        return (bits + step.astype(np.uint16)).view(value.dtype)
    return value


def noise(reference: Mapping[str, Data], other: Mapping[str, Data] | None, name: str) -> Noise | None:
    """How far one output moved between two runs; None where that is no number."""
    if other is None or name not in other:
        return None
    difference = compare(reference[name], other[name])
    if difference.mismatch or not difference.floating or not math.isfinite(difference.error):
        return None
    return Noise(difference.error, difference.rms)


def has_floats(values: Mapping[str, Data]) -> bool:
    """True where some input has float elements."""

    def floating(value: Any) -> bool:
        if isinstance(value, list | tuple):
            return any(floating(item) for item in value)
        return isinstance(value, np.ndarray) and eps(value.dtype) > 0 and value.size > 0

    return any(floating(value) for value in values.values())
