"""The same comparison at several sizes, one after the other, in one time budget."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graphopt.errors import FeedError, UsageError
from graphopt.measurements import Benchmark, Sweep
from graphopt.runtime.latency import benchmark
from graphopt.runtime.sources import open_source
from graphopt.runtime.worker import Worker

_MOST_POINTS = 200


def points_of(sizes: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """Every combination of sizes, the last dim fastest.

    Raises:
        UsageError: There are too many.
    """
    points = [dict(zip(sizes, chosen, strict=True)) for chosen in itertools.product(*sizes.values())]
    if len(points) > _MOST_POINTS:
        raise UsageError(f"the sweep has {len(points)} points and at most {_MOST_POINTS} are timed; give fewer sizes")
    return points


def sweep(
    original: Any,
    rewritten: Any,
    *,
    sweep: Mapping[str, Sequence[int]],
    dims: Mapping[str, int] | None = None,
    max_time: float = 30.0,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> Sweep:
    """Compare two models at every combination of sizes.

    Args:
        original: A path, bytes, ModelProto or Graph.
        rewritten: The same for the other side.
        sweep: Name of a symbolic dim -> sizes; several dims give their cross product.
        dims: Sizes of further dims, the same at all points.
        max_time: Seconds for all points together; what a point leaves over goes to the rest.
        progress: Told which point is timed.
        **options: See `benchmark`.

    Raises:
        FeedError: An option names something that the model does not have.
        UsageError: There are too many points.
    """
    started = time.monotonic()
    points = points_of(sweep)
    found: list[Benchmark] = []
    with (
        open_source(original, "original") as first,
        open_source(rewritten, "rewritten") as second,
        Worker() as worker,
    ):
        for number, point in enumerate(points):
            if progress is not None:
                progress(f"{number + 1}/{len(points)} " + ", ".join(f"{name} {size}" for name, size in point.items()))
            # Where nodes run is looked at once, at the first point, which also starts the runtime.
            parts = len(points) - number + (number == 0)
            share = max(0.0, max_time - (time.monotonic() - started)) / parts * (2 if number == 0 else 1)
            wanted = {**options, "placement": options.get("placement", True) and number == 0}
            sizes = {**(dims or {}), **point}
            try:
                found.append(benchmark(first, second, dims=sizes, max_time=share, worker=worker, **wanted))
            except FeedError as error:
                raise FeedError(str(error).replace("--dim names", "--sweep names")) from error
    return Sweep(tuple(found), time.monotonic() - started)
