"""The committed models are the ones in the manifest, are valid, and run."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "models"


def load_make() -> ModuleType:
    """Import models/make.py, a script beside its own modules and not part of a package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        return importlib.import_module("make")


make = load_make()
ENTRIES: list[dict[str, Any]] = make.read_manifest()


def test_files_match_the_manifest() -> None:
    """No file was changed, and none is there that the manifest does not know."""
    assert make.check() == []
    assert sorted(path.name for path in FOLDER.glob("*.onnx")) == sorted(entry["file"] for entry in ENTRIES)


def test_files_are_small() -> None:
    """All files together stay under 400 kB, each under 150 kB."""
    sizes = [path.stat().st_size for path in FOLDER.glob("*.onnx")]
    assert sum(sizes) < 400_000
    assert max(sizes) < 150_000


def test_every_recipe_is_in_the_manifest() -> None:
    """The manifest and the script that makes the models list the same files, in the same order."""
    assert [recipe.file for recipe in make.SMALL] == [entry["file"] for entry in ENTRIES]


@pytest.mark.parametrize("index", range(len(ENTRIES)), ids=[entry["file"] for entry in ENTRIES])
def test_model_is_valid_and_runs(index: int) -> None:
    """The checker accepts the model, it runs, its outputs are finite and not constant, and its entry is right."""
    recipe, entry = make.SMALL[index], ENTRIES[index]
    outputs = make.run(recipe, FOLDER / entry["file"])
    assert all(np.ptp(output) > 0 for output in outputs)
    described = make.entry(recipe, FOLDER / entry["file"])
    assert described == entry
    assert entry["licence"] == "Apache-2.0"
