"""A model as people look at it: signature, sizes, operators, and every node on a line."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from graphopt.ir import Graph, Model, Value
from graphopt.report.units import bytes_text


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
    head.add_row("size", f"{bytes_text(size)}, of it {bytes_text(total)} in {len(weights)} constants")
    head.add_row("nodes", f"{sum(operators.values())} operators in {sum(1 for _ in model.graphs())} graphs")
    if model.functions:
        head.add_row("functions", ", ".join(f"{domain}.{name}" for domain, name, _ in model.functions))
    for label, values in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        names = [name for name, _ in graph.details["outputs"]] if label == "outputs" else [v.name for v in values]
        for index, (name, value) in enumerate(zip(names, values, strict=True)):
            head.add_row(label if index == 0 else "", f"{name}: {value.type or 'unknown type'}")
    for key, text in metadata.items():
        head.add_row("metadata" if key == next(iter(metadata)) else "", f"{key}: {text}")
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
