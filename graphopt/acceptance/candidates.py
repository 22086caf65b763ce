"""Results of the pipeline as files: the model with this group of rewrites out, or that one."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphopt import api
from graphopt.acceptance.groups import Choice
from graphopt.onnxio import load, save
from graphopt.onnxio.signature import Signature
from graphopt.pipeline import Registry, load_registry

_OF_SIGNATURE = frozenset(field.name for field in dataclasses.fields(Signature))


@dataclass(slots=True)
class Candidate:
    """One result of the pipeline, written.

    Attributes:
        result: The model and what was done to it.
        choice: What was left out.
        path: Its file.
        sha256: Of the file; empty where the weights lie in another.
        digest: Names the graph that the runtime makes of it; None where nobody asked yet.
    """

    result: api.Result
    choice: Choice
    path: str
    sha256: str
    digest: str | None = None


class Workshop:
    """Makes candidates of one model.

    Attributes:
        reference: The original with the signature asked for, as a file.
    """

    def __init__(self, model: Any, options: Mapping[str, Any], scratch: Path, registry: Registry | None) -> None:
        self._model = model
        self._options = options
        self._scratch = scratch
        self._registry = registry or load_registry(options.get("load_files", ()))
        self._made = 0
        self.reference = self._reference()

    def make(self, choice: Choice, options: Mapping[str, Any] | None = None) -> Candidate:
        """Run the pipeline with a choice, or with options that hold it already, and write the result.

        Raises:
            GraphoptError: The model cannot be made so.
        """
        settings = dict(choice.apply(self._options) if options is None else options)
        settings |= {"measure": False, "verify": False}
        result = api.optimize(self._model, registry=self._registry, **settings)
        self._made += 1
        folder = self._scratch / f"{self._made}"
        folder.mkdir()
        path = folder / "model.onnx"
        result.save(path)
        alone = len(list(folder.iterdir())) == 1
        return Candidate(result, choice, str(path), _sha256(path) if alone else "")

    def forget(self, candidate: Candidate) -> None:
        """Free the disk of what is no longer looked at."""
        for path in Path(candidate.path).parent.iterdir():
            path.unlink()

    def _reference(self) -> str:
        signature = Signature(**{name: value for name, value in self._options.items() if name in _OF_SIGNATURE})
        if not signature and isinstance(self._model, (str, os.PathLike)):
            return os.fspath(self._model)
        graph = load(self._model)
        api.change_signature(graph, signature)
        path = str(self._scratch / "original.onnx")
        save(graph, path)
        return path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
