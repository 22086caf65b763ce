"""Float64 runs of a whole original: the truth that errors of both models are measured against.

The runtime makes them where it has kernels for double. It has none for Erf and Conv among others, nor for its own
operators: there ONNX's reference evaluator is asked, which is slow and knows every standard operator, with the
runtime's own ones by what they are documented to compute (`contrib_reference.py`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from graphopt.errors import ExecutionError, KernelMissingError, ModelRefusedError
from graphopt.runtime.double import in_double
from graphopt.runtime.evidence import Evidence, Outputs
from graphopt.runtime.judging import widen
from graphopt.runtime.session import CPU, JUDGE
from graphopt.runtime.sources import ModelSource
from graphopt.runtime.values import Data

# All runs by the reference evaluator together take no longer: Python loops over the elements of a Conv.
_SECONDS = 60.0


class Truth:
    """The original in float64, run at any number of feeds.

    Raises:
        ValueError: The model cannot be turned into double.
        TypeError: Likewise.
        OSError: It cannot be read.
    """

    def __init__(self, evidence: Evidence, handle: bytes | str | None = None) -> None:
        self._data = in_double(evidence.original.handle if handle is None else handle)
        self._worker = evidence.worker
        self._session = evidence.session(
            ModelSource("the original in float64", data=self._data), JUDGE.but(provider=CPU)
        )
        self._by_reference = False
        self._left = _SECONDS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def run(self, feeds: Mapping[str, Data]) -> Outputs:
        """What the original gives in float64; floats of the feeds are widened.

        Raises:
            ExecutionError: There is no such run.
        """
        wide = {name: widen(value) for name, value in feeds.items()}
        if not self._by_reference:
            try:
                return self._session.run(wide)
            except (KernelMissingError, ModelRefusedError):
                self._by_reference = True
        if self._left <= 0:
            raise ExecutionError("float64 runs by the reference take too long")
        start = time.monotonic()
        found: Outputs = self._worker.call(run_by_reference, self._data, wide, timeout=self._left)
        self._left -= time.monotonic() - start
        return found


def run_by_reference(model: bytes, feeds: Mapping[str, Data]) -> dict[str, Data]:
    """Run a model by ONNX's reference evaluator; called in the worker.

    Raises:
        ExecutionError: It does not know an operator, or fails.
    """
    from onnx import ModelProto
    from onnx.reference import ReferenceEvaluator

    from graphopt.runtime.contrib_reference import contrib_operators

    proto = ModelProto.FromString(model)
    for entry in proto.opset_import:
        entry.domain = "" if entry.domain == "ai.onnx" else entry.domain  # the evaluator knows one name of the two
    try:
        evaluator: Any = ReferenceEvaluator(proto, new_ops=contrib_operators())
        with np.errstate(all="ignore"):
            results = evaluator.run(None, dict(feeds))
    except Exception as error:  # the evaluator raises whatever numpy does
        raise ExecutionError(f"no float64 run by the reference: {' '.join(str(error).split())[:200]}") from error
    return dict(zip(evaluator.output_names, results, strict=True))
