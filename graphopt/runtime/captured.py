"""Runs recorded as a CUDA graph: fixed buffers on the device, one recording for each set of input shapes.

The runtime records the kernels of a run once and starts them together from then on. It wants inputs and outputs at the
same addresses in every run; the run option `gpu_graph_id` tells one recording from another, and -1 runs without.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from graphopt.errors import ValueNotSupportedError
from graphopt.runtime.session import CUDA, problem, runtime

_PLAIN = -1
_numbers = itertools.count()
# Every recording keeps its buffers and the memory of its kernels on the device.
MOST_RECORDINGS = 16


def is_recorded(raw: Any) -> bool:
    """True where a session runs as a CUDA graph."""
    if CUDA not in raw.get_providers():
        return False
    return str(raw.get_provider_options().get(CUDA, {}).get("enable_cuda_graph", "0")) in ("1", "True", "true")


class Recording:
    """One set of shapes: buffers on the device and the graph that works on them."""

    def __init__(self, raw: Any, feeds: Mapping[str, Any], place: str = "cuda") -> None:
        """Run once to learn the shapes of the outputs, then record.

        Args:
            raw: The runtime's session.
            feeds: Inputs as arrays that the runtime takes.
            place: Where the buffers lie, as the runtime calls it.

        Raises:
            ValueNotSupportedError: An input is no array that can lie on the device.
        """
        ort = runtime()
        device = int(raw.get_provider_options().get(CUDA, {}).get("device_id", 0))
        self._raw = raw
        self._names = [output.name for output in raw.get_outputs()]
        self._inputs: dict[str, Any] = {}
        for name, value in feeds.items():
            if not isinstance(value, np.ndarray) or value.dtype == object:
                raise ValueNotSupportedError(f"a CUDA graph takes plain arrays, and input {name!r} is none")
            self._inputs[name] = ort.OrtValue.ortvalue_from_numpy(value, place, device)
        first = self._binding()
        for name in self._names:
            first.bind_output(name, place, device)
        raw.run_with_iobinding(first, _options(ort, _PLAIN))
        first.synchronize_outputs()
        self._outputs = dict(zip(self._names, first.get_outputs(), strict=True))
        self._bound = self._binding()
        for name, value in self._outputs.items():
            self._bound.bind_ortvalue_output(name, value)
        self._options = _options(ort, next(_numbers))
        self.replay()

    def _binding(self) -> Any:
        binding = self._raw.io_binding()
        for name, value in self._inputs.items():
            binding.bind_ortvalue_input(name, value)
        return binding

    def replay(self) -> None:
        """Run on what the buffers hold."""
        self._raw.run_with_iobinding(self._bound, self._options)
        self._bound.synchronize_outputs()

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Copy inputs in, run, copy outputs out."""
        for name, value in feeds.items():
            self._inputs[name].update_inplace(value)
        self.replay()
        arrays = {name: value.numpy() for name, value in self._outputs.items()}
        # From a device they come as copies; what still looks into a buffer would change with the next run.
        return {name: array if array.flags.owndata else array.copy() for name, array in arrays.items()}


class Recordings:
    """The recordings of one session; calls wait for each other, since they share buffers."""

    def __init__(self, raw: Any, most: int = MOST_RECORDINGS) -> None:
        self._raw = raw
        self._most = most
        self._lock = threading.Lock()
        self._known: dict[tuple[Any, ...], Recording] = {}

    def run(self, feeds: Mapping[str, Any], warn: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
        """Run inputs of any shape, recording a shape when it first comes.

        Empty inputs, and shapes beyond the number that is kept, run without a graph.

        Raises:
            ExecutionError: The runtime raised.
        """
        key = tuple(sorted((name, value.shape, value.dtype.str) for name, value in feeds.items()))
        empty = any(value.size == 0 for value in feeds.values())
        with self._lock:
            known = self._known.get(key)
            try:
                if known is not None:
                    return known.run(feeds)
                if empty or len(self._known) >= self._most:
                    if not empty:
                        warn(
                            f"inputs had {self._most} other shapes before, each recorded as a CUDA graph; further ones "
                            "run without a graph. Pad inputs to fewer shapes, or tune with dynamic sizes in mind"
                        )
                    return self._plain(feeds)
                self._known[key] = Recording(self._raw, feeds)
                return self._known[key].run(feeds)
            except ValueNotSupportedError:
                raise
            except Exception as error:
                raise problem(error, loading=False) from error

    def _plain(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        names = [output.name for output in self._raw.get_outputs()]
        values = self._raw.run(names, dict(feeds), _options(runtime(), _PLAIN))
        return dict(zip(names, values, strict=True))


def _options(ort: Any, number: int) -> Any:
    options = ort.RunOptions()
    options.add_run_config_entry("gpu_graph_id", str(number))
    return options
