"""How many requests one session serves when several come at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

_SHORTEST_SECONDS = 0.04
_LONGEST_SECONDS = 1.0
_REQUESTS_EACH = 6


def at_once(runs: Sequence[Callable[[], Any]], typical: float) -> float:
    """Serve requests on one thread for each of `runs` for a short while; seconds for each request served.

    Args:
        runs: One callable for each thread, all on the same session.
        typical: Seconds of a run that is alone.
    """
    window = min(_LONGEST_SECONDS, max(_SHORTEST_SECONDS, _REQUESTS_EACH * typical))
    gate = threading.Barrier(len(runs) + 1)
    served = [0] * len(runs)
    ends = [0.0] * len(runs)
    failures: list[BaseException] = []

    def serve(place: int) -> None:
        try:
            gate.wait()
            end = time.perf_counter() + window
            while time.perf_counter() < end:
                runs[place]()
                served[place] += 1
            ends[place] = time.perf_counter()
        except BaseException as error:  # carried to the thread that asked
            failures.append(error)

    threads = [threading.Thread(target=serve, args=(place,), daemon=True) for place in range(len(runs))]
    for thread in threads:
        thread.start()
    gate.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return (max(ends) - started) / sum(served)
