"""`graphopt extract`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from graphopt.cli import options
from graphopt.cli.output import EXIT_NOT_VERIFIED, EXIT_OK, progress, show, show_error, show_json

NAME = "extract"


def command(
    source: Annotated[Path, typer.Argument(metavar="IN", help="The model.")],
    target: Annotated[Path | None, typer.Argument(metavar="[OUT]", help="File to write; NAME.part.onnx.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write, as OUT.")] = None,
    inputs: Annotated[
        str | None,
        typer.Option("--inputs", metavar="A,B", help="Values the part begins at; default: what the outputs need."),
    ] = None,
    outputs: Annotated[
        str | None, typer.Option("--outputs", metavar="C,D", help="Values it returns; default: the model's outputs.")
    ] = None,
    around: Annotated[
        str | None, typer.Option("--around", metavar="NODE", help="Cut out what lies around a node instead.")
    ] = None,
    depth: Annotated[
        int, typer.Option("--depth", min=0, metavar="N", help="With --around: steps against and along the edges.")
    ] = 1,
    external_data: Annotated[
        bool | None,
        typer.Option("--external-data/--inline", help="Weights beside the part or inside; default: as read."),
    ] = None,
    external_threshold: Annotated[int, typer.Option(min=0, help="Bytes from which a tensor goes external.")] = 1024,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace an existing file.")] = False,
    allow_unverified: Annotated[
        bool, typer.Option("--allow-unverified", help="Write OUT even if the runtime does not load it.")
    ] = False,
    custom_ops: options.CustomOps = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """Cut a part out of a model, unoptimized, with only the weights it needs; check that it loads."""
    from graphopt import api, runtime
    from graphopt.cli.job import Job, check_paths, unverified_path
    from graphopt.errors import UsageError
    from graphopt.onnxio.save import stage
    from graphopt.report.listing import part_json, part_text

    if target is not None and output is not None:
        raise UsageError("give OUT or -o, not both")
    chosen = target or output or source.with_name(f"{source.name.removesuffix('.onnx')}.part.onnx")
    libraries = options.libraries(custom_ops)
    job = Job(str(source), str(chosen), force=force, allow_unverified=allow_unverified, reads=libraries, in_place=False)
    check_paths(job)
    with progress(f"cutting {source}", quiet=quiet or json) as ticker:
        graph = api.extract(
            str(source),
            inputs=options.value_names(inputs),
            outputs=options.names(outputs),
            around=around,
            depth=depth,
        )
        staged = stage(graph, job.target, external_data=external_data, external_threshold=external_threshold)
        try:
            ticker.say("loading it on ONNX Runtime")
            problem, remark = runtime.look_at_part(staged.path, str(source), libraries)
            written = unverified_path(job.target) if problem and not allow_unverified else job.target
            size = sum(os.path.getsize(path) for path in (staged.path, staged.data_path) if path is not None)
            staged.commit(written)
        finally:
            staged.discard()
    if json:
        show_json(part_json(graph, str(source), written, size, (problem, remark)))
    elif not quiet:
        show(part_text(graph, str(source), written, size, (problem, remark)))
    if problem:
        show_error(f"{written}: the part does not load: {problem}; look whether the whole model does")
    return EXIT_NOT_VERIFIED if problem else EXIT_OK
