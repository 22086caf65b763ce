"""What a model file consists of, read without its weights: operators, external data, size."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

from graphopt.runtime.sources import ModelSource


def file_bytes(source: ModelSource) -> int:
    """Size of a model with its external data."""
    total = source.nbytes
    if source.path is None:
        return total
    folder = os.path.dirname(source.path)
    for location in sorted(_locations(source.path)):
        path = os.path.join(folder, location)
        if os.path.isfile(path):
            total += os.path.getsize(path)
    return total


def same_file(one: ModelSource, other: ModelSource) -> bool:
    """Whether two models are the same bytes; external data in another place counts as other bytes."""
    if one.handle == other.handle:
        return True
    if one.nbytes != other.nbytes or any(item.path and _locations(item.path) for item in (one, other)):
        return False
    left, right = (item.data if item.path is None else Path(item.path).read_bytes() for item in (one, other))
    return left == right


def external_files(path: str) -> tuple[str, ...]:
    """External data files that a model names, sorted, as it names them; none where it cannot be read."""
    return tuple(sorted(_locations(path)))


def _locations(path: str) -> set[str]:
    """External data files that a model names."""
    try:
        return {
            entry.value
            for tensor in _tensors(_read(ModelSource("", path=path)))
            for entry in tensor.external_data
            if entry.key == "location"
        }
    except (OSError, ValueError):
        return set()


def _read(source: ModelSource) -> Any:
    import onnx

    try:
        if source.path is None:
            return onnx.ModelProto.FromString(source.data or b"")
        return onnx.load(source.path, load_external_data=False)
    except Exception as error:  # protobuf's own class has no stable home
        raise ValueError(f"not a readable model: {error}") from error


def _graphs(proto: Any) -> list[Any]:
    """Everything that holds nodes: the main graph, functions, and bodies at any depth."""
    todo, found = [proto.graph, *proto.functions], []
    while todo:
        graph = todo.pop()
        found.append(graph)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    todo.append(attribute.g)
                todo.extend(attribute.graphs)
    return found


def _tensors(proto: Any) -> list[Any]:
    found = []
    for graph in _graphs(proto):
        found += list(getattr(graph, "initializer", ()))
        for node in graph.node:
            found += [attribute.t for attribute in node.attribute if attribute.HasField("t")]
    return found


def count_operators(source: ModelSource) -> Counter[str]:
    """Nodes by operator type, bodies and functions included, constants not: `Add`, `com.microsoft::Gelu`.

    Raises:
        ValueError: It is no readable model.
    """
    counts: Counter[str] = Counter()
    for graph in _graphs(_read(source)):
        for node in graph.node:
            if node.op_type != "Constant":
                standard = node.domain in ("", "ai.onnx")
                counts[node.op_type if standard else f"{node.domain}::{node.op_type}"] += 1
    return counts


def node_names(source: ModelSource) -> frozenset[str]:
    """Names of all nodes.

    Raises:
        ValueError: It is no readable model.
    """
    return frozenset(node.name for graph in _graphs(_read(source)) for node in graph.node if node.name)
