from __future__ import annotations

from collections.abc import Iterator

import pytest

from graphopt.runtime.worker import Worker


@pytest.fixture(scope="session")
def worker() -> Iterator[Worker]:
    """One process for all tests of a session."""
    with Worker(timeout=120) as process:
        yield process


@pytest.fixture(scope="session")
def cuda(worker: Worker) -> str:
    from graphopt.runtime.remote import starts_here

    if not worker.call(starts_here, "cuda"):
        pytest.skip("the CUDA provider does not really run here")
    return "cuda"
