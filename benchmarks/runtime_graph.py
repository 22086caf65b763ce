"""The graph that ONNX Runtime really runs: loads a model as users do, lets the runtime optimize it, counts its nodes.

    python benchmarks/runtime_graph.py MODEL [--provider cuda]        prints one JSON line

The runtime writes its graph to a file at the end of loading; there `Memcpy` nodes (copies between host and device) and
the operators of the runtime's own fusions stand in it. The file is read and thrown away. A process of its own, because
a session can take one down, and because the runtime keeps what it allocated.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
from common import bodies, measure, quiet_environment

from graphopt.runtime.placement import copies_in, graph_here
from graphopt.runtime.session import AS_USERS, resolve_provider

HERE = Path(__file__).resolve().parent


def operators(model: onnx.ModelProto) -> Counter[str]:
    """Count the operators of a model, bodies included, Constant nodes not: `Add`, `com.microsoft::Gelu`."""
    graphs, counts = [model.graph], Counter[str]()
    for graph in graphs:
        for node in graph.node:
            graphs += bodies(node)
            if node.op_type != "Constant":
                counts[f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type] += 1
    return counts


def runtime_graph(model: Path, provider: str) -> dict[str, Any]:
    """Load a model with the runtime's default optimization; return what the graph that runs consists of."""
    settings = AS_USERS.but(provider=resolve_provider(provider), threads=1)
    ran, counts = graph_here(str(model), settings)
    return {"provider": ran, "nodes": sum(counts.values()), "copies": copies_in(counts), "operators": counts}


def ask(model: Path, provider: str = "cpu", timeout: float = 300.0) -> dict[str, Any]:
    """Do it in a process of its own; `{"problem": …}` where that fails."""
    command = [sys.executable, str(HERE / "runtime_graph.py"), str(model), "--provider", provider]
    measured = measure(command, timeout, quiet_environment())
    return measured.last_json() or {"problem": measured.problem() or "no result"}


def main() -> int:
    """Print the counts of one model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--provider", default="cpu")
    options = parser.parse_args()
    print(json.dumps(runtime_graph(options.model, options.provider)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
