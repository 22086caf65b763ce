"""Doing jobs and telling how they ended."""

from __future__ import annotations

from functools import partial
from multiprocessing import get_context
from typing import Any

from graphopt.cli.output import EXIT_OK, Ticker, leave_quietly, progress, show, show_error, show_json


def tell(outcome: Any, *, json: bool, verbose: int, quiet: bool) -> None:
    """Print how a job ended, the problem last."""
    from graphopt.report import optimize_text, profile_text

    if json:
        show_json(outcome.to_json())
    elif outcome.report is not None and not quiet:
        show(
            optimize_text(
                outcome.job.source,
                outcome.written,
                outcome.report,
                outcome.verification,
                outcome.benchmark,
                waived="dry run" if outcome.job.dry_run else "as asked" if outcome.job.verify is None else "",
                verbose=verbose,
            )
        )
        if outcome.benchmark is not None and outcome.benchmark.profile is not None:
            show("")
            show(profile_text(outcome.benchmark.profile, verbose=verbose))
    message = _problem(outcome, told=not (json or quiet))
    if message:
        show_error(message)


def _problem(outcome: Any, *, told: bool) -> str:
    """What went wrong; the verdict's reason only where no report has `told` it."""
    from graphopt.report.text import shortened

    if outcome.error:
        return str(outcome.error)
    reason = "" if told or outcome.verification is None else f": {shortened(outcome.verification.reason)}"
    if outcome.code == 1:
        return (
            f"{outcome.job.source}: outputs differ{reason}; nothing was written; "
            f"`graphopt bisect {outcome.job.source}` finds the rewrite and makes a small model to report"
        )
    if outcome.code == 4:
        why = reason or ", for the reason above"
        return f"{outcome.job.source}: could not be verified{why}; written as {outcome.written}"
    if outcome.code == 5:
        return f"{outcome.job.source}: not surely {outcome.job.min_speedup} times faster; nothing was written"
    return ""


def several(todo: list[Any], jobs: int, *, json: bool, quiet: bool) -> int:
    """Do several jobs, some at a time, and print one table; the exit code is the worst."""
    from graphopt.cli import job as jobs_of

    outcomes = []
    with progress(f"optimizing {len(todo)} models", quiet=quiet or json) as ticker:
        if jobs == 1:
            for index, item in enumerate(todo, 1):
                outcomes.append(jobs_of.run(item, partial(_say_which, ticker, index, len(todo))))
        else:
            # Leaving the block by an exception ends the processes, and each ends what it started.
            with get_context("spawn").Pool(jobs, initializer=leave_quietly) as pool:
                for index, outcome in enumerate(pool.imap(jobs_of.run, todo), 1):
                    ticker.say(f"{index}/{len(todo)} {outcome.job.source}")
                    outcomes.append(outcome)
                pool.close()
                pool.join()
    if json:
        show_json(
            {
                "schema": "graphopt.optimize-several",
                "schema_version": 1,
                "exit_code": max(outcome.code for outcome in outcomes),
                "outcomes": [outcome.to_json() for outcome in outcomes],
            }
        )
    elif not quiet:
        from graphopt.report.several import several_text

        show(several_text(outcomes))
    for outcome in outcomes:
        if message := _problem(outcome, told=False):
            show_error(message)
    return max((outcome.code for outcome in outcomes), default=EXIT_OK)


def _say_which(ticker: Ticker, index: int, count: int, text: str) -> None:
    ticker.say(f"{index}/{count} {text}")
