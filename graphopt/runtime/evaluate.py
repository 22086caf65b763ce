"""Running small models to fold constants: in this process where that is safe, in the worker where it may not be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphopt.runtime.remote import evaluate_here
from graphopt.runtime.session import JUDGE, Session
from graphopt.runtime.values import Data
from graphopt.runtime.worker import Worker, shared_worker


def evaluate_model(
    model: bytes | str,
    feeds: Mapping[str, Data],
    *,
    in_worker: bool = False,
    timeout: float | None = None,
    memory_limit: int | None = None,
    worker: Worker | None = None,
) -> dict[str, Data]:
    """Run a model once and give its outputs by name, as numpy arrays (ml_dtypes where numpy lacks the dtype).

    One thread, no arena, no pre-packing, the runtime's optimizer off: the bits are those that the judge sees.

    Args:
        model: Serialized model, or a path where it has external data.
        feeds: Input -> array.
        in_worker: Run in the worker process; for loops and sizes that nobody knows.
        timeout: Seconds allowed, in the worker only.
        memory_limit: Bytes allowed, in the worker only.
        worker: The process; by default the one that all calls share.

    Raises:
        KernelMissingError: A node has no CPU kernel for its dtypes.
        ModelRefusedError: The model does not load.
        RunFailedError: A node raised.
        ValueNotSupportedError: A value cannot be handed over in Python.
        WorkerCrashedError: The worker died.
        WorkerTimeoutError: It took too long.
        WorkerMemoryError: It took too much memory.
    """
    if not in_worker:
        return Session(model, JUDGE).run(feeds)
    process = worker or shared_worker()
    result: dict[str, Data] = process.call(
        evaluate_here, model, dict(feeds), JUDGE, timeout=timeout, memory_limit=memory_limit
    )
    return result


def evaluate_models(
    models: list[tuple[bytes | str, Mapping[str, Data]]], **options: Any
) -> list[dict[str, Data] | Exception]:
    """Run several models; a model that fails gives its error in place of outputs. Options as in `evaluate_model`."""
    from graphopt.errors import ExecutionError

    results: list[dict[str, Data] | Exception] = []
    for model, feeds in models:
        try:
            results.append(evaluate_model(model, feeds, **options))
        except ExecutionError as error:
            results.append(error)
    return results
