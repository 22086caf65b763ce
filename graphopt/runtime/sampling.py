"""Inputs a model runs on, with what it gives for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphopt.runtime.evidence import Evidence
from graphopt.runtime.feeds import FeedOptions
from graphopt.runtime.remote import provider_here
from graphopt.runtime.sources import open_source
from graphopt.runtime.values import Data
from graphopt.runtime.worker import Worker, shared_worker

_RUN_SECONDS = 300.0


def sample(
    model: Any,
    *,
    provider: str = "auto",
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    seed: int = 0,
    data: str | Path | None = None,
    custom_ops: Sequence[str] = (),
    timeout: float | None = None,
    worker: Worker | None = None,
) -> list[tuple[dict[str, Data], dict[str, Data]]]:
    """Run a model, unoptimized, on the inputs that `verify` would compare it on.

    Args:
        model: A path, bytes, ModelProto or Graph.
        provider: "auto", "cpu", "cuda" or a name of the runtime's.
        dims: Name of a symbolic dim -> size.
        shapes: Input -> shape.
        ranges: Input -> (smallest, largest) value.
        seed: Seed of the made inputs.
        data: A file or folder of the user's inputs, see `read_data`.
        custom_ops: Libraries of custom operators.
        timeout: Seconds that one load or run may take.
        worker: The process to run in; by default the one that all calls share.

    Returns:
        Inputs and outputs by name, one pair for each feed that works; none if there is none.

    Raises:
        ExecutionError: the model does not load.
        FeedError: an option names something that the model does not have, or the user's data does not fit.
    """
    options = FeedOptions(
        dict(dims or {}), {name: tuple(shape) for name, shape in (shapes or {}).items()}, dict(ranges or {}), seed
    )
    process = worker or shared_worker()
    with open_source(model) as source:
        evidence = Evidence(source, source, process, options, tuple(custom_ops), timeout or _RUN_SECONDS)
        evidence.provider = process.call(provider_here, provider)
        evidence.run_original(None, data)
        return [(dict(feed.values), outputs) for feed, outputs in evidence.found.working]
