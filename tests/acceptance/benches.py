"""Stand-ins for what acceptance measures with: times are told by counting operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphopt.acceptance import Instruments
from graphopt.measurements import Benchmark, Profile
from graphopt.records import Verification
from graphopt.runtime.stats import verdict
from tests.acceptance.plugins import operators

COSTS = {"Sin": 5.0, "Cos": 5.0, "Softplus": 20.0, "Identity": 2.0, "Log": 4.0, "Exp": 4.0}


class Bench:
    """Tells times by counting operators, and the time by what was asked for."""

    def __init__(self, *, noise: float = 0.005, wrong: str = "Selu", costs: dict[str, float] | None = None) -> None:
        self.noise = noise
        self.wrong = wrong
        self.costs = COSTS if costs is None else costs
        self.now = 0.0
        self.late = 0.0
        self.profile: Profile | None = None
        self.asked: list[float] = []
        self.verified = 0

    def cost(self, path: str) -> float:
        return 10 + sum(self.costs.get(name, 1.0) for name in operators(path))

    def measure(self, one: str, other: str, seconds: float, touched: Any) -> Benchmark:
        self.asked.append(seconds)
        self.now += seconds + self.late
        ratio = self.cost(one) / self.cost(other)
        low, high = ratio * (1 - self.noise), ratio * (1 + self.noise)
        profile = self.profile if touched is not None else None
        return Benchmark(verdict(low, high), f"{ratio:.3f} times", ratio, low, high, profile=profile)

    def verify(self, original: str, other: str) -> Verification:
        self.verified += 1
        if self.wrong in operators(other):
            return Verification("different", f"there is a {self.wrong}")
        return Verification("equal", "the same bits")

    def tools(self, digest: Callable[[str], str] = lambda path: "") -> Instruments:
        return Instruments(self.verify, self.measure, digest, lambda: self.now)
