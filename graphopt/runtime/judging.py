"""The judge of numeric classes: does a rewriting keep what its class promises, on these feeds?

Both sides run on the CPU provider with the runtime's optimizer off, kernel pre-packing off and one thread; there a
rewriting of class E is bit for bit. Operators that only CUDA has are judged there, both sides, without TF32. Sessions
live in this process: a judgement of a small model takes about a millisecond.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from graphopt.errors import ExecutionError
from graphopt.records import JudgeResult
from graphopt.runtime.compare import compare, eps, is_float, same_bits, ulps
from graphopt.runtime.double import in_double
from graphopt.runtime.session import JUDGE, Session, resolve_provider
from graphopt.runtime.set_ups import SetUp
from graphopt.runtime.values import Data, ort_element_name

Outputs = Mapping[str, Data]
Check = Callable[[np.ndarray[Any, Any], np.ndarray[Any, Any]], tuple[float, str]]

_TRUTH_FACTOR = 2.0
_TRUTH_EPS = 4.0
# What class R allows, in units of the last place of the largest value, where no float64 run exists.
_NO_TRUTH_EPS = 64.0


def judge(
    before: Any,
    after: Any,
    numeric: str = "E",
    feeds: Sequence[Mapping[str, Data]] = ({},),
    *,
    ulp: int = 4,
    same_signature: bool = True,
    provider: str = "cpu",
) -> JudgeResult:
    """Judge `after` against `before` at a numeric class.

    Args:
        before: Serialized model or ModelProto.
        after: The rewritten model in the same form.
        numeric: S or E (bit for bit), Z (but for the sign of zero, denormals and NaN payload), U (at most `ulp` units
            in the last place), R (error against a float64 run), D (shapes and dtypes only).
        feeds: Inputs; a feed at which `before` fails covers nothing.
        ulp: What class U allows.
        same_signature: Whether names, order and dtypes of inputs and outputs must agree.
        provider: Where both sides run; the float64 run is the CPU's, whatever this says.

    Raises:
        ProviderMissingError: The provider does not start here.
        ExecutionError: `before` does not load.
    """
    settings = SetUp(resolve_provider(provider)).judged()
    left = Session(_bytes(before), settings)
    try:
        right = Session(_bytes(after), settings)
    except ExecutionError as error:
        return JudgeResult(False, f"the result does not load ({error.reason}): {error}", numeric)
    if same_signature and (mismatch := _signature(left, right)):
        return JudgeResult(False, mismatch, numeric)
    truth = _Truth(before) if numeric == "R" else None
    compared = skipped = 0
    worst = 0.0
    for number, feed in enumerate(feeds):
        try:
            expected = left.run(feed)
        except ExecutionError:
            skipped += 1
            continue
        try:
            got = right.run({name: value for name, value in feed.items() if name in right.names})
        except ExecutionError as error:
            return JudgeResult(
                False, f"feed {number}: the result fails where the original runs: {error}", numeric, compared, skipped
            )
        compared += 1
        for name, reference in expected.items():
            deviation, why = _judge_value(
                reference, got[name], numeric, ulp, truth.of(feed, name) if truth is not None else None
            )
            worst = max(worst, deviation)
            if why:
                return JudgeResult(False, f"feed {number}, output {name!r}: {why}", numeric, compared, skipped, worst)
    note = f"class {numeric} holds on {compared} feeds"
    if truth is not None and truth.failure:
        note += f"; no float64 run ({truth.failure}): {_NO_TRUTH_EPS:g} units in the last place of the largest value"
    return JudgeResult(True, note, numeric, compared, skipped, worst)


def _bytes(model: Any) -> bytes | str:
    if isinstance(model, bytes | str):
        return model
    if hasattr(model, "SerializeToString"):
        return bytes(model.SerializeToString())
    from graphopt.onnxio import to_proto

    return bytes(to_proto(model).SerializeToString())


def _signature(left: Session, right: Session) -> str:
    for what, one, other in (
        ("inputs", left.info.inputs, right.info.inputs),
        ("outputs", left.info.outputs, right.info.outputs),
    ):
        expected = [(port.name, port.type, port.overridable) for port in one]
        got = [(port.name, port.type, port.overridable) for port in other]
        if expected != got:
            return f"the {what} were {[item[:2] for item in expected]} and are {[item[:2] for item in got]}"
    return ""


class _Truth:
    """Float64 runs of the original, made only for class R and only where the model can be turned into double.

    The runtime runs them where it has kernels for double; it has none for Conv, so that ONNX's reference evaluator,
    which is slow and has them all, is asked next.
    """

    def __init__(self, before: Any) -> None:
        self.failure = ""
        self._run: Callable[[dict[str, Data]], Outputs] | None = None
        self._reference: Any = None
        self._last: tuple[int, Outputs] | None = None
        try:
            self._model = in_double(_bytes(before))
            self._run = Session(self._model, JUDGE).run
        except (ValueError, TypeError) as error:
            self.failure = str(error)
        except ExecutionError:
            self._fall_back()

    def of(self, feed: Mapping[str, Data], name: str) -> np.ndarray[Any, Any] | None:
        """The true value of an output; None where there is none."""
        while self._run is not None:
            if self._last is not None and self._last[0] == id(feed):
                value = self._last[1].get(name)
                return value if isinstance(value, np.ndarray) else None
            try:
                self._last = (id(feed), self._run({key: widen(value) for key, value in feed.items()}))
            except Exception as error:  # the reference evaluator raises whatever numpy does
                if self._reference is not None:
                    self._run, self.failure = None, " ".join(str(error).split())[:120]
                else:
                    self._fall_back()
        return None

    def _fall_back(self) -> None:
        from onnx import ModelProto
        from onnx.reference import ReferenceEvaluator

        self._run = None
        try:
            self._reference = ReferenceEvaluator(ModelProto.FromString(self._model))
        except Exception as error:  # an operator that it does not know
            self.failure = " ".join(str(error).split())[:120]
            return
        names = list(self._reference.output_names)

        def run(feeds: dict[str, Data]) -> Outputs:
            with np.errstate(all="ignore"):
                return dict(zip(names, self._reference.run(None, feeds), strict=True))

        self._run = run


def widen(value: Data) -> Data:
    """Floats of a feed as float64."""
    if isinstance(value, list | tuple):
        return [widen(item) for item in value]
    if isinstance(value, np.ndarray) and is_float(value.dtype) and value.dtype.kind != "c":
        return value.astype(np.float64)
    return value


def _judge_value(
    reference: Data, got: Data, numeric: str, ulp: int, truth: np.ndarray[Any, Any] | None
) -> tuple[float, str]:
    """(deviation, what is wrong)."""
    if isinstance(reference, np.ndarray) and isinstance(got, np.ndarray):
        if reference.dtype != got.dtype:
            return math.inf, f"dtype {got.dtype.name}, was {reference.dtype.name}"
        if reference.shape != got.shape:
            return math.inf, f"shape {list(got.shape)}, was {list(reference.shape)}"
        return _judge_array(reference, got, numeric, ulp, truth)
    if isinstance(reference, list | tuple) and isinstance(got, list | tuple):
        if len(reference) != len(got):
            return math.inf, f"a sequence of {len(got)}, was {len(reference)}"
        worst = 0.0
        for one, other in zip(reference, got, strict=True):
            deviation, why = _judge_value(one, other, numeric, ulp, None)
            worst = max(worst, deviation)
            if why:
                return worst, why
        return worst, ""
    difference = compare(reference, got)
    return (0.0, "") if difference.identical else (math.inf, difference.mismatch or "the values differ")


def _judge_array(
    reference: np.ndarray[Any, Any],
    got: np.ndarray[Any, Any],
    numeric: str,
    ulp: int,
    truth: np.ndarray[Any, Any] | None,
) -> tuple[float, str]:
    if numeric == "D" or reference.size == 0 or same_bits(reference, got):
        return 0.0, ""
    if numeric in ("S", "E") or not is_float(reference.dtype) or ort_element_name(reference.dtype) == "string":
        return math.inf, _first_difference(reference, got)
    if numeric == "Z":
        return _judge_z(reference, got)
    if reference.dtype.kind == "c":
        difference = compare(reference, got)
        allowed = (ulp if numeric == "U" else _NO_TRUTH_EPS) * difference.epsilon
        return difference.error, "" if difference.error <= allowed else f"off by {difference.error:.2g} of the scale"
    if numeric == "U":
        distance = ulps(reference, got)
        worst = float(distance.max())
        return (
            worst,
            ""
            if worst <= ulp
            else f"off by {worst:g} units in the last place ({ulp} allowed); {_first_difference(reference, got)}",
        )
    return judge_r(reference, got, truth)


def _judge_z(reference: np.ndarray[Any, Any], got: np.ndarray[Any, Any]) -> tuple[float, str]:
    left, right = reference.astype(np.float64), got.astype(np.float64)
    tiny = _smallest_normal(reference.dtype)
    both_small = (np.abs(left) < tiny) & (np.abs(right) < tiny)  # zeros of either sign and denormals, flushed or not
    fine = (left == right) | (np.isnan(left) & np.isnan(right)) | both_small
    return (0.0, "") if bool(fine.all()) else (math.inf, _first_difference(reference, got, ~fine))


def _smallest_normal(dtype: np.dtype[Any]) -> float:
    if dtype.kind == "f" and dtype.itemsize > 1:
        return float(np.finfo(dtype).smallest_normal)
    return float(ml_dtypes.finfo(dtype).smallest_normal)  # type: ignore[no-untyped-call]


def judge_r(
    reference: np.ndarray[Any, Any],
    got: np.ndarray[Any, Any],
    truth: np.ndarray[Any, Any] | None,
    made_in: np.dtype[Any] | None = None,
) -> tuple[float, str]:
    """Class R on one array.

    Args:
        reference: What the original gave.
        got: What the rewritten model gave.
        truth: The float64 run, if there is one.
        made_in: The dtype that the numbers were computed in, if they were only cast to that of the array.

    Returns:
        The error over what is allowed, and what is wrong.
    """
    left, right = reference.astype(np.float64), got.astype(np.float64)
    if truth is not None and truth.shape != reference.shape:
        truth = None
    # A NaN in the truth decides nothing that the original does not: there the result has to agree with it.
    true = left if truth is None else np.where(np.isnan(truth), left, truth.astype(np.float64))
    limit = _largest(reference.dtype)
    with np.errstate(all="ignore"):
        inside = np.abs(true) < limit
        fine = (left == right) | (np.isnan(left) & np.isnan(right))
        if truth is not None:
            # Where a sum overflows depends on its order: past the range of the dtype only the sign can be held to.
            fine |= ~inside & (np.sign(right) == np.sign(true))
        known = inside & np.isfinite(left)
        own = float(np.max(np.abs(left - true), initial=0.0, where=known)) if truth is not None else 0.0
        scale = float(np.max(np.abs(true), initial=0.0, where=inside))
        factor = _TRUTH_EPS if truth is not None else _NO_TRUTH_EPS
        allowed = _TRUTH_FACTOR * own + max(
            factor * eps(made_in or reference.dtype) * scale, _smallest_normal(reference.dtype)
        )
        error = np.where(inside & np.isfinite(right), np.abs(right - true), np.inf)
    worst = float(np.max(error, initial=0.0, where=~fine))
    fine |= error <= allowed
    if bool(fine.all()):
        return worst / allowed, ""
    if not math.isfinite(worst):
        return worst, _first_difference(reference, got, ~fine)
    against = "against the float64 run" if truth is not None else "against the original (there is no float64 run)"
    return worst / allowed, f"error {worst:.3g} {against}, {allowed:.3g} allowed (the original's own is {own:.3g})"


def _largest(dtype: np.dtype[Any]) -> float:
    if dtype.kind == "f" and dtype.itemsize > 1:
        return float(np.finfo(dtype).max)
    return float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]


def _first_difference(
    reference: np.ndarray[Any, Any], got: np.ndarray[Any, Any], wrong: np.ndarray[Any, Any] | None = None
) -> str:
    left, right = reference.reshape(-1), got.reshape(-1)
    if wrong is None:
        if reference.dtype.kind in "OSU":
            wrong = np.asarray(left != right)
        else:
            width = reference.dtype.itemsize
            one = np.ascontiguousarray(left).view(np.uint8).reshape(-1, width)
            other = np.ascontiguousarray(right).view(np.uint8).reshape(-1, width)
            wrong = (one != other).any(axis=1)
    places = np.flatnonzero(wrong.reshape(-1))
    if not places.size:
        return "the values differ"
    where = [int(index) for index in np.unravel_index(int(places[0]), reference.shape)]
    was, now = left[places[0]], right[places[0]]
    return f"{places.size} of {left.size} elements differ, first at {where}: {was!r} was, {now!r} is"
