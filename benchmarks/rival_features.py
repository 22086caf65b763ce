"""Run small models, one for each feature of another optimizer, through graphopt: is every feature here?

    python benchmarks/rival_features.py [--rivals PYTHON] [--only TEXTS] [--json FILE]

The models stand in `feature_cases.txt`, with the number of nodes that may be left and, where graphopt leaves more on
purpose, the reason. With `--rivals` the others run too. Constant nodes are not counted, nodes in bodies are. A missing
feature is a case with more nodes than that and no reason; the exit code is 1 if there are any, or if a result is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
from architectures import RIVALS, check, mark, tools_of
from common import console, table, versions, write_json

CASES = Path(__file__).with_name("feature_cases.txt")
IR_VERSION = 8


@dataclass(frozen=True, slots=True)
class Case:
    """A model that shows one feature.

    Attributes:
        most: Nodes that may be left.
        reason: Why graphopt leaves more, if it does so on purpose.
    """

    name: str
    opset: int
    most: int
    reason: str
    text: str

    def model(self) -> onnx.ModelProto:
        """Parse the text."""
        header = f'<ir_version: {IR_VERSION}, opset_import: ["" : {self.opset}]>'
        return onnx.parser.parse_model(f"{header} feature {self.text}")


def read_cases(path: Path = CASES) -> list[Case]:
    """Read the cases of a file."""
    cases = []
    for block in path.read_text(encoding="utf-8").split("\n== ")[1:]:
        head, text = block.split("\n", 1)
        name, opset, most, reason = [part.strip() for part in [*head.split(" | "), ""][:4]]
        cases.append(Case(name, int(opset), int(most), reason, text.strip()))
    return cases


def files(cases: list[Case], folder: Path) -> Iterator[tuple[Case, Path]]:
    """Write the models of the cases."""
    for number, case in enumerate(cases):
        path = folder / f"case_{number}.onnx"
        onnx.save(case.model(), path)
        yield case, path


def main() -> int:
    """Run every case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rivals", type=Path, metavar="PYTHON", help="a Python that has the rivals installed")
    parser.add_argument("--only", default="", metavar="TEXTS", help="only cases with one of these texts in their names")
    parser.add_argument("--no-check", dest="check", action="store_false", help="do not compare outputs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything counted")
    options = parser.parse_args()
    wanted = [text for text in options.only.split(",") if text]
    cases = [case for case in read_cases() if not wanted or any(text in case.name for text in wanted)]
    rows: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="graphopt-features-")))
        tools = list(stack.enter_context(tools_of(["graphopt"], sys.executable)))
        if options.rivals:
            tools += stack.enter_context(tools_of(RIVALS, str(options.rivals)))
        for case, path in files(cases, folder):
            made = {}
            for tool in tools:
                target = folder / tool.name / path.name
                target.parent.mkdir(exist_ok=True)
                made[tool.name] = tool.run(path, target, 60.0)
            if options.check and not made["graphopt"]["problem"]:
                made["graphopt"] |= check(path, {"graphopt": folder / "graphopt" / path.name}, 60.0)["graphopt"]
            rows.append(
                {"case": case.name, "opset": case.opset, "most": case.most, "reason": case.reason, "made": made}
            )
    lines = [
        [row["case"], row["most"], *(mark(entry) + str(entry["nodes"]) for entry in row["made"].values()), verdict(row)]
        for row in rows
    ]
    columns = ["feature", "nodes to reach", *(tool.name for tool in tools), ""]
    console().print(table("features of others, on a small model each", columns, lines))
    missing = [row["case"] for row in rows if verdict(row).startswith(("missing", "wrong", "failed"))]
    console().print(f"  {len(rows)} features, {len(missing)} missing or wrong: {', '.join(missing)}", soft_wrap=True)
    if options.json:
        write_json(options.json, {"schema": 1, "versions": versions("onnx", "onnxruntime-gpu"), "features": rows})
    return 1 if missing else 0


def verdict(row: dict[str, Any]) -> str:
    """Say in a word what came out for one feature."""
    entry = row["made"]["graphopt"]
    if entry["problem"]:
        return f"failed: {entry['problem']}"
    if mark(entry) in ("!", "*", "+"):
        return f"wrong: {entry['reason'] or entry['checker'] or entry['signature']}"
    if entry["nodes"] <= row["most"]:
        return "here"
    return f"left: {row['reason']}" if row["reason"] else "missing"


if __name__ == "__main__":
    sys.exit(main())
