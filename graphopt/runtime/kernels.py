"""Which kernels the installed ONNX Runtime has, found out by loading one small model for each."""

from __future__ import annotations

from graphopt.onnxio import parse_text
from graphopt.runtime.session import ALONE, CPU, preload, runtime
from graphopt.targets import MICROSOFT, PROBES
from graphopt.tensors import DType

_ASKED = (DType.FLOAT, DType.FLOAT16, DType.BFLOAT16, DType.DOUBLE)


def kernels_of(provider: str) -> dict[str, list[str]]:
    """Ask a provider of this process for its kernels.

    Returns:
        `domain::operator` -> element types it runs, as ONNX spells them; operators it has none for are left out.
    """
    if provider != CPU:
        preload()
    found: dict[str, list[str]] = {}
    for key in PROBES:
        dtypes = [dtype.text for dtype in _ASKED if has_kernel(provider, key, dtype)]
        if dtypes:
            found[key] = dtypes
    return found


def has_kernel(provider: str, key: str, dtype: DType) -> bool:
    """True if the provider itself loads the probe `key` in that element type, with nothing left to the CPU."""
    opset, text = PROBES[key]
    model = parse_text(text.replace("T[", f"{dtype.text}["), {"": opset, MICROSOFT: 1})
    ort = runtime()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if provider != CPU:
        options.add_session_config_entry(ALONE, "1")
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=[provider])
    except Exception:  # whatever it says: it does not load
        return False
    return bool(session.get_providers()[0] == provider)
