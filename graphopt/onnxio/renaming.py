"""New names for inputs, outputs, inner values and nodes, and for whatever refers to them by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from onnx import TensorAnnotation

from graphopt.errors import UsageError
from graphopt.ir import Graph, Model, Node, Value
from graphopt.onnxio.metadata import METADATA, entry_of
from graphopt.onnxio.wire import Message
from graphopt.onnxio.wording import choices

_TRAINING = 20
_SPEAKING_OF_NAMES = ("input", "output", "tensor", "node", "layer", "name")


def rename_all(graph: Graph, names: Mapping[str, str]) -> list[str]:
    """Rename all at once, so that two names may change places.

    A name may be a value's, a node's, or both; values in bodies of If, Loop and Scan count, those in functions do not.

    Args:
        graph: The main graph.
        names: New name by old one.

    Returns:
        Sentences on what else refers to a name and was changed along.

    Raises:
        UsageError: an old name is unknown, a new one is taken or given twice, or training refers to the value.
    """
    scopes = [graph, *graph.bodies_inside()]
    values: dict[str, list[Value]] = {}
    nodes: dict[str, list[Node]] = {}
    for scope in scopes:
        for node in scope.all_nodes():
            if node.name:
                nodes.setdefault(node.name, []).append(node)
            for value in node.results:
                if value.name:
                    values.setdefault(value.name, []).append(value)
    outputs = [name for name, _ in graph.details["outputs"]]
    _require_free(names, {**values, **dict.fromkeys(outputs)}, nodes)
    has_training = any(number == _TRAINING for number, _ in graph.model.details.get("fields", ()))
    for old, new in names.items():
        for value in values.get(old, ()):
            node = value.producer
            assert node.graph is not None
            if has_training and node.is_constant and node.graph is graph:
                raise UsageError(f"training refers to '{old}' by its name; leave its name")
            node.graph.rename(value, new, signature=True)
        for node in nodes.get(old, ()):
            assert node.graph is not None
            node.graph.rename(node, new, signature=True)
    declared = [(names.get(name, name), raw) for name, raw in graph.details["outputs"]]
    if any(name in names for name in outputs):
        graph.set_detail("outputs", declared)
    notes = _rename_in_annotations(scopes, names)
    return notes + _rename_in_metadata(graph.model, names)


def _require_free(names: Mapping[str, str], values: Mapping[str, Any], nodes: Mapping[str, Any]) -> None:
    given: dict[str, str] = {}
    for old, new in names.items():
        if old not in values and old not in nodes:
            known = dict.fromkeys([*values, *nodes])
            raise UsageError(f"the model has no input, output, value or node '{old}'; {choices('names', old, known)}")
        if not new:
            raise UsageError(f"'{old}' needs a name; give one behind the =")
        if new in given:
            raise UsageError(f"'{given[new]}' and '{old}' would both be called '{new}'; give each a name of its own")
        given[new] = old
        for taken, what in ((values, "value"), (nodes, "node")):
            if old in taken and new in taken and new not in names:
                raise UsageError(f"there is a {what} called '{new}' already; choose another name for '{old}'")


def _rename_in_annotations(scopes: list[Graph], names: Mapping[str, str]) -> list[str]:
    """Quantization annotations name the tensors they speak of."""
    count = 0
    for scope in scopes:
        renamed = []
        for raw, values in scope.details.get("annotations", ()):
            if not any(name in names for name in values):
                renamed.append((raw, values))
                continue
            proto = TensorAnnotation.FromString(raw)
            proto.tensor_name = names.get(proto.tensor_name, proto.tensor_name)
            for entry in proto.quant_parameter_tensor_names:
                entry.value = names.get(entry.value, entry.value)
            renamed.append((proto.SerializeToString(), {names.get(key, key): item for key, item in values.items()}))
            count += 1
        if renamed and scope.details.get("annotations") != renamed:
            scope.set_detail("annotations", renamed)
    return [f"{count} quantization annotation{'s' * (count != 1)} renamed along"] if count else []


def _rename_in_metadata(model: Model, names: Mapping[str, str]) -> list[str]:
    """Entries whose key says that they hold names: one name, several separated by commas, or JSON."""
    fields, changed, mentioned = [], [], []
    for number, piece in model.details.get("fields", ()):
        if number == METADATA:
            entry = entry_of(piece)
            text = _renamed_text(entry.value, names)
            if text != entry.value and any(word in entry.key.lower() for word in _SPEAKING_OF_NAMES):
                message = Message()
                message.entry(METADATA, entry.key, text)
                fields.append((number, message.to_bytes()))
                changed.append(entry.key)
                continue
            if text != entry.value:
                mentioned.append(entry.key)
        fields.append((number, piece))
    if changed:
        model.details["fields"] = fields
    notes = [f"renamed along in the metadata: {', '.join(changed)}"] if changed else []
    if mentioned:
        notes.append(f"metadata left alone that mentions an old name: {', '.join(mentioned)}")
    return notes


def _renamed_text(text: str, names: Mapping[str, str]) -> str:
    if text in names:
        return names[text]
    if text[:1] in ("[", "{"):
        try:
            document = json.loads(text)
        except ValueError:
            return text
        renamed = _renamed_json(document, names)
        return text if renamed == document else json.dumps(renamed)
    parts = [part.strip() for part in text.split(",")]
    return ",".join(names.get(part, part) for part in parts) if any(part in names for part in parts) else text


def _renamed_json(item: Any, names: Mapping[str, str]) -> Any:
    if isinstance(item, str):
        return names.get(item, item)
    if isinstance(item, list):
        return [_renamed_json(part, names) for part in item]
    if isinstance(item, dict):
        return {names.get(key, key): _renamed_json(part, names) for key, part in item.items()}
    return item
