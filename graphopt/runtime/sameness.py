"""Whether two models come to the same graph inside ONNX Runtime, so that there is nothing to time between them.

The runtime rewrites a model at load. Here the graph that is left is written out and digested: operators, attributes,
constants and who reads whom count; names and the order in which nodes are listed do not.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from graphopt.errors import ExecutionError
from graphopt.runtime.contents import file_bytes
from graphopt.runtime.placement import LARGEST_BYTES
from graphopt.runtime.remote import provider_here
from graphopt.runtime.session import Session, SessionSettings
from graphopt.runtime.sources import open_source
from graphopt.runtime.timing import default_settings
from graphopt.runtime.worker import Worker, shared_worker

_LOAD_SECONDS = 600.0


def graph_digest(
    model: Any,
    *,
    provider: str = "auto",
    provider_options: Mapping[str, str] | None = None,
    threads: int = 0,
    custom_ops: Sequence[str] = (),
    worker: Worker | None = None,
) -> str:
    """A digest of the graph that the runtime makes of a model at its default options.

    Args:
        model: A path, bytes, ModelProto or Graph.
        provider: "auto", "cpu", "cuda" or a name of the runtime's.
        provider_options: Options of that provider.
        threads: Threads within an operator; 0 is the runtime's default.
        custom_ops: Libraries of custom operators.
        worker: The process to load it in; by default the one that all calls share.

    Returns:
        The same text for two models only if the runtime runs the same graph; empty where it cannot be said: the model
        is not loaded, or too large to be written out for this.

    Raises:
        ModelError: There is no such file.
    """
    process = worker or shared_worker()
    try:
        with open_source(model) as source:
            if file_bytes(source) > LARGEST_BYTES:
                return ""
            settings = default_settings(process.call(provider_here, provider), threads, tuple(custom_ops))
            own = {name.rpartition(":")[2]: value for name, value in (provider_options or {}).items()}
            settings = settings.but(provider_options=tuple(own.items()))
            digest: str = process.call(digest_here, source.handle, settings, timeout=_LOAD_SECONDS)
    except (ExecutionError, OSError, ValueError):
        return ""
    return digest


def digest_here(model: str | bytes, settings: SessionSettings) -> str:
    """Load a model in this process, without running it, and digest what the runtime made of it.

    Raises:
        ModelRefusedError: The runtime will not load the model.
        ValueError: What the runtime wrote cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="graphopt-") as folder:
        path = os.path.join(folder, "runs.onnx")
        provider = Session(model, settings.but(optimized_path=path)).info.provider
        return _hash(provider, digest_of_file(path))


def digest_of_file(path: str) -> str:
    """The digest of a model file, its nodes listed after what they read.

    Raises:
        ValueError: It cannot be read, or its nodes are not sorted.
    """
    import onnx

    try:
        model = onnx.load(path)
    except Exception as error:  # protobuf's own class has no stable home
        raise ValueError(f"not a readable model: {error}") from error
    opsets = sorted(f"{item.domain} {item.version}" for item in model.opset_import)
    functions = sorted(function.SerializeToString(deterministic=True) for function in model.functions)
    return _hash(*opsets, *functions, _graph(model.graph, {}, is_main=True))


def _graph(graph: Any, outer: Mapping[str, str], *, is_main: bool) -> str:
    """What a graph computes; values inside are known by how they come about."""
    known, nodes = dict(outer), []
    for index, value in enumerate(graph.input):
        known[value.name] = _hash("input", value.name if is_main else str(index))
    inputs = {value.name for value in graph.input}
    for tensor in graph.initializer:
        own = _tensor(tensor)
        known[tensor.name] = _hash("default", known[tensor.name], own) if tensor.name in inputs else own
    for sparse in graph.sparse_initializer:
        known[sparse.values.name] = _hash("sparse", sparse.SerializeToString(deterministic=True))
    for node in graph.node:
        missing = next((name for name in node.input if name and name not in known), None)
        if missing is not None:
            raise ValueError(f"value '{missing}' is read before it is there")
        digest = _hash(
            node.domain,
            node.op_type,
            str([bool(name) for name in node.output]),
            *(_attribute(item, known) for item in sorted(node.attribute, key=lambda item: str(item.name))),
            *(known[name] if name else "" for name in node.input),
        )
        nodes.append(digest)
        for index, name in enumerate(node.output):
            if name:
                known[name] = _hash(digest, str(index))
    names = [value.name for value in graph.output]
    results = [_hash(name if is_main else "", known.get(name, "")) for name in names]
    return _hash(*results, "nodes", *sorted(nodes))


def _attribute(attribute: Any, known: Mapping[str, str]) -> str:
    if attribute.HasField("g"):
        return _hash(attribute.name, _graph(attribute.g, known, is_main=False))
    if attribute.graphs:
        return _hash(attribute.name, *(_graph(graph, known, is_main=False) for graph in attribute.graphs))
    if attribute.HasField("t"):
        return _hash(attribute.name, _tensor(attribute.t))
    return _hash(attribute.name, attribute.SerializeToString(deterministic=True))


def _tensor(tensor: Any) -> str:
    """A constant by dtype, shape and bytes."""
    head = f"{tensor.data_type} {list(tensor.dims)}"
    if tensor.HasField("raw_data"):
        return _hash(head, tensor.raw_data)
    bare = type(tensor)()
    bare.CopyFrom(tensor)
    bare.ClearField("name")
    return _hash(head, bare.SerializeToString(deterministic=True))


def _hash(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()
