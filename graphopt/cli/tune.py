"""`graphopt tune`."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphopt.cli import options
from graphopt.cli.output import EXIT_DIFFERENT, EXIT_OK, guests_on_stderr, show, show_json, width_of

if TYPE_CHECKING:
    from graphopt.tuning.search import Told

NAME = "tune"
_FIGURES = 37
"""Columns that the figures of a line take."""


def command(
    source: Annotated[Path, typer.Argument(metavar="IN", help="The model.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="OUT", help="Where the recipe goes. Default: NAME.recipe.json beside the model."
        ),
    ] = None,
    provider: options.Provider = "auto",
    max_error: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            metavar="E",
            help="Largest error of an output, as a share of its largest value. Default: three times that of the "
            "runtime's defaults.",
        ),
    ] = None,
    max_time: Annotated[float, typer.Option(min=1.0, metavar="S", help="Seconds for all of it.")] = 180.0,
    trial_time: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            metavar="S",
            help="Seconds after which a candidate is refused. Default: 120, and more for models that load slowly.",
        ),
    ] = None,
    targets: Annotated[
        list[str] | None,
        typer.Option(
            "--target", metavar="TARGET", help="Let the model optimized for a target compete, too; repeatable."
        ),
    ] = None,
    wanted: Annotated[
        list[str] | None,
        typer.Option("--try", metavar="NAME=VALUE,…", help="Settings to try first, together; repeatable."),
    ] = None,
    only: Annotated[bool, typer.Option("--only", help="Try only what --try names.")] = False,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Spread candidates over a Ray cluster; 'local' starts one here."),
    ] = None,
    dim: options.Dims = None,
    shape: options.Shapes = None,
    value_range: options.Ranges = None,
    data: options.Data = None,
    seed: options.Seed = 0,
    custom_ops: options.CustomOps = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files.")] = False,
    show_code: Annotated[
        bool, typer.Option("--show-code", help="Print the session of the recipe as plain ONNX Runtime code, too.")
    ] = False,
    json: options.Json = False,
    verbose: options.Verbose = 0,
    quiet: options.Quiet = False,
) -> int:
    """Find the settings of the runtime that run a model fastest, each compared with the original first."""
    from graphopt.report import tuning_text
    from graphopt.runtime.recipe import code
    from graphopt.tuning import tune
    from graphopt.tuning.candidates import parse_change

    settings: dict[str, Any] = options.one_provider(
        options.feeds(provider, dim, shape, value_range, data, seed, custom_ops), NAME
    )
    with _watched(quiet=quiet or json, always=verbose > 0) as watch, guests_on_stderr():
        found = tune(
            source,
            out,
            max_error=max_error,
            max_time=max_time,
            trial_time=trial_time,
            targets=tuple(targets or ()),
            wanted=[parse_change(text) for text in wanted or ()],
            only=only,
            ray=ray,
            force=force,
            tell=watch.tell,
            say=watch.say,
            **settings,
        )
    if json:
        show_json(found.to_json())
    elif not quiet:
        show(tuning_text(found, verbose=verbose))
        if show_code and found.recipe is not None:
            sys.stdout.write(f"\n{code(found.recipe)}\n")
    return EXIT_OK if found.recipe is not None else EXIT_DIFFERENT


class _Watch:
    """Lines on stderr as candidates end, and a last line that says what runs."""

    def __init__(self, errors: Any, status: Any) -> None:
        self._errors = errors
        self._status = status
        self._begun = False
        self._width = min(52, errors.width - _FIGURES) if errors is not None else 0

    def say(self, text: str) -> None:
        """What goes on before candidates are tried."""
        self._update(text)

    def tell(self, told: Told) -> None:
        """How far the search is."""
        from graphopt.report.tuning import change_text

        if self._errors is None:
            return
        best = "" if math.isnan(told.best_ms) else f"{told.best_ms:.3f}"
        record = told.record
        if record is None:
            if told.starting:
                names = "; ".join(change_text(dict(item), dict(told.best)).strip() for item in told.starting)
                so_far = f", best so far {best} ms" if best else ""
                self._update(f"{told.done + 1} of about {told.done + 1 + told.left}{so_far}: {names}")
            return
        if not self._begun:
            self._begun = True
            self._print(f"{'candidate':<{self._width}} {'verdict':<9} {'ms':>8} {'ratio':>6} {'best ms':>8}", "bold")
        name = change_text(record.settings, record.against)
        name = name if len(name) <= self._width else f"{name[: self._width - 1]}…"
        figures = "-" if math.isnan(record.median_ms) else f"{record.median_ms:.3f}"
        ratio = "-" if math.isnan(record.ratio) else f"{record.ratio:.3f}"
        if record.verdict == "faster":  # it may be the next best, if nothing of its block is faster still
            best = figures if math.isnan(told.best_ms) else f"{min(told.best_ms, record.median_ms):.3f}"
        line = f"{name:<{self._width}} {record.verdict:<9} {figures:>8} {ratio:>6} {best:>8}"
        self._print(line.rstrip(), {"faster": "green", "refused": "red"}.get(record.verdict, ""))
        if record.verdict == "refused":
            self._print(f"      {record.reason}", "dim")

    def _update(self, text: str) -> None:
        """Replace the last line; one line only, whatever is said."""
        from rich.markup import escape

        if self._status is not None:
            room = self._errors.width - 4
            self._status.update(f"[dim]{escape(text if len(text) <= room else f'{text[: room - 1]}…')}[/]")

    def _print(self, line: str, style: str) -> None:
        self._errors.print(line, style=style, markup=False, overflow="ellipsis", no_wrap=True)


@contextmanager
def _watched(*, quiet: bool, always: bool) -> Iterator[_Watch]:
    """Progress where somebody watches: on a terminal, or in a log if that is asked for."""
    from rich.console import Console

    errors = Console(stderr=True, highlight=False, width=width_of(sys.stderr))
    if quiet or not (errors.is_terminal or always):
        yield _Watch(None, None)
    elif not errors.is_terminal:
        yield _Watch(errors, None)
    else:
        with errors.status("[dim]reading the model[/]") as status:
            yield _Watch(errors, status)
