"""`graphopt explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphopt.cli import options
from graphopt.cli.output import EXIT_OK, guests_on_stderr, progress, show, show_json

NAME = "explain"


def command(
    source: Annotated[Path, typer.Argument(metavar="IN", help="The model.")],
    rules: Annotated[
        list[str], typer.Option("--rule", metavar="RULE", help="A rule, a pass, or PASS/RULE; may be repeated.")
    ],
    level: Annotated[str, typer.Option(help="exact, default or fast-math, as for optimize.")] = "default",
    aggressive: Annotated[str | None, typer.Option(help="Run these passes in their aggressive form.")] = None,
    freeze_initializers: Annotated[
        bool, typer.Option("--freeze-initializers", help="Treat initializers a caller may override as constants.")
    ] = False,
    trust_dim_names: Annotated[
        bool, typer.Option("--trust-dim-names", help="Take dims of equal names to be equal.")
    ] = False,
    target: Annotated[str, typer.Option(help="portable, ort-cpu or ort-cuda, as for optimize.")] = "portable",
    ort_version: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION", help="With ort-cpu or ort-cuda: the oldest ONNX Runtime the result must run on."
        ),
    ] = None,
    opset: Annotated[int | None, typer.Option(metavar="N", help="Convert to this opset on the way.")] = None,
    load: options.Load = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, metavar="N", help="Reasons shown of a rule, and nodes named of a reason.")
    ] = 5,
    json: options.Json = False,
) -> int:
    """Tell where rules fire on a model, and where and why they nearly do: runs the passes, writes nothing."""
    from graphopt import api
    from graphopt.report.explanation import explanations_json, explanations_text

    with progress(f"running the passes over {source}", quiet=json), guests_on_stderr():
        found = api.explain(
            str(source),
            rules,
            level=level,
            aggressive=options.names(aggressive) or (),
            freeze_initializers=freeze_initializers,
            trust_dim_names=trust_dim_names,
            target=target,
            opset=opset,
            ort_version=ort_version,
            load_files=tuple(map(str, load or ())),
        )
    if json:
        show_json(explanations_json(str(source), found))
    else:
        show(explanations_text(found, limit))
    return EXIT_OK
