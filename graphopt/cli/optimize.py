"""`graphopt optimize`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from graphopt.cli import options, places
from graphopt.cli.output import progress
from graphopt.cli.telling import several, tell
from graphopt.errors import UsageError

NAME = "optimize"
_BENCH_SECONDS = 30.0


def command(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="IN [OUT]", help="Model, and the file to write; or several models with --out-dir."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="File to write; default NAME.opt.onnx. May be IN itself.",
            rich_help_panel=options.FILES,
        ),
    ] = None,
    out_dir: Annotated[
        Path | None,
        typer.Option("--out-dir", help="Folder for the results of several models.", rich_help_panel=options.FILES),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            "--jobs",
            "-j",
            min=1,
            help="Models optimized at a time; what is timed is done one by one.",
            rich_help_panel=options.FILES,
        ),
    ] = 1,
    level: Annotated[
        str,
        typer.Option(
            help="exact: kernels see the same numbers. default: same within measured noise. fast-math: faster still.",
            rich_help_panel=options.PASSES,
        ),
    ] = "default",
    target: Annotated[
        str,
        typer.Option(
            help="What the result must run on: ort-cpu or ort-cuda may use ONNX Runtime's own operators.",
            rich_help_panel=options.PASSES,
        ),
    ] = "portable",
    ort_version: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION",
            help="With ort-cpu or ort-cuda: the oldest ONNX Runtime the result must run on.",
            rich_help_panel=options.PASSES,
        ),
    ] = None,
    passes: Annotated[
        str | None, typer.Option(help="Only these passes, separated by commas.", rich_help_panel=options.PASSES)
    ] = None,
    skip: Annotated[
        str | None, typer.Option(help="Leave these passes out, separated by commas.", rich_help_panel=options.PASSES)
    ] = None,
    disable: Annotated[
        list[str] | None, typer.Option(metavar="PASS/RULE", help="Leave a rule out.", rich_help_panel=options.PASSES)
    ] = None,
    aggressive: Annotated[
        str | None, typer.Option(help="Run these passes in their aggressive form.", rich_help_panel=options.PASSES)
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Node or value that must survive.", rich_help_panel=options.PASSES),
    ] = None,
    load: options.Load = None,
    fix_dim: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SIZE", help="Make a free dim of the inputs static.", rich_help_panel=options.SIGNATURE
        ),
    ] = None,
    fix_shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="INPUT=1,3,224,224", help="Make an input's shape static.", rich_help_panel=options.SIGNATURE
        ),
    ] = None,
    inputs: Annotated[
        str | None,
        typer.Option(
            "--inputs",
            metavar="A,B",
            help="Begin at these inputs or inner values; the graph is cut there.",
            rich_help_panel=options.SIGNATURE,
        ),
    ] = None,
    outputs: Annotated[
        str | None,
        typer.Option(
            "--outputs",
            metavar="A,B",
            help="Return only these values, inner ones too.",
            rich_help_panel=options.SIGNATURE,
        ),
    ] = None,
    add_output: Annotated[
        list[str] | None,
        typer.Option(
            "--add-output", metavar="NAME", help="Return an inner value too.", rich_help_panel=options.SIGNATURE
        ),
    ] = None,
    io_dtype: Annotated[
        list[str] | None,
        typer.Option(
            "--io-dtype",
            metavar="NAME=TYPE",
            help="Element type of an input or output; a Cast goes in.",
            rich_help_panel=options.SIGNATURE,
        ),
    ] = None,
    allow_lossy: Annotated[
        bool,
        typer.Option(
            "--allow-lossy",
            help="Let --io-dtype lose precision or range in outputs.",
            rich_help_panel=options.SIGNATURE,
        ),
    ] = False,
    rename: Annotated[
        list[str] | None,
        typer.Option(
            "--rename",
            metavar="OLD=NEW",
            help="Rename an input, output, inner value or node.",
            rich_help_panel=options.SIGNATURE,
        ),
    ] = None,
    freeze_initializers: Annotated[
        bool,
        typer.Option(
            "--freeze-initializers",
            help="Treat initializers a caller may override as constants.",
            rich_help_panel=options.PASSES,
        ),
    ] = False,
    fold_dequantize: Annotated[
        bool,
        typer.Option(
            "--fold-dequantize", help="Store constant quantized weights unquantized.", rich_help_panel=options.PASSES
        ),
    ] = False,
    trust_dim_names: Annotated[
        bool,
        typer.Option("--trust-dim-names", help="Take dims of equal names to be equal.", rich_help_panel=options.PASSES),
    ] = False,
    opset: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Convert to this opset, up or down, and use what only it has.",
            rich_help_panel=options.PASSES,
        ),
    ] = None,
    growth_limit: Annotated[
        int,
        typer.Option(
            min=0, help="Bytes a folded constant may exceed what it replaces.", rich_help_panel=options.PASSES
        ),
    ] = 1 << 20,
    stop_after: Annotated[
        int | None, typer.Option(metavar="N", help="Stop after N rewrites.", rich_help_panel=options.PASSES)
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            metavar="SECONDS",
            help="Keep the last finished pass when the time is up.",
            rich_help_panel=options.PASSES,
        ),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Replay a plan: same passes, same rewrites, nothing timed.",
            rich_help_panel=options.FILES,
        ),
    ] = None,
    write_plan: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write what this run decided; with --measure by default NAME.plan.json beside OUT.",
            rich_help_panel=options.FILES,
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Stop where a pass fails; else it is rolled back, named at the end, and the others' result is kept.",
            rich_help_panel=options.PASSES,
        ),
    ] = False,
    external_data: Annotated[
        bool | None,
        typer.Option(
            "--external-data/--inline",
            help="Weights beside the model or inside; default: as read.",
            rich_help_panel=options.FILES,
        ),
    ] = None,
    external_threshold: Annotated[
        int, typer.Option(min=0, help="Bytes from which a tensor goes external.", rich_help_panel=options.FILES)
    ] = 1024,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            "-f",
            help="Replace an existing file; replay a plan of another model.",
            rich_help_panel=options.FILES,
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Run the passes and tell what they did; compare and write nothing.",
            rich_help_panel=options.FILES,
        ),
    ] = False,
    no_verify: Annotated[
        bool,
        typer.Option(
            "--no-verify",
            help="Do not run the models; the file is stamped not verified.",
            rich_help_panel=options.COMPARISON,
        ),
    ] = False,
    allow_unverified: Annotated[
        bool,
        typer.Option(
            "--allow-unverified", help="Write OUT even if it could not be verified.", rich_help_panel=options.COMPARISON
        ),
    ] = False,
    provider: options.Providers = None,
    provider_option: options.ProviderOptions = None,
    dim: options.Dims = None,
    shape: options.Shapes = None,
    value_range: options.Ranges = None,
    data: options.Data = None,
    seed: options.Seed = 0,
    runs: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Sets of inputs to compare on.", rich_help_panel=options.COMPARISON),
    ] = None,
    rtol: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            callback=options.finite,
            help="Relative tolerance, in place of the measured one.",
            rich_help_panel=options.COMPARISON,
        ),
    ] = None,
    atol: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            callback=options.finite,
            help="Absolute tolerance, in place of the measured one.",
            rich_help_panel=options.COMPARISON,
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(min=0.001, help="Seconds one load or run may take.", rich_help_panel=options.COMPARISON),
    ] = None,
    decode: options.Decode = None,
    custom_ops: options.CustomOps = None,
    bench: Annotated[
        bool, typer.Option("--bench", help="Time the result against the original.", rich_help_panel=options.COMPARISON)
    ] = False,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Time groups of rewrites, leave out what is slower or wrong, and write the plan.",
            rich_help_panel=options.COMPARISON,
        ),
    ] = False,
    min_speedup: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            metavar="RATIO",
            help="With --bench or --measure: write only if surely that much faster.",
            rich_help_panel=options.COMPARISON,
        ),
    ] = None,
    max_time: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            metavar="SECONDS",
            help="With --bench: of timing, default 30. With --measure: of all of it for each model, default 300.",
            rich_help_panel=options.COMPARISON,
        ),
    ] = None,
    bisect: Annotated[
        bool,
        typer.Option(
            "--bisect/--no-bisect",
            help="Where outputs differ, find the rewrite and write a small model that shows it.",
            rich_help_panel=options.COMPARISON,
        ),
    ] = True,
    bisect_out: Annotated[
        Path | None,
        typer.Option(
            "--bisect-out",
            metavar="FOLDER",
            help="Where that small model goes; default NAME.bisect beside OUT.",
            rich_help_panel=options.FILES,
        ),
    ] = None,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile",
            help="With --bench or --measure: which operators, kernels and rewrites the time goes to.",
            rich_help_panel=options.COMPARISON,
        ),
    ] = False,
    print_after: Annotated[
        str | None,
        typer.Option(
            metavar="PASS",
            help="Print the graph after these passes; 'all' for every one.",
            rich_help_panel=options.REPORT,
        ),
    ] = None,
    dump_dir: Annotated[
        Path | None,
        typer.Option(help="Write the model after every pass that changed it.", rich_help_panel=options.REPORT),
    ] = None,
    name_map: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write what became of every name.", rich_help_panel=options.FILES),
    ] = None,
    json: options.Json = False,
    verbose: options.Verbose = 0,
    quiet: options.Quiet = False,
) -> int:
    """Rewrite a model, prove the result equal to it, and write it."""
    from graphopt.acceptance.acceptance import DEFAULT_SECONDS
    from graphopt.cli import job as jobs_of
    from graphopt.cli.plans import Plan, read_plan, require_known_passes, require_same_passes
    from graphopt.pipeline import load_registry
    from graphopt.runtime.bounds import require_bounded

    settings: dict[str, Any] = {
        "level": level,
        "target": target,
        "ort_version": ort_version,
        "passes": options.names(passes),
        "skip": options.names(skip) or (),
        "disable": tuple(disable or ()),
        "aggressive": options.names(aggressive) or (),
        "keep": tuple(keep or ()),
        "load_files": tuple(map(str, load or ())),
        "stop_after": stop_after,
        "deadline": deadline,
        "freeze_initializers": freeze_initializers,
        "fold_dequantize": fold_dequantize,
        "trust_dim_names": trust_dim_names,
        "growth_limit": growth_limit,
        "opset": opset,
        "strict": strict,
    }
    signature: dict[str, Any] = {
        "fix_dims": options.sizes(fix_dim, "--fix-dim"),
        "fix_shapes": options.shapes(fix_shape, "--fix-shape"),
        "inputs": options.value_names(inputs),
        "outputs": options.names(outputs),
        "add_outputs": tuple(add_output or ()),
        "io_dtypes": options.pairs(io_dtype, "--io-dtype", "image=uint8"),
        "allow_lossy": allow_lossy,
        "rename": options.pairs(rename, "--rename", "old=new"),
    }
    require_bounded(max_time=max_time or 0)
    followed = Plan({}, {}, "") if plan is None else read_plan(plan)
    settings |= followed.settings
    if not force:
        require_same_passes(followed, settings["load_files"])
    if plan is not None:
        require_known_passes(followed, load_registry(settings["load_files"]))
        _require_no_signature(signature)
        signature |= followed.signature
    feeds = options.feeds(provider, dim, shape, value_range, data, seed, custom_ops, provider_option)
    timed = bench or measure
    if min_speedup is not None and not timed:
        raise UsageError("--min-speedup needs --bench or --measure")
    if profile and not timed:
        raise UsageError("--profile needs --bench or --measure")
    if measure:
        _require_measurable(plan, no_verify, dry_run, print_after, dump_dir)
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
            "decode": decode,
            "override_defaults": not freeze_initializers,
        },
        "bench": {
            **_timed_on(feeds),
            "max_time": max_time or _BENCH_SECONDS,
            "profile": profile,
        }
        if timed
        else None,
        "measure": (max_time or DEFAULT_SECONDS) if measure else None,
        "bisect": bisect,
        "bisect_out": None if bisect_out is None else str(bisect_out),
        "save": {"external_data": external_data, "external_threshold": external_threshold},
        "signature": signature,
        "plan_for": followed.model,
        "reads": places.files_read(load, custom_ops, data, plan),
        "force": force,
        "dry_run": dry_run,
        "allow_unverified": allow_unverified,
        "min_speedup": min_speedup,
        "name_map": None if name_map is None else str(name_map),
        "write_plan": None if write_plan is None else str(write_plan),
        "in_place": out_dir is None and (output is not None or len(sources) == 2),
        "dump_dir": None if dump_dir is None else str(dump_dir),
        "print_after": options.names(print_after) or (),
    }
    todo = [jobs_of.Job(source, goal, **common) for source, goal in places.files_of(sources, output, out_dir)]
    if len(todo) > 1 and any(path is not None for path in (write_plan, name_map, bisect_out)):
        raise UsageError("--write-plan, --name-map and --bisect-out are for one model; run them one by one")
    if measure and write_plan is None:
        todo = [replace(item, write_plan=str(Path(item.target).with_suffix(".plan.json"))) for item in todo]
    if len(todo) > 1:
        with places.folder_for(out_dir):
            return several(todo, jobs, json=json, quiet=quiet)
    with places.folder_for(out_dir), progress(f"optimizing {todo[0].source}", quiet=quiet or json) as ticker:
        outcome = jobs_of.run(replace(todo[0], command=tuple(sys.argv[1:])), ticker.say)
    tell(outcome, json=json, verbose=verbose, quiet=quiet)
    return outcome.code


def _timed_on(feeds: dict[str, Any]) -> dict[str, Any]:
    """The same where only one model is timed at a time: of several providers on the first, with its own options."""
    from graphopt.acceptance.instruments import on_first_provider

    return on_first_provider(feeds)


def _require_measurable(
    plan: Path | None, no_verify: bool, dry_run: bool, print_after: str | None, dump_dir: Path | None
) -> None:
    """Refuse options that contradict --measure."""
    against = {
        "--plan": (plan is not None, "a plan is replayed without measuring"),
        "--no-verify": (no_verify, "what is not compared is not accepted"),
        "--dry-run": (dry_run, "a dry run runs no model"),
        "--print-after": (print_after is not None, "measuring runs the passes many times"),
        "--dump-dir": (dump_dir is not None, "measuring runs the passes many times"),
    }
    for option, (is_given, why) in against.items():
        if is_given:
            raise UsageError(f"--measure and {option} do not go together: {why}; leave one out")


def _require_no_signature(signature: dict[str, Any]) -> None:
    given = [name for name, value in signature.items() if value]
    if given:
        option = given[0].replace("_", "-").removesuffix("s") if given[0] not in ("inputs", "outputs") else given[0]
        raise UsageError(f"a plan brings its own signature; leave --{option} out, or write a new plan with it")
