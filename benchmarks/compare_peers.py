"""Compare graphopt with other ONNX optimizers: nodes left, seconds, memory, and whether the outputs still agree.

    python benchmarks/compare_peers.py models --make-env .rivals        once: creates an environment with the rivals
    python benchmarks/compare_peers.py models --rivals .rivals/bin/python --generated 1000,10000

Each run is one process; the tools take turns, and every repeat starts with another tool. Seconds are load, optimize and
save inside that process (imports not counted), the median of the repeats. Memory is the highest anonymous memory of the
process: mapped weights do not count, copies do. With `--check`, `~` in front of a node count means that outputs could
not be compared (the JSON says why), `!` that outputs or validity are wrong, `*` that the signature changed.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from common import (
    CHECKOUT,
    MEGABYTE,
    console,
    count_file_nodes,
    find_models,
    generated_models,
    geometric_mean,
    measure,
    median,
    quiet_environment,
    table,
    versions,
    write_json,
)

HERE = Path(__file__).resolve().parent
BY_SIZE = ("nodes", "time", "memory")
RIVALS = ("onnxsim", "onnxslim", "onnxoptimizer", "onnxscript")
OWN = ("graphopt", "graphopt-exact", "graphopt-trust", "ort-basic", "ort-extended")
SIZES = {"below 50 MB": (0, 50), "50 to 300 MB": (50, 300), "above 300 MB": (300, math.inf)}  # of the model's files
DEFAULT_TOOLS = "graphopt,onnxsim,onnxslim"


@dataclass(slots=True)
class Outcome:
    """What one tool made of one model."""

    nodes: int | None = None
    seconds: list[float] = field(default_factory=list)
    anonymous_mb: list[float] = field(default_factory=list)
    rss_mb: list[float] = field(default_factory=list)
    imported_mb: float = 0.0
    problem: str = ""
    check: dict[str, Any] = field(default_factory=dict)

    @property
    def mark(self) -> str:
        """One character for the result of the check."""
        if not self.check:
            return ""
        if self.check["verdict"] == "different" or self.check["checker"]:
            return "!"
        if self.check["signature"]:
            return "*"
        return "" if self.check["verdict"] == "equal" else "~"


def kept(outcome: Outcome) -> list[Any] | str:
    """Return nodes, seconds, anonymous MB and, unless it is equal, what the check said; or what went wrong."""
    if outcome.nodes is None or outcome.problem:
        return outcome.problem
    said = {key: value for key, value in outcome.check.items() if value}
    unequal = [said] if outcome.mark else []
    return [outcome.nodes, median(outcome.seconds), max(outcome.anonymous_mb), *unequal]


def make_environment(folder: Path) -> Path:
    """Create a virtual environment with the rivals; return its Python."""
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "onnx", "onnxruntime", *RIVALS], check=True)
    return python


def run_tool(tool: str, python: str, model: Path, outcome: Outcome, options: argparse.Namespace) -> None:
    """Run one tool once on one model, and keep what was measured."""
    with tempfile.TemporaryDirectory(prefix="graphopt-peers-") as folder:
        target = Path(folder) / "out.onnx"
        command = [python, str(HERE / "tool_child.py"), tool, str(model), str(target)]
        measured = measure(command, options.timeout, quiet_environment())
        result = measured.last_json()
        if measured.problem() or result is None or not target.exists():
            outcome.problem = measured.problem() or "no result"
            return
        outcome.seconds.append(result["seconds"])
        outcome.anonymous_mb.append(measured.peak_anonymous_mb)
        outcome.rss_mb.append(measured.peak_rss_mb)
        outcome.imported_mb = result["imported_mb"]
        options.versions.setdefault(tool, result["versions"])
        if outcome.nodes is None:
            outcome.nodes = count_file_nodes(target)
            if options.check:
                outcome.check = check(tool, model, target, options.timeout)


def check(tool: str, model: Path, target: Path, timeout: float) -> dict[str, Any]:
    """Compare a result with its original in a process of its own: a broken model can take the process down."""
    command = [sys.executable, str(HERE / "checking.py"), str(model), str(target)]
    measured = measure([*command, "--exact"] if tool == "graphopt-exact" else command, timeout, quiet_environment())
    found = measured.last_json()
    return found or {"verdict": "not verified", "reason": measured.problem(), "signature": [], "checker": None}


def compare(models: list[Path], tools: list[str], options: argparse.Namespace) -> dict[str, dict[str, Outcome]]:
    """Run every tool on every model, interleaved; return outcomes by model and tool."""
    screen = console()
    outcomes: dict[str, dict[str, Outcome]] = {}
    for number, model in enumerate(models):
        row = outcomes.setdefault(str(model), {tool: Outcome() for tool in tools})
        for repeat in range(options.repeats):
            first = (number + repeat) % len(tools)
            for tool in tools[first:] + tools[:first]:
                if not row[tool].problem:
                    python = options.rivals if tool in RIVALS else sys.executable
                    run_tool(tool, str(python), model, row[tool], options)
        shown = ", ".join(f"{tool} {cell(row[tool], ' / ')}" for tool in tools)
        screen.print(f"[dim]{number + 1}/{len(models)}[/dim] {model.stem}: {shown}", soft_wrap=True)
    return outcomes


def cell(outcome: Outcome, separator: str = "\n") -> str:
    """Return nodes, seconds and anonymous memory of one outcome, or what went wrong."""
    if outcome.nodes is None:
        return outcome.problem.partition(":")[0]
    numbers = (
        f"{outcome.mark}{outcome.nodes}",
        f"{median(outcome.seconds):.2f} s",
        f"{max(outcome.anonymous_mb):.0f} MB",
    )
    return separator.join(numbers)


def report(outcomes: dict[str, dict[str, Outcome]], tools: list[str], nodes: dict[str, int]) -> dict[str, Any]:
    """Print the tables; return the totals."""
    screen = console()
    rows = [
        [Path(model).stem, nodes[model], *[cell(row[tool], " / ") for tool in tools]] for model, row in outcomes.items()
    ]
    screen.print(table("nodes left / seconds / anonymous MB", ["model", "exported", *tools], rows))
    reference = "onnxsim" if "onnxsim" in tools else tools[0]
    totals = {tool: total(tool, reference, outcomes, nodes) for tool in tools}
    columns = [
        "tool",
        "models",
        "nodes left",
        f"nodes against {reference}",
        f"time against {reference}",
        f"memory against {reference}",
        "failed",
        "wrong",
        "signature changed",
        "not compared",
    ]
    rows = [[tool, *[f"{number:.3g}" for number in numbers.values()]] for tool, numbers in totals.items()]
    screen.print(table(f"geometric means over the models that the tool and {reference} both finished", columns, rows))
    by_size = totals_by_size(tools, reference, outcomes, nodes)
    if len(by_size) > 1:
        rows = [
            [size, tool, *[f"{numbers[key]:.3g}" for key in ("models", "nodes", "time", "memory")]]
            for size, group in by_size.items()
            for tool, numbers in group.items()
        ]
        columns = ["size of the model", "tool", "models", *(f"{what} against {reference}" for what in BY_SIZE)]
        screen.print(table("the same by size", columns, rows))
    for tool in (tool for tool in tools if tool.startswith("graphopt")):
        for line in behind(tool, outcomes, tools):
            screen.print(line, soft_wrap=True)
    return {**totals, "by_size": by_size}


def totals_by_size(
    tools: list[str], reference: str, outcomes: dict[str, dict[str, Outcome]], nodes: dict[str, int]
) -> dict[str, dict[str, dict[str, float]]]:
    """Sum up the tools for each class of model sizes that occurs."""
    found = {}
    for size, (least, most) in SIZES.items():
        group = {model: row for model, row in outcomes.items() if least <= megabytes(Path(model)) < most}
        if group:
            found[size] = {tool: total(tool, reference, group, nodes) for tool in tools}
    return found


def megabytes(model: Path) -> float:
    """Return the size of a model: its file and the external data that it names."""
    tensors = onnx.load(model, load_external_data=False).graph.initializer
    named = {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    beside = [model.parent / name for name in named]
    return sum(path.stat().st_size for path in [model, *beside] if path.exists()) / MEGABYTE


def total(
    tool: str, reference: str, outcomes: dict[str, dict[str, Outcome]], nodes: dict[str, int]
) -> dict[str, float]:
    """Sum up one tool: geometric means over the models that it and the reference both finished, and counts."""
    pairs = [(nodes[model], row[tool], row[reference]) for model, row in outcomes.items()]
    finished = [(before, mine, other) for before, mine, other in pairs if mine.nodes is not None and other.seconds]
    marks = [row[tool].mark for row in outcomes.values()]
    return {
        "models": len(finished),
        "nodes_left": geometric_mean([(mine.nodes or 1) / max(before, 1) for before, mine, _ in finished]),
        "nodes": geometric_mean([(mine.nodes or 1) / (other.nodes or 1) for _, mine, other in finished]),
        "time": geometric_mean([median(mine.seconds) / median(other.seconds) for _, mine, other in finished]),
        "memory": geometric_mean([max(mine.anonymous_mb) / max(other.anonymous_mb) for _, mine, other in finished]),
        "failed": sum(bool(row[tool].problem) for row in outcomes.values()),
        "wrong": marks.count("!"),
        "signature_changed": marks.count("*"),
        "not_compared": marks.count("~"),
    }


def behind(tool: str, outcomes: dict[str, dict[str, Outcome]], tools: list[str]) -> list[str]:
    """List the models where a tool left more nodes than a rival whose result was not found wrong."""
    lines = []
    for model, row in outcomes.items():
        mine = row[tool].nodes
        better = {
            other: row[other].nodes
            for other in tools
            if other in RIVALS and row[other].nodes is not None and row[other].mark != "!"
        }
        better = {
            other: count for other, count in better.items() if mine is not None and count is not None and count < mine
        }
        if better:
            lines.append(f"  {Path(model).stem}: {tool} {mine}, " + ", ".join(f"{t} {n}" for t, n in better.items()))
    return [f"{tool} leaves more nodes than a rival on {len(lines)} models:", *lines] if lines else []


def main() -> int:
    """Run the comparison; the exit code is 1 if a result of graphopt is missing or wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[CHECKOUT / "models"], help="files and folders; default: models/")
    parser.add_argument(
        "--generated", default="", metavar="SIZES", help="also generated models, such as 1000,10000,100000"
    )
    parser.add_argument(
        "--tools", default=DEFAULT_TOOLS, help=f"of {', '.join((*OWN, *RIVALS))}; default {DEFAULT_TOOLS}"
    )
    parser.add_argument("--rivals", type=Path, metavar="PYTHON", help="a Python that has the rivals installed")
    parser.add_argument("--make-env", type=Path, metavar="DIR", help="create an environment with the rivals first")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each tool on each model; default 3")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one run; default 300")
    parser.add_argument("--check", action="store_true", help="compare outputs, signature and validity too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    options = parser.parse_args()
    options.versions = {}
    if options.make_env:
        options.rivals = make_environment(options.make_env)
    tools = options.tools.split(",")
    if unknown := [tool for tool in tools if tool not in (*OWN, *RIVALS)]:
        parser.error(f"unknown tools {', '.join(unknown)}: choose among {', '.join((*OWN, *RIVALS))}")
    if not options.rivals and any(tool in RIVALS for tool in tools):
        parser.error(
            "the rivals need an environment of their own: give --rivals PYTHON, or --make-env DIR to create one"
        )
    with tempfile.TemporaryDirectory(prefix="graphopt-generated-") as folder:
        models = find_models(options.models) + generated_models(options.generated, Path(folder))
        nodes = {str(model): count_file_nodes(model) for model in models}
        outcomes = compare(models, tools, options)
        totals = report(outcomes, tools, nodes)
    if options.json:
        # File names alone: a result is read elsewhere, where the folders of this machine mean nothing.
        results = {
            Path(model).name: {"exported": nodes[model]} | {tool: kept(outcome) for tool, outcome in row.items()}
            for model, row in outcomes.items()
        }
        imported = {tool: [row[tool].imported_mb for row in outcomes.values() if row[tool].seconds] for tool in tools}
        document = {
            "schema": 1,
            "versions": versions("onnx", "onnxruntime", "onnxruntime-gpu"),
            "tools": options.versions,
            "repeats": options.repeats,
            "imported_mb": {tool: median(sizes) for tool, sizes in imported.items() if sizes},
            "totals": totals,
            "columns": ["nodes", "seconds", "anonymous_mb"],
            "results": results,
        }
        write_json(options.json, document)
    own = [row[tool] for row in outcomes.values() for tool in tools if tool.startswith("graphopt")]
    return 1 if any(outcome.problem or outcome.mark in ("!", "*") for outcome in own) else 0


if __name__ == "__main__":
    sys.exit(main())
