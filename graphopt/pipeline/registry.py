"""Finding passes: by entry point, beside the checkout, or in a file the user names."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

import networkx as nx

from graphopt.errors import PluginError, UsageError
from graphopt.pipeline.passes import Pass, pass_of_module

GROUP = "graphopt.passes"
BUILTIN = "builtin"
_MARKER = "GRAPHOPT_PASSES"


class Registry:
    """The passes that are there, in the order in which they run."""

    def __init__(self, passes: Iterable[Pass]) -> None:
        self.passes: dict[str, Pass] = {}
        for item in passes:
            other = self.passes.get(item.name)
            if other is not None:
                raise PluginError(
                    f"two passes are called '{item.name}': {_where(other)} and {_where(item)}; rename or remove one"
                )
            self.passes[item.name] = item
        self.passes = _ordered(self.passes)

    def find(self, name: str) -> Pass:
        """The pass of that name.

        Raises:
            UsageError: there is none; the message suggests the nearest.
        """
        found = self.passes.get(name)
        if found is None:
            raise UsageError(f"there is no pass '{name}'{_nearest(name, self.passes)}; `graphopt passes` lists them")
        return found

    def check_item(self, name: str) -> str:
        """The name itself, if it is a `pass/rule` that exists.

        Raises:
            UsageError: it is none.
        """
        pass_name, _, item_name = name.partition("/")
        found = self.find(pass_name)
        if not item_name:
            raise UsageError(f"--disable wants PASS/RULE, not '{name}'; --skip {name} leaves out a whole pass")
        if found.item(item_name) is None:
            names = [item.name for item in found.items]
            raise UsageError(
                f"pass '{pass_name}' has no rule '{item_name}'{_nearest(item_name, names)}; "
                f"`graphopt passes {pass_name}` lists them"
            )
        return name


def load_registry(files: Sequence[str | os.PathLike[str]] = ()) -> Registry:
    """Find every installed pass, and those in the given Python files.

    Raises:
        PluginError: a plugin cannot be imported, or two passes share a name.
    """
    passes: list[Pass] = []
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if BUILTIN not in found:
        passes.extend(_passes_of_package(_builtin_beside_checkout(), ""))
    for name in sorted(found, key=lambda name: (name != BUILTIN, name)):
        try:
            package = found[name].load()
        except Exception as error:
            raise PluginError(f"the plugin '{name}' cannot be imported: {error}; repair or uninstall it") from error
        passes.extend(_passes_of_package(package, "" if name == BUILTIN else f"{name}:"))
    passes.extend(map(pass_of_file, files))
    return Registry(passes)


def pass_of_file(file: str | os.PathLike[str]) -> Pass:
    """The pass a Python file holds, named after the file.

    Raises:
        UsageError: there is no such file.
        PluginError: it cannot be loaded.
    """
    return pass_of_module(_module_of_file(file), Path(file).stem)


def _passes_of_package(package: ModuleType, prefix: str) -> list[Pass]:
    order: Sequence[str] | None = getattr(package, "ORDER", None)
    if order is None:
        return [pass_of_module(package, prefix + package.__name__.rsplit(".", 1)[-1])]
    try:
        modules = [importlib.import_module(f"{package.__name__}.{name}") for name in order]
    except ImportError as error:
        raise PluginError(f"'{package.__name__}' lists a pass that cannot be imported: {error}; repair it") from error
    return [pass_of_module(module, prefix + name) for name, module in zip(order, modules, strict=True)]


def _builtin_beside_checkout() -> ModuleType:
    """The built-in passes where graphopt is merely on the path and no entry point says where they are."""
    folder = Path(__file__).resolve().parents[2] / "passes"
    try:
        package = importlib.import_module("passes")
    except ImportError as error:
        raise PluginError(f"the built-in passes are not installed: {error}; install graphopt with pip") from error
    if not getattr(package, _MARKER, False) or Path(str(package.__file__)).resolve().parent != folder:
        raise PluginError(f"the module 'passes' at {package.__file__} is not graphopt's; install graphopt with pip")
    return package


def _module_of_file(file: str | os.PathLike[str]) -> ModuleType:
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"there is no file '{path}' to load passes from; check the path")
    name = f"graphopt_loaded_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"'{path}' is not a Python file; name a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise PluginError(f"'{path}' cannot be loaded: {type(error).__name__}: {error}; repair it") from error
    return module


def _ordered(passes: dict[str, Pass]) -> dict[str, Pass]:
    """The listed order, with each pass that names a predecessor moved right behind it."""
    order: nx.DiGraph[str] = nx.DiGraph()
    ranks = {name: index for index, name in enumerate(passes)}
    order.add_nodes_from(passes)
    placed: list[str] = [name for name, item in passes.items() if not item.after]
    for name, item in passes.items():
        if not item.after:
            continue
        if item.after not in passes:
            raise PluginError(
                f"pass '{name}' wants to follow '{item.after}', which does not exist{_nearest(item.after, passes)}"
            )
        order.add_edge(item.after, name)
    if not nx.is_directed_acyclic_graph(order):
        cycle = " -> ".join(str(edge[0]) for edge in nx.find_cycle(order))
        raise PluginError(f"these passes want to follow each other: {cycle}; change one AFTER")
    for name in nx.lexicographical_topological_sort(order, key=lambda name: ranks[name]):
        if passes[name].after:
            placed.insert(placed.index(passes[name].after) + 1, name)
    return {name: passes[name] for name in placed}


def _nearest(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def _where(item: Pass) -> str:
    return str(getattr(item.module, "__file__", item.module.__name__))
