"""A model made ready to run as its recipe says."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from graphopt.errors import ModelError, RecipeError
from graphopt.recipes import Recipe, RecipeWarning, settings_text
from graphopt.runtime.captured import Recordings, is_recorded
from graphopt.runtime.recipe import (
    apply_settings,
    read_recipe,
    recipe_path,
    require_model,
    stamp_differences,
    stamp_here,
)
from graphopt.runtime.session import AS_USERS, CPU, Session, SessionSettings, resolve_provider, runtime, starts
from graphopt.runtime.values import Data, to_ort

_HERE = 3  # the caller of load(), seen from where warnings are raised


class LoadedModel:
    """A session as a recipe wants it. Any thread may call `run`; with a CUDA graph, calls wait for each other.

    Attributes:
        raw: The `onnxruntime.InferenceSession`. With a CUDA graph, run it only as the runtime's documentation says.
        providers: The providers that really run, most preferred first.
        recipe: What was applied; None where the runtime's defaults run.
    """

    def __init__(self, session: Session, recipe: Recipe | None = None) -> None:
        self._session = session
        self.raw = session.raw
        self.providers = session.info.providers
        self.recipe = recipe
        self._recordings = Recordings(session.raw) if is_recorded(session.raw) else None
        self._types = {port.name: port.type for port in session.info.inputs}
        self._warned = False

    def run(self, feeds: Mapping[str, Data]) -> dict[str, Data]:
        """Run once; outputs by name.

        Raises:
            ExecutionError: The inputs do not fit, or the runtime raised.
        """
        if self._recordings is None:
            return self._session.run(feeds)
        ort = runtime()
        ready = {name: to_ort(value, self._types.get(name, ""), ort) for name, value in feeds.items()}
        if not all(isinstance(value, np.ndarray) for value in ready.values()):
            return self._session.run(feeds)
        return self._recordings.run(ready, self._warn)

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(text, RecipeWarning, stacklevel=_HERE + 1)


def load(
    path: str | os.PathLike[str],
    recipe: str | os.PathLike[str] | Recipe | None = None,
    *,
    custom_ops: Sequence[str] = (),
) -> LoadedModel:
    """Make the session that `graphopt tune` found to be the fastest.

    The libraries of CUDA are brought in first, from NVIDIA's or PyTorch's wheels where they are there. Where the
    recipe's provider does not start, the CPU runs the model with the runtime's defaults, and a `RecipeWarning` says so;
    so it does where the device, the driver or the runtime is another than the recipe was made on.

    Args:
        path: The model file: the one that was tuned, or the one that the tuning wrote.
        recipe: A recipe or its file; by default `model.recipe.json` beside `model.onnx`.
        custom_ops: Libraries of custom operators.

    Raises:
        ModelError: There is no such model.
        RecipeError: The recipe cannot be read, or was made for another model.
        ExecutionError: The runtime does not load the model.
    """
    path = Path(path)
    if not path.is_file():
        raise ModelError(f"there is no model file '{path}'; check the path")
    folder = path.parent
    if not isinstance(recipe, Recipe):
        file = recipe_path(path) if recipe is None else Path(recipe)
        if recipe is None and not file.is_file():
            _warn(f"'{path}' has no recipe beside it and runs with the runtime's defaults; make one with graphopt tune")
            return LoadedModel(Session(str(path), _defaults("auto", custom_ops)))
        folder = file.parent
        recipe = read_recipe(file)
    path = _model_of(recipe, path, folder)
    provider = recipe.settings.provider
    if not _starts(provider):
        _warn(
            f"{provider} does not start on this machine (graphopt doctor says why); the CPU runs the model, with the "
            "runtime's defaults in place of the recipe"
        )
        return LoadedModel(Session(str(path), _defaults(CPU, custom_ops)))
    different = stamp_differences(recipe.stamp, stamp_here(provider))
    if different:
        _warn(f"the recipe was made elsewhere: {'; '.join(different)}. Tune anew for the best speed")
    session = Session(str(path), apply_settings(AS_USERS.but(custom_ops=tuple(custom_ops)), recipe.settings))
    if session.info.provider != provider:
        _warn(f"{provider} was asked for and {session.info.provider} runs ({settings_text(recipe.settings.flat())})")
    return LoadedModel(session, recipe)


def _model_of(recipe: Recipe, path: Path, folder: Path) -> Path:
    """The file to run: the one named, or the rewritten one that the recipe prefers to it."""
    found = require_model(path, (recipe.original, recipe.model))
    if found.is_same(recipe.model):
        return path
    rewritten = folder / recipe.model.file
    if not rewritten.is_file():
        raise RecipeError(
            f"the recipe runs '{recipe.model.file}', which is not in '{folder}'; put it there, or tune the model anew"
        )
    require_model(rewritten, (recipe.model,))
    return rewritten


def _defaults(provider: str, custom_ops: Sequence[str]) -> SessionSettings:
    return AS_USERS.but(provider=resolve_provider(provider), custom_ops=tuple(custom_ops))


def _starts(provider: str) -> bool:
    return provider == CPU or starts(provider)


def _warn(text: str) -> None:
    warnings.warn(text, RecipeWarning, stacklevel=_HERE)
