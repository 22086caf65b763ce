"""Sessions that run a model as it is written."""

from __future__ import annotations

import onnxruntime as ort
from onnx import ModelProto


def session(model: ModelProto) -> ort.InferenceSession:
    """A model on the CPU, in one thread, with nothing optimized."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
