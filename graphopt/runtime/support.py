"""What the installed ONNX Runtime knows, found out by asking it."""

from __future__ import annotations

from functools import cache

from graphopt.onnxio import parse_text

_UNKNOWN_RANK = "Field 'shape' of 'type' is required"
"""What the checker says of an input or output whose rank nobody knows."""


@cache
def loads_opset(opset: int) -> bool:
    """True if the installed ONNX Runtime loads models that import that opset of the standard domain."""
    import onnxruntime

    model = parse_text("(float[1] x) => (float[1] y) { y = Identity(x) }", {"": opset})
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # whatever it says: it does not load
        return False
    return True


def load_problem(path: str, *, custom_ops: tuple[str, ...] = ()) -> str:
    """What the installed ONNX Runtime says against loading a model file on the CPU; empty if it loads.

    It is tried in the worker process, for a model may take the runtime down with it.
    """
    from graphopt.errors import ExecutionError
    from graphopt.runtime.remote import RemoteSession
    from graphopt.runtime.session import SessionSettings
    from graphopt.runtime.sources import ModelSource

    with RemoteSession(ModelSource("model", path), SessionSettings(custom_ops=custom_ops)) as session:
        try:
            _ = session.info
        except ExecutionError as error:
            return str(error)
    return ""


def look_at_part(path: str, original: str, custom_ops: tuple[str, ...] = ()) -> tuple[str, str]:
    """Whether a part cut out of a model may be used: what ONNX's checker says, and whether the runtime loads it.

    Args:
        path: The part.
        original: The model it comes from: what the checker says against that too is no fault of the part.
        custom_ops: Libraries of custom operators.

    Returns:
        The problem and a remark, each empty if there is none.
    """
    complaint, remark = _complaint(path), ""
    if complaint and (_UNKNOWN_RANK in complaint or _complaint(original)):
        complaint, remark = "", f"the runtime loads it, though ONNX's checker says: {complaint}"
    problem = load_problem(path, custom_ops=custom_ops)
    if problem:
        return problem, ""
    return (f"ONNX's checker refuses it: {complaint}" if complaint else ""), remark


def _complaint(path: str) -> str:
    from onnx import checker

    try:
        checker.check_model(path)
    except checker.ValidationError as error:
        return str(error).strip().split("\n", 1)[0]
    return ""
