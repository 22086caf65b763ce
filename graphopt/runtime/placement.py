"""The graph that ONNX Runtime really runs: the nodes left after its own optimization, and the provider of each.

The runtime writes its graph to a file at the end of loading; `Memcpy` nodes (copies between host and device) and the
operators of its own fusions stand in it. Its profiler names the provider of every node that ran, by the same names.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping

from graphopt.measurements import Placement
from graphopt.runtime.contents import count_operators
from graphopt.runtime.session import CPU, Session, SessionSettings
from graphopt.runtime.sources import ModelSource

COPIES = ("MemcpyFromHost", "MemcpyToHost")
# A model above this is not written out again only to be counted.
LARGEST_BYTES = 1 << 30


def graph_here(model: str | bytes, settings: SessionSettings) -> tuple[str, dict[str, int]]:
    """Load a model in this process without running it.

    Returns:
        The provider that the session got, and the operators of the graph that it would run.

    Raises:
        ModelRefusedError: The runtime will not load the model.
        ValueError: What the runtime wrote cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="graphopt-") as folder:
        path = os.path.join(folder, "runs.onnx")
        session = Session(model, settings.but(optimized_path=path))
        return session.info.provider, operators_of(path)


def operators_of(path: str) -> dict[str, int]:
    """Operators of a model file, most frequent first.

    Raises:
        ValueError: It cannot be read.
    """
    counts = count_operators(ModelSource(path, path=path))
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def copies_in(operators: Mapping[str, int]) -> int:
    """Copies between host and device."""
    return sum(operators.get(name, 0) for name in COPIES)


def placement_of(
    assigned: Iterable[tuple[str, str, str]], operators: Mapping[str, int] | None, provider: str
) -> Placement:
    """Put together what the profiler saw and what the runtime wrote.

    Args:
        assigned: (node, operator, provider) for every node that ran.
        operators: Operators of the graph that runs; None where it was not written, then what ran is counted.
        provider: The provider that was asked for.
    """
    ran = tuple(dict.fromkeys(assigned))
    counts = operators if operators is not None else dict(Counter(operator for _, operator, _ in ran).most_common())
    on_host = Counter(
        operator for _, operator, place in ran if place == CPU and provider != CPU and operator not in COPIES
    )
    return Placement(
        nodes=sum(counts.values()),
        copies=copies_in(counts),
        providers=dict(Counter(place for _, _, place in ran).most_common()),
        on_host=dict(on_host.most_common()),
        operators=dict(counts),
        assigned=ran,
    )
