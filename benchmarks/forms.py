"""Time the forms in which one part of a model can be written, side by side on the device at hand.

    python benchmarks/forms.py [--provider cuda] [--only TEXTS] [--dtypes f16,f32] [--graphs] [--json FILE]

Each question is a small model of a few equal blocks, written in several ways that compute the same; all of them are
held at once, timed in turns in three sets of sessions, and set against the first, which is what exporters write. A
ratio above 1 is faster than that one, with its 99 % interval; `err` is the largest difference from it on the scale of
its output: a form that is fast and wrong shows there. `--graphs` times recorded CUDA graphs, which is close to the time
of the kernels alone. Questions run in a child process that is started again where one takes it down; what is measured
is on disk at once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from common import CHECKOUT, console, table, versions, write_json
from form_graphs import Form, Question
from form_images import IMAGES
from form_products import PRODUCTS

from graphopt.errors import GraphoptError
from graphopt.runtime.session import AS_USERS, CUDA, Session, resolve_provider
from graphopt.runtime.stats import ratio_interval, verdict
from graphopt.runtime.timing import runner

QUESTIONS = IMAGES | PRODUCTS
SESSIONS = 3
WARM_RUNS = 12
FEWEST_ROUNDS = 6
CUDNN = (("cudnn_conv_algo_search", "EXHAUSTIVE"),)


@dataclass(slots=True)
class Timed:
    """What came out for one form.

    Attributes:
        ms: Median milliseconds of a run.
        ratio: Time of the first form over this one's, with its interval.
        err: Largest difference from the first form's output over the largest output.
        problem: Why there is no figure.
    """

    name: str
    ms: float = float("nan")
    ratio: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    verdict: str = "not measured"
    err: float = float("nan")
    problem: str = ""
    runs: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Wishes:
    """How questions are timed."""

    provider: str
    dtype: str
    seconds: float
    recorded: bool
    threads: int


def load(model: bytes, question: Question, form: Form, wishes: Wishes) -> tuple[Session, Callable[[], Any]]:
    """A session of one form and a run of it.

    Raises:
        GraphoptError: The provider has no kernel, or does not run it.
    """
    options = dict(CUDNN) | dict(form.options) if wishes.provider == CUDA else {}
    if wishes.recorded:
        options["enable_cuda_graph"] = "1"
    if wishes.provider == CUDA:
        entries = () if form.falls_back else (("session.disable_cpu_ep_fallback", "1"),)
    else:  # threads of an idle session go on spinning for a while and would slow the next form
        entries = (("session.force_spinning_stop", "1"),)
    settings = AS_USERS.but(
        provider=wishes.provider,
        threads=wishes.threads,
        provider_options=tuple(options.items()),
        entries=entries,
    )
    session = Session(model, settings)
    run = runner(session, question.feeds(wishes.dtype))
    for _ in range(WARM_RUNS):
        run()
    return session, run


def once(run: Callable[[], Any]) -> float:
    """Seconds of a run."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def block(run: Callable[[], Any]) -> list[float]:
    """A few runs in a row, the first not counted: the form before has just had the caches."""
    first = once(run)
    return [once(run) for _ in range(5 if first < 0.02 else 2)]


def differences(question: Question, sessions: dict[str, Session], dtype: str) -> dict[str, float]:
    """How far each form's outputs are from the first form's."""
    feeds = question.feeds(dtype)
    reference: list[np.ndarray[Any, Any]] | None = None
    found = {}
    for name, session in sessions.items():
        outputs = [np.asarray(value, np.float64) for value in session.run(feeds).values()]
        if reference is None:
            reference = outputs
        errors = [
            float(np.max(np.abs(one - other)) / max(float(np.max(np.abs(other))), 1e-30))
            for one, other in zip(outputs, reference, strict=True)
        ]
        found[name] = max(error if np.isfinite(error) else float("inf") for error in errors)
    return found


def ask(question: Question, wishes: Wishes) -> list[Timed]:
    """Time every form of a question in turns."""
    forms = [form for form in question.forms if form.suits(wishes.dtype, wishes.provider == CUDA)]
    results = {form.name: Timed(form.name) for form in forms}
    rounds: dict[str, list[list[float]]] = {form.name: [] for form in forms}
    models = {form.name: form.model(wishes.dtype) for form in forms}
    started = time.perf_counter()
    for number in range(SESSIONS):
        runs: dict[str, Callable[[], Any]] = {}
        sessions: dict[str, Session] = {}
        order = forms if number % 2 == 0 else forms[::-1]
        for form in order:
            if results[form.name].problem:
                continue
            try:
                sessions[form.name], runs[form.name] = load(models[form.name], question, form, wishes)
            except GraphoptError as error:
                results[form.name].problem = " ".join(str(error).split())[:300]
        if not runs:
            break
        if number == 0 and not wishes.recorded:
            loaded = {name: sessions[name] for name in results if name in sessions}
            for name, difference in differences(question, loaded, wishes.dtype).items():
                results[name].err = difference
        for name in runs:
            rounds[name].append([])
            results[name].runs.append([])
        until = started + wishes.seconds * (number + 1) / SESSIONS
        turn = 0
        while turn < FEWEST_ROUNDS or time.perf_counter() < until:
            names = list(runs)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                times = block(runs[name])
                results[name].runs[-1] += times
                rounds[name][-1].append(float(np.median(times)))
            turn += 1
    return [concluded(results[form.name], rounds[form.name], rounds[forms[0].name]) for form in forms]


def concluded(timed: Timed, own: list[list[float]], first: list[list[float]]) -> Timed:
    """The figures of a form from its rounds and the first form's."""
    every = [seconds for session in timed.runs for seconds in session]
    timed.runs = []
    if timed.problem or not every:
        return timed
    timed.ms = 1e3 * float(np.median(every))
    if not first:
        return timed
    logs = [list(np.log(np.asarray(one) / np.asarray(other))) for one, other in zip(first, own, strict=True)]
    timed.ratio, timed.low, timed.high = ratio_interval(logs)
    timed.verdict = verdict(timed.low, timed.high)
    return timed


# --- processes


def child(keys: list[str], options: argparse.Namespace) -> None:
    """Ask questions one after the other; each answer is a line of JSON."""
    provider = resolve_provider(options.provider)
    small = provider != CUDA
    for key in keys:
        name, dtype, recorded = key.split("|")
        question = QUESTIONS[name](small)
        wishes = Wishes(provider, dtype, options.seconds, recorded == "graph", options.threads)
        print(json.dumps({"begin": key}), flush=True)
        try:
            answers = [asdict(timed) for timed in ask(question, wishes)]
            print(json.dumps({"key": key, "about": question.about, "forms": answers, "problem": ""}), flush=True)
        except GraphoptError as error:
            print(
                json.dumps({"key": key, "about": question.about, "forms": [], "problem": str(error)[:300]}), flush=True
            )


def answers(keys: list[str], options: argparse.Namespace, until: float) -> Iterator[dict[str, Any]]:
    """Every answer as it comes, from as many child processes as it takes."""
    left = list(keys)
    arguments = ["--provider", options.provider, "--seconds", str(options.seconds), "--threads", str(options.threads)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")])}
    while left and time.monotonic() < until:
        command = [sys.executable, __file__, *arguments, "--child", ",".join(left)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        begun = ""
        try:
            for line in process.stdout:
                if not line.startswith("{"):
                    continue
                answer = json.loads(line)
                if "begin" in answer:
                    begun = answer["begin"]
                    continue
                left.remove(answer["key"])
                yield answer
                if time.monotonic() > until:
                    return
        finally:
            process.kill()
            process.stdout.close()
            code = process.wait()
        if left and begun in left:
            left.remove(begun)
            yield {"key": begun, "about": "", "forms": [], "problem": f"the process ended with code {code}"}
        elif left and not begun:
            yield {"key": left[0], "about": "", "forms": [], "problem": f"no process starts: code {code}"}
            return


def show(answer: dict[str, Any]) -> None:
    """Print one table."""
    rows = [
        [
            one["name"],
            f"{one['ms']:.3f}",
            f"{one['ratio']:.3f}",
            f"{one['low']:.3f} to {one['high']:.3f}",
            one["verdict"],
            f"{one['err']:.1e}",
            one["problem"],
        ]
        for one in answer["forms"]
    ]
    title = f"{answer['key']}: {answer['about']} {answer['problem']}"
    console().print(table(title, ["form", "ms", "ratio", "interval", "", "err", "problem"], rows))


COLUMNS = ("name", "ms", "ratio", "low", "high", "verdict", "err", "problem")  # of a form in the JSON


def written(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer as it is kept: a form is a row."""
    rows = [[form[column] for column in COLUMNS[: None if form["problem"] else -1]] for form in answer["forms"]]
    problem = {"problem": answer["problem"]} if answer["problem"] else {}
    return {"key": answer["key"], "about": answer["about"], "forms": rows} | problem


def main() -> int:
    """Ask, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", default="auto")
    parser.add_argument("--only", default="", metavar="TEXTS", help="questions with one of these texts in their names")
    parser.add_argument("--dtypes", default="", help="f32, f16, or both; default both on CUDA, f32 on the CPU")
    parser.add_argument("--seconds", type=float, default=1.5, help="timing for each question; default 1.5")
    parser.add_argument(
        "--budget", type=float, default=230.0, help="seconds for everything; later questions are left out"
    )
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--graphs", action="store_true", help="time recorded CUDA graphs")
    parser.add_argument("--list", action="store_true", help="say what there is and end")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child.split(","), options)
        return 0
    started = time.monotonic()
    provider = resolve_provider(options.provider)
    wanted = [text for text in options.only.split(",") if text]
    names = [name for name in QUESTIONS if not wanted or any(text in name for text in wanted)]
    if options.list:
        for name in names:
            question = QUESTIONS[name](True)
            print(f"{name}: {question.about}\n    " + "\n    ".join(form.name for form in question.forms))
        return 0
    dtypes = options.dtypes.split(",") if options.dtypes else ["f16", "f32"] if provider == CUDA else ["f32"]
    mode = "graph" if options.graphs else "plain"
    keys = [f"{name}|{dtype}|{mode}" for name in names for dtype in dtypes]
    found: list[dict[str, Any]] = []

    def write() -> None:
        if options.json is not None:
            done = {answer["key"] for answer in found}
            document = {
                "made_by": "benchmarks/forms.py",
                "versions": versions("onnx", "onnxruntime", "onnxruntime-gpu"),
                "provider": provider,
                "left_out": [key for key in keys if key not in done],
                "columns": list(COLUMNS),
                "questions": list(map(written, found)),
            }
            write_json(options.json, document)

    for answer in answers(keys, options, started + options.budget):
        found.append(answer)
        show(answer)
        write()
    write()
    missing = len(keys) - len(found)
    console().print(
        f"{len(found)} questions in {time.monotonic() - started:.0f} s" + f", {missing} left out" * (missing > 0)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
