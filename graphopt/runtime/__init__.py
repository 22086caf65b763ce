"""Everything about running models: verdicts, timings, evaluation, the judge of numeric classes.

The names below load their modules on first use, so that importing graphopt imports neither onnx nor onnxruntime.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphopt.runtime.diagnosis import doctor
    from graphopt.runtime.evaluate import evaluate_model, evaluate_models
    from graphopt.runtime.hotspots import Touched
    from graphopt.runtime.judging import judge
    from graphopt.runtime.latency import benchmark
    from graphopt.runtime.loading import LoadedModel, load
    from graphopt.runtime.sampling import sample
    from graphopt.runtime.support import loads_opset, look_at_part
    from graphopt.runtime.sweeps import sweep
    from graphopt.runtime.verification import verify
    from graphopt.runtime.worker import Worker, shared_worker

_HOMES = {
    "benchmark": "latency",
    "doctor": "diagnosis",
    "evaluate_model": "evaluate",
    "evaluate_models": "evaluate",
    "judge": "judging",
    "load": "loading",
    "LoadedModel": "loading",
    "loads_opset": "support",
    "look_at_part": "support",
    "sample": "sampling",
    "shared_worker": "worker",
    "sweep": "sweeps",
    "Touched": "hotspots",
    "verify": "verification",
    "Worker": "worker",
}

__all__ = [
    "LoadedModel",
    "Touched",
    "Worker",
    "benchmark",
    "doctor",
    "evaluate_model",
    "evaluate_models",
    "judge",
    "load",
    "loads_opset",
    "look_at_part",
    "sample",
    "shared_worker",
    "sweep",
    "verify",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"graphopt.runtime.{home}"), name)
    globals()[name] = value
    return value
