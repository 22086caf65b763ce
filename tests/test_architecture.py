"""Who may import whom: the drawing in docs/architecture.md, held true."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ANYBODY = {"errors", "measurements", "recipes", "records"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "records": set(),
    "measurements": set(),
    "recipes": set(),
    "tensors": set(),
    "schema": {"tensors"},
    "targets": {"tensors"},
    "ir": {"schema", "tensors"},
    "onnxio": {"ir", "schema", "tensors"},
    "analysis": {"ir", "schema", "tensors"},
    "rewrite": {"analysis", "targets", "ir", "schema", "tensors"},
    "pipeline": {"rewrite", "targets", "analysis", "ir", "schema", "tensors"},
    "runtime": {"onnxio", "targets", "analysis", "ir", "schema", "tensors"},
    "report": {"pipeline", "rewrite", "ir", "onnxio", "schema", "tensors"},
    "api": {"report", "runtime", "targets", "pipeline", "rewrite", "analysis", "onnxio", "ir", "schema", "tensors"},
    "bisection": {"api", "runtime", "pipeline", "onnxio", "ir", "tensors"},
    "acceptance": {"bisection", "api", "runtime", "pipeline", "onnxio"},
    "tuning": {"api", "runtime", "onnxio"},
    "cli": {
        "acceptance",
        "api",
        "tuning",
        "bisection",
        "testing",
        "report",
        "runtime",
        "pipeline",
        "rewrite",
        "analysis",
        "onnxio",
        "ir",
        "schema",
        "tensors",
    },
    "testing": {"api", "runtime", "targets", "pipeline", "rewrite", "analysis", "onnxio", "ir", "schema", "tensors"},
}
ENTRANCES = {
    "onnx": {"schema", "tensors", "onnxio", "analysis", "runtime", "testing", "api"},
    "networkx": {"ir", "pipeline"},
    "onnxruntime": {"runtime"},
    "typer": {"cli"},
    "rich": {"cli", "report"},
    "matplotlib": {"report"},
}


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            module = node.module or ""
            yield from ([f"{module}.{alias.name}" for alias in node.names] if module == "graphopt" else [module])


def _modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("path", _modules("graphopt"), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    part = path.relative_to(ROOT / "graphopt").parts[0].removesuffix(".py")
    if part in ("__init__", "__main__"):
        return
    for name in _imports(path):
        head, *rest = name.split(".")
        if head == "graphopt" and rest:
            target = rest[0]
            is_public_name = target not in ALLOWED
            assert not is_public_name or part in ("cli", "testing"), f"{path} imports {name} through the front door"
            assert is_public_name or target in {part, *ALLOWED[part], *ANYBODY}, f"{part} may not import {target}"
        elif head in ENTRANCES:
            assert part in ENTRANCES[head], f"{head} does not enter through {part}"
        else:
            assert head != "passes", f"{path} imports the passes; they are found by entry point"


@pytest.mark.parametrize("path", _modules("passes"), ids=lambda path: str(path.relative_to(ROOT)))
def test_passes_use_public_names_only(path: Path) -> None:
    for name in _imports(path):
        head, *rest = name.split(".")
        assert head not in ("onnx", "onnxruntime"), f"{path} imports {head}"
        assert head != "graphopt" or len(rest) == 1, f"{path} reaches into {name}"


def test_importing_graphopt_leaves_the_runtime_alone() -> None:
    code = "import sys, graphopt; sys.exit('onnxruntime' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_public_names_are_what_they_say() -> None:
    import graphopt

    assert sorted(graphopt.__all__) == sorted(set(graphopt.__all__))
    assert all(hasattr(graphopt, name) for name in graphopt.__all__)
