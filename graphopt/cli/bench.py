"""`graphopt bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphopt.cli import options
from graphopt.cli.output import EXIT_NOT_VERIFIED, EXIT_OK, EXIT_SLOWER, progress, show, show_json

NAME = "bench"


def command(
    original: Annotated[Path, typer.Argument(help="The model to compare with.")],
    rewritten: Annotated[Path, typer.Argument(help="The model that should be faster.")],
    provider: options.Provider = "auto",
    dim: options.Dims = None,
    shape: options.Shapes = None,
    value_range: options.Ranges = None,
    data: options.Data = None,
    seed: options.Seed = 0,
    threads: Annotated[int, typer.Option(min=0, help="Threads within an operator; 0 is the runtime's default.")] = 0,
    sessions: Annotated[int, typer.Option(min=3, help="Sessions of each side.")] = 5,
    max_time: Annotated[float, typer.Option(min=0.1, help="Seconds of timing.")] = 30.0,
    fail_if_slower: Annotated[
        float | None, typer.Option(min=0.0, metavar="PERCENT", help="Exit with 5 if surely slower by more than that.")
    ] = None,
    custom_ops: options.CustomOps = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """Time two models against each other in one run, alternating, in several sessions each."""
    from graphopt import api
    from graphopt.report import benchmark_text

    with progress("timing", quiet=quiet or json):
        result = api.benchmark(
            str(original),
            str(rewritten),
            provider=options.providers(provider),
            dims=options.sizes(dim, "--dim"),
            shapes=options.shapes(shape, "--shape"),
            ranges=options.ranges(value_range),
            data=data,
            seed=seed,
            threads=threads,
            sessions=sessions,
            max_time=max_time,
            custom_ops=options.libraries(custom_ops),
        )
    if json:
        show_json(result.to_json())
    elif not quiet:
        show(benchmark_text(result))
    if result.verdict == "not measured":
        return EXIT_NOT_VERIFIED
    if fail_if_slower is not None and result.high < 1 - fail_if_slower / 100:
        return EXIT_SLOWER
    return EXIT_OK
