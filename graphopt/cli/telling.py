"""Doing jobs and telling how they ended."""

from __future__ import annotations

from functools import partial
from multiprocessing import get_context
from typing import Any

from graphopt.cli.aftermath import look_closer, without_it
from graphopt.cli.output import EXIT_OK, Ticker, console, leave_quietly, progress, show, show_error, show_json


def tell(outcome: Any, *, json: bool, verbose: int, quiet: bool) -> None:
    """Print how a job ended, the problem last."""
    from graphopt.report import acceptance_text, failures_text, guilty_text, optimize_text, profile_text

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
        wants_profile = outcome.job.bench is not None and outcome.job.bench.get("profile")
        if wants_profile and outcome.benchmark is not None and outcome.benchmark.profile is not None:
            show("")
            show(profile_text(outcome.benchmark.profile, verbose=verbose))
        if outcome.acceptance is not None:
            show("")
            show(acceptance_text(outcome.acceptance, outcome.plan, verbose=verbose))
        if outcome.bisection is not None:
            found = outcome.bisection
            show("")
            show(guilty_text(found))
            _show_commands(outcome)
        if outcome.report.failures:
            show(failures_text(outcome.report, outcome.own_failures, verbose=verbose))
    message = _problem(outcome, told=not (json or quiet))
    if message:
        show_error(message)


def _show_commands(outcome: Any) -> None:
    """What to type next, each command on one line however long it is: it is there to be copied."""
    found = outcome.bisection
    commands = {
        "to look closer": look_closer(outcome.job),
        "to go on without it": without_it(outcome.job, found.rule) if found.found else "",
    }
    for purpose, command in commands.items():
        if command:
            console().print(f"{purpose}:\n  {command}", soft_wrap=True)


def _problem(outcome: Any, *, told: bool) -> str:
    """What went wrong; the verdict's reason only where no report has `told` it."""
    from graphopt.report.text import shortened

    if outcome.error:
        return str(outcome.error)
    reason = "" if told or outcome.verification is None else f": {shortened(outcome.verification.reason)}"
    if outcome.code == 1:
        return f"{outcome.job.source}: outputs differ{reason}; nothing was written; {_what_next(outcome, told)}"
    if outcome.code == 4:
        why = reason or ", for the reason above"
        return f"{outcome.job.source}: could not be verified{why}; written as {outcome.written}"
    if outcome.code == 5:
        return f"{outcome.job.source}: not surely {outcome.job.min_speedup} times faster; nothing was written"
    return ""


def _what_next(outcome: Any, told: bool) -> str:
    """Where to go from a result that differs."""
    found = outcome.bisection
    if found is None:
        return f"`graphopt bisect {outcome.job.source}` finds the rewrite and makes a small model to report"
    if not found.found:
        return f"the rewrite was not found: {found.reason}; `graphopt bisect {outcome.job.source}` takes its time"
    shown = "" if told or found.reproducer is None else f", shown by {found.reproducer}"
    return f"rewrite {found.number} by {found.rule} makes the difference{shown}; --disable {found.rule} leaves it out"


def several(todo: list[Any], jobs: int, *, json: bool, quiet: bool) -> int:
    """Do several jobs, some at a time, and print one table; the exit code is the worst."""
    from graphopt.cli import job as jobs_of

    outcomes = []
    timed = any(item.bench is not None for item in todo)
    aside = jobs > 1 and timed
    jobs = 1 if timed else jobs  # two timings side by side would slow each other
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
        if aside:
            show("note: what is timed was done one by one, whatever --jobs says")
    for outcome in outcomes:
        if message := _problem(outcome, told=False):
            show_error(message)
    return max((outcome.code for outcome in outcomes), default=EXIT_OK)


def _say_which(ticker: Ticker, index: int, count: int, text: str) -> None:
    ticker.say(f"{index}/{count} {text}")
