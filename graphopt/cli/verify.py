"""`graphopt verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphopt.cli import options
from graphopt.cli.output import EXIT_DIFFERENT, EXIT_NOT_VERIFIED, EXIT_OK, guests_on_stderr, progress, show, show_json

NAME = "verify"


def command(
    original: Annotated[Path, typer.Argument(help="The model that is right by definition.")],
    rewritten: Annotated[
        Path | None, typer.Argument(help="The model to compare with it; may be left out with --against.")
    ] = None,
    level: Annotated[str, typer.Option(help="exact: same bits. default: same within measured noise.")] = "default",
    provider: options.Providers = None,
    provider_option: options.ProviderOptions = None,
    dim: options.Dims = None,
    shape: options.Shapes = None,
    value_range: options.Ranges = None,
    data: options.Data = None,
    seed: options.Seed = 0,
    runs: Annotated[int | None, typer.Option(min=1, max=1000, help="Sets of inputs to compare on.")] = None,
    rtol: Annotated[
        float | None,
        typer.Option(min=0.0, callback=options.finite, help="Relative tolerance, in place of the measured one."),
    ] = None,
    atol: Annotated[
        float | None,
        typer.Option(min=0.0, callback=options.finite, help="Absolute tolerance, in place of the measured one."),
    ] = None,
    adversarial: Annotated[
        bool, typer.Option("--adversarial", help="Compare on NaN, infinities, ends of ranges and ties, too.")
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Run the model elsewhere: a command with {model}, {inputs} and {outputs} (.npz) in it.",
        ),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0.001, help="Seconds one load or one run may take; a comparison makes several.")
    ] = None,
    decode: options.Decode = None,
    custom_ops: options.CustomOps = None,
    json: options.Json = False,
    verbose: options.Verbose = 0,
    quiet: options.Quiet = False,
) -> int:
    """Compare two models by running both: equal, different, or not verified."""
    from graphopt import api
    from graphopt.errors import UsageError
    from graphopt.report import verification_text
    from graphopt.rewrite import LEVELS

    if level not in LEVELS:
        raise UsageError(f"there is no level '{level}'; choose one of {', '.join(LEVELS)}")
    with progress("comparing on ONNX Runtime", quiet=quiet or json), guests_on_stderr():
        result = api.verify(
            str(original),
            None if rewritten is None else str(rewritten),
            level=level,
            runs=runs,
            rtol=rtol,
            atol=atol,
            timeout=timeout,
            decode=decode,
            adversarial=adversarial,
            against=against,
            **options.feeds(provider, dim, shape, value_range, data, seed, custom_ops, provider_option),
        )
    if json:
        show_json(result.to_json())
    elif not quiet:
        show(verification_text(result, verbose=verbose))
    return {"equal": EXIT_OK, "different": EXIT_DIFFERENT}.get(result.verdict, EXIT_NOT_VERIFIED)
