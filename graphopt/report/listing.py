"""A model as people look at it: signature, sizes, operators, and every node on a line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from graphopt.ir import Graph, Model, Value
from graphopt.onnxio.declared import declared_type
from graphopt.report.units import bytes_text, plural


def model_text(graph: Graph, operators: dict[str, int], size: int, metadata: dict[str, str]) -> RenderableType:
    """The summary of a model.

    Args:
        graph: The main graph.
        operators: Operators by name.
        size: Bytes of the whole model.
        metadata: The model's metadata.
    """
    model = graph.model
    head = Table.grid(padding=(0, 2))
    head.add_column(style="bold", no_wrap=True)
    head.add_column(overflow="fold")
    head.add_row("model", model.path or graph.name)
    head.add_row("format", f"IR version {model.ir_version}, " + ", ".join(_opsets(graph)))
    weights = [node for inner in model.graphs() for node in inner.constants()]
    total = sum(node.tensor.nbytes for node in weights if node.tensor is not None)
    head.add_row("size", f"{bytes_text(size)}, of it {bytes_text(total)} in {plural(len(weights), 'constant')}")
    count, graphs = sum(operators.values()), sum(1 for _ in model.graphs())
    head.add_row("nodes", f"{plural(count, 'operator')} in {plural(graphs, 'graph')}")
    if model.functions:
        head.add_row("functions", ", ".join(f"{domain}.{name}" for domain, name, _ in model.functions))
    for label, types in ports(graph).items():
        for index, (name, type) in enumerate(types.items()):
            head.add_row(label if index == 0 else "", f"{name}: {type}")
    for key, text in metadata.items():
        head.add_row("metadata" if key == next(iter(metadata)) else "", f"{key}: {text}")
    if not operators:
        return head
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("operator")
    table.add_column("count", justify="right")
    for name, count in operators.items():
        table.add_row(name, str(count))
    return Group(head, Text(), table)


def _opsets(graph: Graph) -> list[str]:
    return [f"{domain or 'ai.onnx'} opset {version}" for domain, version in graph.opsets.items()]


def node_lines(graph: Graph, indent: str = "") -> Iterator[str]:
    """Every node of a graph and its bodies in topological order, close to ONNX's text syntax."""
    inputs = ", ".join(_typed(value) for value in graph.inputs)
    yield f"{indent}{graph.name} ({inputs}) {{"
    for node in graph.constants():
        yield f"{indent}  {node.result.name} = {node.tensor!r}"
    for node in graph.order():
        types = ", ".join(str(value.type or "?") for value in node.results)
        yield f"{indent}  {node!r}   # {types}"
        for name, body in node.bodies.items():
            yield f"{indent}    {name}:"
            yield from node_lines(body, indent + "      ")
    yield f"{indent}  {graph.return_node!r}"
    yield f"{indent}}}"


def _typed(value: Value) -> str:
    return f"{value.type or '?'} {value.name}"


def print_graph(graph: Graph, title: str) -> None:
    """Print every node of a model on stderr, where it does not mix with the report."""
    sys.stderr.write(f"# {title}\n" + "\n".join(node_lines(graph)) + "\n")


def dot_text(model: Model) -> str:
    """The main graph in Graphviz's language."""
    lines = ["digraph model {", "  node [shape=box, fontname=Helvetica];"]
    copy = model.graph.to_networkx()
    for key, data in copy.nodes(data=True):
        label = data["op"] or f"{data['kind']} {data['name']}"
        lines.append(f"  n{key} [label={_quoted(label)}];")
    for source, target, data in copy.edges(data=True):
        label = f"{data['dtype']}[{data['shape']}]" if data["dtype"] else ""
        lines.append(f"  n{source} -> n{target} [label={_quoted(label)}];")
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def part_text(graph: Graph, source: str, target: str, size: int, found: tuple[str, str]) -> RenderableType:
    """What was cut out of a model: where it is, how big, its signature, and whether it loads.

    Args:
        graph: The main graph of the part.
        source: The model.
        target: The file written.
        size: Its bytes.
        found: What is against it, and what is to be remarked.
    """
    problem, remark = found
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("model", source)
    table.add_row("part", f"{plural(_operators(graph), 'node')}, {bytes_text(size)}")
    for label, types in ports(graph).items():
        for index, (name, type) in enumerate(types.items()):
            table.add_row(label if index == 0 else "", f"{name}: {type}")
    style = "bold yellow" if problem else "bold green"
    table.add_row("loads", Text("no" if problem else "yes", style=style))
    if remark:
        table.add_row("note", remark)
    table.add_row("written", target)
    return table


def part_json(graph: Graph, source: str, target: str, size: int, found: tuple[str, str]) -> dict[str, Any]:
    """The same as a JSON document."""
    return {
        "schema": "graphopt.extract",
        "schema_version": 1,
        "input": source,
        "output": target,
        "nodes": _operators(graph),
        "bytes": size,
        **ports(graph),
        "loads": not found[0],
        "problem": found[0],
        "remark": found[1],
    }


def _operators(graph: Graph) -> int:
    return sum(inner.operator_count for inner in graph.model.graphs())


def ports(graph: Graph) -> dict[str, dict[str, str]]:
    """Inputs and outputs with their types as the file declares them."""
    declared = [declared_type(raw) or value.type for (_, raw), value in _outputs(graph)]
    outputs = {
        name: str(type or "unknown type") for ((name, _), _), type in zip(_outputs(graph), declared, strict=True)
    }
    return {
        "inputs": {value.name or "": str(value.type or "unknown type") for value in graph.inputs},
        "outputs": outputs,
    }


def _outputs(graph: Graph) -> list[tuple[tuple[str, bytes], Value]]:
    return list(zip(graph.details["outputs"], graph.outputs, strict=True))
