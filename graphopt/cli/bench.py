"""`graphopt bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from graphopt.cli import options
from graphopt.cli.output import EXIT_NOT_VERIFIED, EXIT_OK, EXIT_SLOWER, guests_on_stderr, progress, show, show_json

NAME = "bench"


def command(
    original: Annotated[Path, typer.Argument(help="The model to compare with.")],
    rewritten: Annotated[Path, typer.Argument(help="The model that should be faster.")],
    provider: options.Provider = "auto",
    provider_option: options.ProviderOptions = None,
    dim: options.Dims = None,
    shape: options.Shapes = None,
    value_range: options.Ranges = None,
    data: options.Data = None,
    seed: options.Seed = 0,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep",
            metavar="NAME=1,8,32",
            help="Sizes of a free dim to time at; several give all combinations.",
            rich_help_panel=options.COMPARISON,
        ),
    ] = None,
    concurrency: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Time throughput, too, with N requests at a time on one session, at most 256."
        ),
    ] = 0,
    decode: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="STEPS",
            help="Steps after a prefill for decoders with past and present, at most 4096; by default 16, 0: not timed "
            "apart.",
        ),
    ] = None,
    threads: Annotated[int, typer.Option(min=0, help="Threads within an operator; 0 is the runtime's default.")] = 0,
    sessions: Annotated[
        int, typer.Option(min=3, help="Sessions of each side, at least; more where loading is quick.")
    ] = 5,
    max_time: Annotated[
        float, typer.Option(min=0.1, help="Seconds for all of it; three sessions of each side are made in any case.")
    ] = 30.0,
    profile: Annotated[
        bool, typer.Option("--profile", help="Find out which operators and kernels take the time.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the comparison as .svg, .png or .pdf.")
    ] = None,
    fail_if_slower: Annotated[
        float | None,
        typer.Option(
            min=0.0, metavar="PERCENT", help="Exit with 5 if anything measured is surely slower by more than that."
        ),
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Run the second model as a recipe of graphopt tune says."),
    ] = None,
    custom_ops: options.CustomOps = None,
    json: options.Json = False,
    verbose: options.Verbose = 0,
    quiet: options.Quiet = False,
) -> int:
    """Time two models against each other in one run, alternating, in several sessions each."""
    from graphopt import api
    from graphopt.measurements import Sweep
    from graphopt.onnxio.placing import require_unread
    from graphopt.report import benchmark_text, sweep_text
    from graphopt.report.plot import plot as draw
    from graphopt.report.plot import require_plotting
    from graphopt.runtime.bounds import require_bounded

    settings: dict[str, Any] = {
        **options.one_provider(
            options.feeds(provider, dim, shape, value_range, data, seed, custom_ops, provider_option), NAME
        ),
        "threads": threads,
        "sessions": sessions,
        "max_time": max_time,
        "concurrency": concurrency,
        "decode": decode,
        "profile": profile,
        "recipe": recipe,
    }
    require_bounded(threads=threads, sessions=sessions, max_time=max_time, concurrency=concurrency, decode=decode or 0)
    points = options.sweeps(sweep, settings)
    if plot is not None:
        require_plotting(plot)
        script = [] if data is None else [data, data.rpartition(":")[0]]
        require_unread(
            plot,
            [str(original), str(rewritten)],
            [*settings["custom_ops"], *filter(None, script), *([] if recipe is None else [str(recipe)])],
        )
    with progress("timing", quiet=quiet or json) as ticker, guests_on_stderr():
        result = (
            api.sweep(str(original), str(rewritten), sweep=points, progress=ticker.say, **settings)
            if points
            else api.benchmark(str(original), str(rewritten), **settings)
        )
    measured = list(result.points) if isinstance(result, Sweep) else [result]
    if plot is not None and any(point.verdict != "not measured" for point in measured):
        draw(result, plot)
    if json:
        show_json(result.to_json())
    elif not quiet:
        text = sweep_text if isinstance(result, Sweep) else benchmark_text
        show(text(result, verbose=verbose))  # type: ignore[arg-type]
    if fail_if_slower is not None and any(point.lowest_high() < 1 - fail_if_slower / 100 for point in measured):
        return EXIT_SLOWER
    return EXIT_NOT_VERIFIED if any(point.verdict == "not measured" for point in measured) else EXIT_OK
