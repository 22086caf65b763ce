"""`graphopt bisect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphopt.cli import options
from graphopt.cli.output import EXIT_DIFFERENT, EXIT_OK, EXIT_USAGE, guests_on_stderr, progress, show, show_json

NAME = "bisect"


def command(
    source: Annotated[Path, typer.Argument(metavar="IN", help="The model.")],
    check: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Fails on a bad model; {} stands for the file, else it is put at the end. Default: outputs are "
            "compared with the original's.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Where the reproducer goes. Default: NAME.bisect.")
    ] = None,
    strip_weights: Annotated[
        bool,
        typer.Option("--strip-weights", help="Replace the reproducer's weights by random ones, if it still shows."),
    ] = False,
    level: Annotated[str, typer.Option(help="exact, default or fast-math, as for optimize.")] = "default",
    passes: Annotated[str | None, typer.Option(metavar="A,B", help="Run only these passes.")] = None,
    skip: Annotated[str | None, typer.Option(metavar="A,B", help="Leave out these passes.")] = None,
    disable: Annotated[list[str] | None, typer.Option(metavar="PASS/RULE", help="Leave out a rule.")] = None,
    aggressive: Annotated[str | None, typer.Option(help="Run these passes in their aggressive form.")] = None,
    freeze_initializers: Annotated[
        bool, typer.Option("--freeze-initializers", help="Treat initializers a caller may override as constants.")
    ] = False,
    trust_dim_names: Annotated[
        bool, typer.Option("--trust-dim-names", help="Take dims of equal names to be equal.")
    ] = False,
    opset: Annotated[int | None, typer.Option(metavar="N", help="Convert to this opset on the way.")] = None,
    fix_dim: Annotated[
        list[str] | None, typer.Option(metavar="NAME=SIZE", help="Make a free dim of the inputs static.")
    ] = None,
    load: options.Load = None,
    provider: options.Provider = "auto",
    dim: options.Dims = None,
    shape: options.Shapes = None,
    value_range: options.Ranges = None,
    data: options.Data = None,
    seed: options.Seed = 0,
    custom_ops: options.CustomOps = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """Find the rewrite after which outputs differ, or a command fails, and write a small model that shows it."""
    from graphopt.bisection import bisect
    from graphopt.report import bisection_text

    with progress(f"looking for the rewrite that breaks {source}", quiet=quiet or json) as ticker, guests_on_stderr():
        found = bisect(
            source,
            command=check,
            optimize={
                "level": level,
                "passes": options.names(passes),
                "skip": options.names(skip) or (),
                "disable": tuple(disable or ()),
                "aggressive": options.names(aggressive) or (),
                "freeze_initializers": freeze_initializers,
                "trust_dim_names": trust_dim_names,
                "opset": opset,
                "load_files": tuple(map(str, load or ())),
            },
            signature={"fix_dims": options.sizes(fix_dim, "--fix-dim")} if fix_dim else {},
            verify={
                **options.feeds(provider, dim, shape, value_range, data, seed, custom_ops),
                "override_defaults": not freeze_initializers,
            },
            folder=out or Path(f"{source.with_suffix('')}.bisect"),
            strip=strip_weights,
            say=ticker.say,
        )
    if json:
        show_json(found.to_json())
    elif not quiet:
        show(bisection_text(found))
    if found.found:
        return EXIT_DIFFERENT
    return EXIT_OK if found.trials == 1 else EXIT_USAGE
