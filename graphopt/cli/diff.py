"""`graphopt diff`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphopt.cli import options
from graphopt.cli.output import EXIT_OK, show, show_json

NAME = "diff"


def command(
    before: Annotated[Path, typer.Argument(metavar="A", help="The model before.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="The model after.")],
    json: options.Json = False,
) -> int:
    """Tell how two models differ: signature, opsets, sizes, operators, nodes by name."""
    from graphopt.onnxio import load
    from graphopt.report import diff_text
    from graphopt.report.difference import compare_models

    rows = compare_models(load(str(before)), load(str(after)))
    if json:
        document = [{"what": what, "before": was, "after": now} for what, was, now in rows]
        show_json({"schema": "graphopt.diff", "schema_version": 1, "same": not rows, "rows": document})
    elif rows:
        show(diff_text(rows))
    else:
        show("the models have the same signature, opsets, operators and node names")
    return EXIT_OK
