"""The graph is networkx's: ask it anything networkx can answer."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import networkx as nx

from graphopt import load

MODEL = Path(__file__).parents[1] / "models" / "encoder.onnx"


def main() -> None:
    """Longest path, operators, and who reads the first input."""
    graph = load(MODEL)
    stored = graph.nx
    print(f"{stored.number_of_nodes()} nodes, {stored.number_of_edges()} uses")
    print("longest path:", nx.dag_longest_path_length(nx.DiGraph(stored)))
    print("operators:", Counter(node.op_type for node in graph.nodes()).most_common(3))
    first = graph.inputs[0]
    print(f"{first.name} reaches {len(nx.descendants(stored, first.producer))} nodes")


if __name__ == "__main__":
    main()
