"""`graphopt show`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from graphopt.cli import options
from graphopt.cli.output import EXIT_OK, show, show_json
from graphopt.errors import UsageError

NAME = "show"
_FORMATS = ("summary", "text", "dot")


def command(
    source: Annotated[Path, typer.Argument(metavar="IN", help="The model.")],
    form: Annotated[
        str, typer.Option("--format", help="summary, text (every node) or dot (for Graphviz).")
    ] = "summary",
    json: options.Json = False,
) -> int:
    """Show a model: signature, sizes, operators; or every node."""
    from graphopt import api
    from graphopt.analysis.inference import Inference
    from graphopt.onnxio import load, metadata_of
    from graphopt.report.listing import dot_text, model_text, node_lines, ports

    if form not in _FORMATS:
        raise UsageError(f"there is no format '{form}'; choose one of {', '.join(_FORMATS)}")
    graph = load(str(source))
    Inference(graph.model).run()
    counts, size = api.operators(graph.model), api.model_bytes(graph.model)
    if json:
        show_json(
            {
                "schema": "graphopt.show",
                "schema_version": 1,
                "model": str(source),
                "ir_version": graph.model.ir_version,
                "opsets": {domain or "ai.onnx": version for domain, version in graph.opsets.items()},
                "bytes": size,
                **ports(graph),
                "operators": counts,
                "metadata": metadata_of(graph.model),
            }
        )
    elif form == "summary":
        show(model_text(graph, counts, size, metadata_of(graph.model)))
    else:
        sys.stdout.write(dot_text(graph.model) if form == "dot" else "\n".join(node_lines(graph)) + "\n")
    return EXIT_OK
