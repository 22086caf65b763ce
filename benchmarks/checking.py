"""An independent check that a rewritten model is the original: it shares no code with graphopt's own verification.

    python benchmarks/checking.py ORIGINAL REWRITTEN… [--exact]      prints one JSON line for each result

Looked at: the signature (names, order, types, dims of inputs and outputs), whether the ONNX checker and ONNX Runtime
still accept the model, and the outputs on ONNX Runtime's CPU provider with its optimizer off.

How far apart outputs may be is measured, not guessed: the largest difference of the *original* between the runtime's
optimizer off and on, and under a change of its inputs to the next float number, times a small factor, under a ceiling.
With `exact` every bit has to be the same (pre-packing of weights is off on both sides, it chooses other kernels).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from common import bodies
from distance import CEILING, LEAST_EPSILONS, difference, epsilon, is_float, same_bits, scale
from feeds import (
    SIZES_TO_TRY,
    Feeds,
    InputSpec,
    guess_specs,
    make_feeds,
    nudge,
    other_sizes,
    read_index,
    required_inputs,
)

FACTOR = 4.0  # a difference may be this many times the measured noise
MANY_NUMBERS = 2_000_000  # a model with more of them in and out is compared on one set of feeds only
HALF_EPSILON = 2.0**-10


# --- structure


def describe_type(value: onnx.ValueInfoProto) -> str:
    """Return a text of a type: dtype and dims, or the whole proto for what is not a tensor."""
    if not value.type.HasField("tensor_type"):
        return str(value.type).replace("\n", " ")
    tensor = value.type.tensor_type
    dtype = type_name(tensor.elem_type)
    if not tensor.HasField("shape"):
        return dtype
    dims = [str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in tensor.shape.dim]
    return f"{dtype}[{','.join(dims)}]"


def type_name(elem_type: int) -> str:
    """Return the lower-case name of an ONNX element type."""
    return str(onnx.TensorProto.DataType.Name(elem_type)).lower()


def signature(model: onnx.ModelProto) -> dict[str, list[tuple[str, str]]]:
    """Return what a caller relies on: required inputs, inputs with a default, outputs, each with its type.

    Before IR version 4 every initializer is listed as an input and none can be overridden, so there the second list is
    empty.
    """
    required = [value.name for value in required_inputs(model)]
    optional = [v for v in model.graph.input if v.name not in required] if model.ir_version >= 4 else []
    return {
        "input": [(value.name, describe_type(value)) for value in model.graph.input if value.name in required],
        "overridable input": [(value.name, describe_type(value)) for value in optional],
        "output": [(value.name, describe_type(value)) for value in model.graph.output],
    }


def signature_differences(original: onnx.ModelProto, rewritten: onnx.ModelProto) -> list[str]:
    """Say how the signatures differ, one sentence each."""
    found = []
    before, after = signature(original), signature(rewritten)
    for kind, old in before.items():
        new = after[kind]
        if [name for name, _ in old] != [name for name, _ in new]:
            found.append(f"{kind}s {[name for name, _ in old]} became {[name for name, _ in new]}")
            continue
        found += [f"{kind} {a[0]}: {a[1]} became {b[1]}" for a, b in zip(old, new, strict=True) if a != b]
    return found


def checker_problem(path: Path) -> str | None:
    """Return why the ONNX checker refuses a model, or None."""
    try:
        onnx.checker.check_model(str(path))
    except Exception as error:
        return short(error)
    return None


def uses_half_precision(graph: onnx.GraphProto) -> bool:
    """Say whether a graph or a body in it has float16 inputs or weights, or casts to float16 (or bfloat16)."""
    kinds = {value.type.tensor_type.elem_type for value in graph.input}
    kinds |= {tensor.data_type for tensor in graph.initializer}
    for node in graph.node:
        kinds |= {attribute.i for attribute in node.attribute if node.op_type == "Cast" and attribute.name == "to"}
        kinds |= {attribute.t.data_type for attribute in node.attribute if attribute.HasField("t")}
        if any(uses_half_precision(body) for body in bodies(node)):
            return True
    return bool(kinds & {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16})


def short(error: BaseException, length: int = 200) -> str:
    """Return an error as one short line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:length]}"


# --- running


def open_session(path: Path, optimized: bool) -> Any:
    """Open a single-threaded CPU session; with the optimizer off, pre-packing is off too."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.disable_prepacking", "1")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(session: Any, feeds: Feeds) -> list[Any]:
    """Run a session and flatten its outputs: sequences, maps and absent optionals become items of one list."""
    flat: list[Any] = []
    for output in session.run(None, feeds):
        flatten(output, flat)
    return flat


def flatten(output: Any, into: list[Any]) -> None:
    """Append the arrays of an output; a nested output leaves its length or keys behind, so that those compare too."""
    if isinstance(output, dict):
        into.append(np.array([str(key) for key in output], dtype=object))
        for value in output.values():
            flatten(value, into)
    elif isinstance(output, list):
        into.append(np.array(len(output)))
        for item in output:
            flatten(item, into)
    elif output is None:
        into.append(np.array("absent", dtype=object))
    else:
        into.append(np.asarray(output))


# --- comparing


@dataclass(frozen=True, slots=True)
class Answer:
    """The original's outputs for one set of feeds, and how far each moves by itself.

    Attributes:
        outputs: With the runtime's optimizer off.
        optimized: With it on; None if the original fails there.
        noise: For each output the largest difference seen: off against on, and off under a nudge of the inputs.
    """

    feeds: Feeds
    outputs: list[Any]
    optimized: list[Any] | None
    noise: list[float]
    label: str


@dataclass(slots=True)
class Verdict:
    """What a comparison came to: `equal`, `different` or `not verified`."""

    verdict: str
    reason: str = ""
    feeds: list[str] = field(default_factory=list)
    worst_of_scale: float = 0.0


class Original:
    """The original model: loaded and run once, compared with any number of rewritten ones."""

    def __init__(self, path: Path, specs: Sequence[InputSpec] | None = None, variations: bool = True) -> None:
        self.path = path
        self.model = onnx.load(path, load_external_data=False)
        self.checker_problem = checker_problem(path)
        self.half = uses_half_precision(self.model.graph)
        self.answers: list[Answer] = []
        self.unverifiable = ""
        try:
            self.off = open_session(path, optimized=False)
        except Exception as error:
            self.unverifiable = f"the original does not load: {short(error)}"
            return
        if specs is not None:
            self.collect(list(specs), variations)
            return
        for size in SIZES_TO_TRY:
            guessed = guess_specs(self.model, size)
            if isinstance(guessed, str):
                self.unverifiable = guessed
                return
            self.unverifiable = ""
            self.collect(guessed, variations)
            if self.answers:
                return

    def collect(self, specs: list[InputSpec], variations: bool) -> None:
        """Run the original on its feeds and measure its noise."""
        plain = make_feeds(specs)
        try:
            outputs, again = run(self.off, plain), run(self.off, plain)
        except Exception as error:
            self.unverifiable = f"the original does not run: {short(error)}"
            return
        if not agree(outputs, again):
            self.unverifiable = "the original's outputs are random"
            return
        try:
            optimized = open_session(self.path, optimized=True)
        except Exception:
            optimized = None
        self.answers.append(self.answer(plain, outputs, optimized, "plain"))
        if variations and sum(array.size for array in [*plain.values(), *outputs]) < MANY_NUMBERS:
            sized = ((make_feeds(changed, seed=2), "other sizes") for changed in other_sizes(self.model, specs))
            for more, label in [(make_feeds(specs, seed=1), "other numbers"), *sized]:
                if label in (answer.label for answer in self.answers):
                    continue
                try:
                    outputs = run(self.off, more)
                except Exception:  # these sizes do not suit the model: nothing to compare
                    continue
                self.answers.append(self.answer(more, outputs, optimized, label))

    def answer(self, feeds: Feeds, outputs: list[Any], optimized: Any, label: str) -> Answer:
        """Keep outputs together with how much they move by themselves."""
        with_optimizer = try_run(optimized, feeds)
        noise = [0.0] * len(outputs)
        for other in (with_optimizer, try_run(self.off, nudge(feeds))):
            if other is None or [item.shape for item in other] != [item.shape for item in outputs]:
                continue
            apart = (difference(a, b) for a, b in zip(outputs, other, strict=True))
            noise = [max(level, distance) for level, distance in zip(noise, apart, strict=True)]
        return Answer(feeds, outputs, with_optimizer, noise, label)

    def compare(self, path: Path, exact: bool) -> Verdict:
        """Compare a rewritten model: with the runtime's optimizer off by the level, then on, as users run it."""
        if self.unverifiable:
            return Verdict("not verified", self.unverifiable)
        worst, open_questions = 0.0, []
        for optimized in (False, True):
            how = f"with the runtime's optimizer {'on' if optimized else 'off'}"
            answers = [answer for answer in self.answers if not optimized or answer.optimized is not None]
            if not answers:
                continue
            try:
                session = open_session(path, optimized)
            except Exception as error:
                return Verdict("different", f"the result does not load {how}: {short(error)}")
            for answer in answers:
                try:
                    outputs = run(session, answer.feeds)
                except Exception as error:
                    return Verdict("different", f"the result fails on {answer.label} feeds, {how}: {short(error)}")
                expected = answer.optimized if optimized and answer.optimized is not None else answer.outputs
                verdict = judge(expected, outputs, answer.noise, exact and not optimized, self.half)
                if verdict.verdict == "different":
                    return Verdict("different", f"{verdict.reason} ({answer.label} feeds, {how})")
                if verdict.verdict == "not verified":
                    open_questions.append(f"{verdict.reason} ({answer.label} feeds)")
                worst = max(worst, verdict.worst_of_scale)
        labels = [answer.label for answer in self.answers]
        if open_questions:
            return Verdict("not verified", open_questions[0], labels, worst)
        return Verdict("equal", "", labels, worst)


def try_run(session: Any, feeds: Feeds) -> list[Any] | None:
    """Run a session if there is one; None if it fails."""
    if session is None:
        return None
    try:
        return run(session, feeds)
    except Exception:  # the runtime's optimizer broke the original, or one ulp more is outside the model's domain
        return None


def agree(first: list[Any], second: list[Any]) -> bool:
    """Say whether two runs gave the same bits."""
    return [item.shape for item in first] == [item.shape for item in second] and all(
        same_bits(a, b) for a, b in zip(first, second, strict=True)
    )


def judge(expected: list[Any], outputs: list[Any], noises: list[float], exact: bool, half: bool = False) -> Verdict:
    """Compare one set of outputs with the original's, given how far each of those moves by itself.

    Args:
        expected: The original's outputs.
        outputs: The rewritten model's.
        noises: How far each of the original's outputs moves by itself.
        exact: Every bit has to be the same.
        half: The model computes in half precision. The CPU provider does that in float32 and leaves out roundings
            between two of its nodes but not at graph outputs, so bits follow the form of the graph.
    """
    if len(outputs) != len(expected):
        return Verdict("different", f"{len(expected)} outputs became {len(outputs)}")
    worst = 0.0
    for index, (a, b, noise) in enumerate(zip(expected, outputs, noises, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return Verdict("different", f"output {index}: {a.dtype}{list(a.shape)} became {b.dtype}{list(b.shape)}")
        if same_bits(a, b):
            continue
        apart = difference(a, b)
        size = scale(a) if is_float(a) else 0.0
        emulated = half and apart <= FACTOR * HALF_EPSILON * size
        rounding = f"output {index}: differs by {apart:.3g} of {size:.3g}; the CPU emulates half precision"
        if exact and emulated:
            return Verdict("not verified", rounding)
        if exact:
            return Verdict("different", f"output {index}: bits differ, by at most {apart:.3g} of {size:.3g}")
        if not is_float(a):
            if noise:
                return Verdict(
                    "not verified", f"output {index} is {a.dtype} and moves with rounding in the original too"
                )
            return Verdict("different", f"output {index}: {int((a != b).sum())} of {a.size} {a.dtype} values differ")
        allowed = FACTOR * max(noise, LEAST_EPSILONS * epsilon(a) * size)
        ceiling = max(CEILING.get(a.dtype.name, 1e-3) * size, LEAST_EPSILONS * epsilon(a))
        if apart > allowed and emulated:
            return Verdict("not verified", rounding)
        if apart > allowed:
            text = f"output {index}: differs by {apart:.3g} of {size:.3g}, allowed {allowed:.3g} (noise {noise:.3g})"
            return Verdict("different", text)
        if apart > ceiling:
            text = f"output {index}: differs by {apart:.3g} of {size:.3g}, but the original moves by {noise:.3g} itself"
            return Verdict("not verified", text)
        worst = max(worst, apart / size if size else 0.0)
    return Verdict("equal", worst_of_scale=worst)


def main() -> int:
    """Compare model files with an original; print one JSON line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("original", type=Path)
    parser.add_argument("rewritten", type=Path, nargs="+")
    parser.add_argument("--exact", action="store_true", help="every bit has to be the same")
    options = parser.parse_args()
    original = Original(options.original, read_index(options.original.parent).get(options.original.name))
    fine = True
    for path in options.rewritten:
        rewritten = onnx.load(path, load_external_data=False)
        verdict = original.compare(path, options.exact)
        changes = signature_differences(original.model, rewritten)
        lost = None if original.checker_problem else checker_problem(path)
        fine = fine and verdict.verdict == "equal" and not changes and not lost
        print(json.dumps({**asdict(verdict), "signature": changes, "checker": lost, "file": path.name}), flush=True)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
