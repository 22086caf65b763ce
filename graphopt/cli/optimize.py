"""`graphopt optimize`."""

from __future__ import annotations

from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import typer

from graphopt.cli import options
from graphopt.cli.output import EXIT_OK, Ticker, leave_quietly, progress, show, show_error, show_json
from graphopt.errors import UsageError

NAME = "optimize"


def command(
    inputs: Annotated[
        list[Path],
        typer.Argument(metavar="IN [OUT]", help="Model, and the file to write; or several models with --out-dir."),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; default NAME.opt.onnx. May be IN itself.")
    ] = None,
    out_dir: Annotated[Path | None, typer.Option("--out-dir", help="Folder for the results of several models.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Models optimized at a time.")] = 1,
    level: Annotated[
        str,
        typer.Option(
            help="exact: kernels see the same numbers. default: same within measured noise. fast-math: faster still."
        ),
    ] = "default",
    target: Annotated[
        str, typer.Option(help="What the result must run on; portable: standard operators only.")
    ] = "portable",
    passes: Annotated[str | None, typer.Option(help="Only these passes, separated by commas.")] = None,
    skip: Annotated[str | None, typer.Option(help="Leave these passes out, separated by commas.")] = None,
    disable: Annotated[list[str] | None, typer.Option(metavar="PASS/RULE", help="Leave a rule out.")] = None,
    aggressive: Annotated[str | None, typer.Option(help="Run these passes in their aggressive form.")] = None,
    keep: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Node or value that must survive.")] = None,
    load: options.Load = None,
    fix_dim: Annotated[
        list[str] | None, typer.Option(metavar="NAME=SIZE", help="Make a free dim of the inputs static.")
    ] = None,
    fix_shape: Annotated[
        list[str] | None, typer.Option(metavar="INPUT=1,3,224,224", help="Make an input's shape static.")
    ] = None,
    outputs: Annotated[str | None, typer.Option(help="Return only these values, separated by commas.")] = None,
    freeze_initializers: Annotated[
        bool, typer.Option("--freeze-initializers", help="Treat initializers a caller may override as constants.")
    ] = False,
    fold_dequantize: Annotated[
        bool, typer.Option("--fold-dequantize", help="Store constant quantized weights unquantized.")
    ] = False,
    trust_dim_names: Annotated[
        bool, typer.Option("--trust-dim-names", help="Take dims of equal names to be equal.")
    ] = False,
    growth_limit: Annotated[int, typer.Option(min=0, help="Bytes a folded constant may exceed what it replaces.")] = 1
    << 20,
    stop_after: Annotated[int | None, typer.Option(metavar="N", help="Stop after N rewrites.")] = None,
    deadline: Annotated[
        float | None, typer.Option(min=0.0, metavar="SECONDS", help="Keep the last finished pass when the time is up.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Replay a plan: same passes, same rewrites, nothing timed.")
    ] = None,
    write_plan: Annotated[Path | None, typer.Option(metavar="FILE", help="Write what this run decided.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop where a pass fails, instead of rolling it back.")
    ] = False,
    external_data: Annotated[
        bool | None,
        typer.Option("--external-data/--inline", help="Weights beside the model or inside; default: as read."),
    ] = None,
    external_threshold: Annotated[int, typer.Option(min=0, help="Bytes from which a tensor goes external.")] = 1024,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace an existing file.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write and run nothing; tell what the passes would do.")
    ] = False,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Do not run the models; the file is stamped not verified.")
    ] = False,
    allow_unverified: Annotated[
        bool, typer.Option("--allow-unverified", help="Write OUT even if it could not be verified.")
    ] = False,
    provider: options.Provider = "auto",
    dim: options.Dims = None,
    shape: options.Shapes = None,
    value_range: options.Ranges = None,
    data: options.Data = None,
    seed: options.Seed = 0,
    runs: Annotated[int | None, typer.Option(min=1, help="Sets of inputs to compare on.")] = None,
    rtol: Annotated[
        float | None, typer.Option(min=0.0, help="Relative tolerance, in place of the measured one.")
    ] = None,
    atol: Annotated[
        float | None, typer.Option(min=0.0, help="Absolute tolerance, in place of the measured one.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(min=0.001, help="Seconds one load or run may take.")] = None,
    custom_ops: options.CustomOps = None,
    bench: Annotated[bool, typer.Option("--bench", help="Time the result against the original.")] = False,
    min_speedup: Annotated[
        float | None,
        typer.Option(min=0.0, metavar="RATIO", help="With --bench: write only if surely that much faster."),
    ] = None,
    max_time: Annotated[float, typer.Option(min=0.1, help="With --bench: seconds of timing.")] = 30.0,
    print_after: Annotated[
        str | None, typer.Option(metavar="PASS", help="Print the graph after these passes; 'all' for every one.")
    ] = None,
    dump_dir: Annotated[Path | None, typer.Option(help="Write the model after every pass that changed it.")] = None,
    name_map: Annotated[Path | None, typer.Option(metavar="FILE", help="Write what became of every name.")] = None,
    json: options.Json = False,
    verbose: options.Verbose = 0,
    quiet: options.Quiet = False,
) -> int:
    """Rewrite a model, prove the result equal to it, and write it."""
    from graphopt.cli import job as jobs_of
    from graphopt.cli.plans import read_plan, save_plan

    settings: dict[str, Any] = {
        "level": level,
        "target": target,
        "passes": _names(passes),
        "skip": _names(skip) or (),
        "disable": tuple(disable or ()),
        "aggressive": _names(aggressive) or (),
        "keep": tuple(keep or ()),
        "load_files": tuple(map(str, load or ())),
        "stop_after": stop_after,
        "deadline": deadline,
        "freeze_initializers": freeze_initializers,
        "fold_dequantize": fold_dequantize,
        "trust_dim_names": trust_dim_names,
        "growth_limit": growth_limit,
        "strict": strict,
    }
    if plan is not None:
        settings.update(read_plan(plan))
    feeds: dict[str, Any] = {
        "provider": options.providers(provider),
        "dims": options.sizes(dim, "--dim"),
        "shapes": options.shapes(shape, "--shape"),
        "ranges": options.ranges(value_range),
        "data": data,
        "seed": seed,
        "custom_ops": options.libraries(custom_ops),
    }
    if min_speedup is not None and not bench:
        raise UsageError("--min-speedup needs --bench")
    for name in disable or ():
        if "/" not in name:
            raise UsageError(f"--disable wants PASS/RULE, not '{name}'; --skip {name} leaves out a whole pass")
    common: dict[str, Any] = {
        "optimize": settings,
        "verify": None
        if no_verify
        else {
            **feeds,
            "runs": runs,
            "rtol": rtol,
            "atol": atol,
            "timeout": timeout,
            "override_defaults": not freeze_initializers,
        },
        "bench": {**feeds, "max_time": max_time} if bench else None,
        "save": {"external_data": external_data, "external_threshold": external_threshold},
        "fix_dim": options.sizes(fix_dim, "--fix-dim"),
        "fix_shape": options.shapes(fix_shape, "--fix-shape"),
        "outputs": _names(outputs) or (),
        "force": force,
        "dry_run": dry_run,
        "allow_unverified": allow_unverified,
        "min_speedup": min_speedup,
        "name_map": None if name_map is None else str(name_map),
        "write_plan": None if write_plan is None else str(write_plan),
        "in_place": out_dir is None and (output is not None or len(inputs) == 2),
        "dump_dir": None if dump_dir is None else str(dump_dir),
        "print_after": _names(print_after) or (),
    }
    todo = [jobs_of.Job(source, goal, **common) for source, goal in _files(inputs, output, out_dir)]
    if len(todo) > 1 and (write_plan is not None or name_map is not None):
        raise UsageError("--write-plan and --name-map are for one model; run them one by one")
    if len(todo) > 1:
        return _several(todo, jobs, json=json, quiet=quiet)
    with progress(f"optimizing {todo[0].source}", quiet=quiet or json) as ticker:
        outcome = jobs_of.run(todo[0], ticker.say)
    if write_plan is not None and outcome.report is not None:
        save_plan(write_plan, settings, outcome.report)
    _tell(outcome, json=json, verbose=verbose, quiet=quiet)
    return outcome.code


def _tell(outcome: Any, *, json: bool, verbose: int, quiet: bool) -> None:
    from graphopt.report import optimize_text

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
                waived=outcome.job.verify is None or outcome.job.dry_run,
                verbose=verbose,
            )
        )
    message = _problem(outcome)
    if message:
        show_error(message)


def _problem(outcome: Any) -> str:
    if outcome.error:
        return str(outcome.error)
    if outcome.code == 1:
        return (
            f"{outcome.job.source}: outputs differ, nothing was written; "
            "find the rule with --stop-after N and report it"
        )
    if outcome.code == 4:
        return f"{outcome.job.source}: could not be verified, for the reason above; written as {outcome.written}"
    if outcome.code == 5:
        return f"{outcome.job.source}: not surely {outcome.job.min_speedup} times faster; nothing was written"
    return ""


def _several(todo: list[Any], jobs: int, *, json: bool, quiet: bool) -> int:
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
        if _problem(outcome):
            show_error(_problem(outcome))
    return max((outcome.code for outcome in outcomes), default=EXIT_OK)


def _say_which(ticker: Ticker, index: int, count: int, text: str) -> None:
    ticker.say(f"{index}/{count} {text}")


def _files(inputs: list[Path], output: Path | None, out_dir: Path | None) -> list[tuple[str, str]]:
    """Pairs of model and file to write.

    Raises:
        UsageError: the combination of arguments makes no sense.
    """
    if out_dir is not None:
        if output is not None:
            raise UsageError("give -o for one model or --out-dir for several, not both")
        try:
            out_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make the folder '{out_dir}': {error.strerror}; choose another") from error
        names = [path.name for path in inputs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise UsageError(f"two inputs are called '{twice}', and their results would be too; rename one")
        return [(str(path), str(out_dir / path.name)) for path in inputs]
    if len(inputs) == 2 and output is None:
        return [(str(inputs[0]), str(inputs[1]))]
    if len(inputs) > 1:
        raise UsageError("several models need --out-dir")
    source = inputs[0]
    if not source.name or source.is_dir():
        raise UsageError(f"'{source}' is a folder; name the .onnx file in it")
    return [(str(source), str(output or source.with_name(f"{source.name.removesuffix('.onnx')}.opt.onnx")))]


def _names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise UsageError("a list of names is empty; leave the option out, or name at least one")
    return names
