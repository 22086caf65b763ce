"""What README's three lines call, and what the command line does: `optimize`, `verify`, `benchmark`, `sweep`."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphopt.analysis.inference import Inference
from graphopt.errors import OpsetError, OutputError, UsageError
from graphopt.ir import Graph, Model
from graphopt.measurements import Benchmark, Sweep
from graphopt.onnxio import load, save, to_proto, write_model
from graphopt.onnxio.cutting import around as surroundings
from graphopt.onnxio.cutting import needed_inputs
from graphopt.onnxio.namemap import NameMap
from graphopt.onnxio.save import stage
from graphopt.onnxio.signature import Signature
from graphopt.pipeline import Context, MetaOptimizer, Options, Registry, Selection, load_registry
from graphopt.pipeline.meta import AfterPass, Progress
from graphopt.pipeline.origins import Origins
from graphopt.records import OptimizeReport, Verification
from graphopt.report.explanation import Explanation, Observations, choose, explain_item
from graphopt.rewrite import LEVELS
from graphopt.schema import latest_opset
from graphopt.targets import newer_than_known

if TYPE_CHECKING:
    from onnx import ModelProto

OLDEST_OPSET = 7
"""The oldest opset a model can be converted to; before it, operators broadcast in another way."""


@dataclass(slots=True)
class Result:
    """An optimized model and what was done to it.

    Attributes:
        graph: The optimized main graph.
        report: Passes, rewrites, sizes.
        names: What became of every name.
        origins: Which rule each node that came or went is due to.
        verification: The verdict on the result, None if none was asked for.
    """

    graph: Graph
    report: OptimizeReport
    names: NameMap
    origins: Origins
    verification: Verification | None = None

    @property
    def model(self) -> ModelProto:
        """The optimized model as a message in memory."""
        return to_proto(self.graph)

    @property
    def verdict(self) -> str:
        """`equal`, `different` or `not verified`."""
        return "not verified" if self.verification is None else self.verification.verdict

    def save(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write the optimized model; see `graphopt.save` for the options.

        Raises:
            OutputError: the file cannot be written; nothing was changed.
        """
        save(self.graph, path, **options)


def optimize(
    model: Any,
    *,
    level: str = "default",
    target: str = "portable",
    verify: bool = False,
    passes: Sequence[str] | None = None,
    skip: Sequence[str] = (),
    disable: Sequence[str] = (),
    aggressive: Sequence[str] = (),
    keep: Sequence[str] = (),
    load_files: Sequence[str | os.PathLike[str]] = (),
    stop_after: int | None = None,
    deadline: float | None = None,
    freeze_initializers: bool = False,
    fold_dequantize: bool = False,
    growth_limit: int = 1 << 20,
    trust_dim_names: bool = False,
    opset: int | None = None,
    ort_version: str | None = None,
    strict: bool = False,
    fix_dims: Mapping[str, int] | None = None,
    fix_shapes: Mapping[str, Sequence[int]] | None = None,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    add_outputs: Sequence[str] = (),
    io_dtypes: Mapping[str, str] | None = None,
    allow_lossy: bool = False,
    rename: Mapping[str, str] | None = None,
    prepare: Callable[[Graph], None] | None = None,
    progress: Progress | None = None,
    after_pass: AfterPass | None = None,
    registry: Registry | None = None,
    measure: bool = True,
    **verify_options: Any,
) -> Result:
    """Optimize a model; the argument is never changed.

    Args:
        model: A path, bytes, `ModelProto`, `onnx_ir.Model` or torch `ONNXProgram`.
        level: `exact`, `default` or `fast-math`: which numeric classes of rewrites run.
        target: `portable` (standard operators only), `ort-cpu` or `ort-cuda`: what the result must run on.
        verify: Compare the result with the original on ONNX Runtime.
        passes: The only passes to run; None for all.
        skip: Passes to leave out.
        disable: Rules to leave out, as `pass/rule`.
        aggressive: Passes to run in their aggressive form.
        keep: Names of nodes and values that must survive.
        load_files: Python files with more passes.
        stop_after: Stop after that many rewrites.
        deadline: Seconds after which the graph of the last finished pass is the result.
        freeze_initializers: Treat overridable initializers as constants.
        fold_dequantize: Store constant weights unquantized where `DequantizeLinear` reads them.
        growth_limit: Bytes a folded result may exceed what dies with it.
        trust_dim_names: Take dims of equal names to be equal.
        opset: The opset of the standard domain the result must have; operators that only it has are used, too.
        ort_version: With a target of ONNX Runtime: the oldest version the result must run on, such as `1.22`.
        strict: Raise where a pass fails, instead of rolling it back and going on.
        fix_dims: Sizes of free dims of the inputs, by dim name, which become static.
        fix_shapes: Static shapes of inputs.
        inputs: Values that shall be the inputs: the graph is cut there. This and what follows changes the signature
            before any pass runs; names are those of the model as it is loaded, and the result is compared with the
            original changed in the same way.
        outputs: The only values to return, in that order; inner ones may be named.
        add_outputs: Values to return besides.
        io_dtypes: Element types for inputs and outputs, such as `{"image": "uint8"}`; a `Cast` goes between.
        allow_lossy: Let `io_dtypes` lose precision or range in outputs.
        rename: New names of inputs, outputs, inner values and nodes, by old name.
        prepare: Changes the loaded graph before any pass runs, after the signature.
        progress: Told the name of each pass before it runs, and the sweep.
        after_pass: Called after each pass that changed something, with its name, the sweep and the main graph.
        registry: The passes there are; default: the installed ones.
        measure: Work out the bytes of the result for the report, which takes as long as writing its graph.
        **verify_options: See `verify`.

    Raises:
        ModelError: the model cannot be read.
        UsageError: a level, target, pass, rule or name does not exist.
        PassError: a pass failed and `strict` is set.
        OpsetError: the model cannot be converted to `opset`.
    """
    if level not in LEVELS:
        raise UsageError(f"there is no level '{level}'; choose one of {', '.join(LEVELS)}")
    newer = newer_than_known(target, ort_version)
    if opset is not None and not OLDEST_OPSET <= opset <= latest_opset():
        raise UsageError(f"opset {opset} is not known; choose one from {OLDEST_OPSET} to {latest_opset()}")
    chosen = Selection(
        passes=None if passes is None else tuple(passes),
        skip=tuple(skip),
        disable=tuple(disable),
        aggressive=tuple(aggressive),
        stop_after=stop_after,
        deadline=deadline,
        strict=strict,
    )
    options = Options(
        level=level,
        target=target,
        freeze_initializers=freeze_initializers,
        fold_dequantize=fold_dequantize,
        growth_limit=growth_limit,
        trust_dim_names=trust_dim_names,
        keep=frozenset(keep),
        opset=opset,
        ort_version=ort_version,
    )
    pipeline = MetaOptimizer(registry or load_registry(load_files), chosen)
    pipeline.progress, pipeline.after_pass = progress, after_pass
    signature = Signature(
        fix_dims=fix_dims or {},
        fix_shapes=fix_shapes or {},
        inputs=inputs,
        outputs=outputs,
        add_outputs=add_outputs,
        io_dtypes=io_dtypes or {},
        allow_lossy=allow_lossy,
        rename=rename or {},
    )
    graph = load(model)
    size, names = model_bytes(graph.model), NameMap(graph.model)
    with graph.model.listening(names):
        notes = change_signature(graph, signature)
        if prepare is not None:
            prepare(graph)
    before = operators(graph.model)
    context = Context(Inference(graph.model, trust_dim_names=trust_dim_names), options, _evaluator(graph.model))
    origins = Origins(graph.model)
    with graph.model.listening(names), graph.model.listening(origins):
        report = pipeline.run(graph.model, context)
    if opset is not None:
        report = _require_opset(graph.model, report, opset, level)
    report = dataclasses.replace(
        report,
        notes=(*((newer,) if newer else ()), *notes, *report.notes),
        bytes_before=size,
        bytes_after=write_model(graph.model).length if measure else 0,
        operators_before=before,
        operators_after=operators(graph.model),
    )
    result = Result(graph, report, names, origins)
    if verify:
        if freeze_initializers:
            verify_options.setdefault("override_defaults", False)
        result.verification = _verify_result(model, signature, prepare, result, level, verify_options)
    return result


def _require_opset(model: Model, report: OptimizeReport, opset: int, level: str) -> OptimizeReport:
    """Refuse a model that was not converted to the opset asked for; remark where the runtime does not know it.

    Raises:
        OpsetError: a node cannot be written in that opset, or the pass that does it was left out.
    """
    from graphopt import runtime

    if all(graph.opsets.get("", opset) == opset for graph in model.graphs()):
        if runtime.loads_opset(opset):
            return report
        remark = f"ONNX Runtime does not load models of opset {opset} yet: the result can be neither run nor verified"
        return dataclasses.replace(report, notes=(*report.notes, remark))
    if report.stopped_by in ("rewrite limit", "deadline"):
        return report
    last = next((item for item in reversed(report.passes) if item.name == "opset"), None)
    if last is None:
        raise OpsetError(f"converting to opset {opset} takes the pass 'opset'; do not leave it out")
    reason = last.error or last.status.removeprefix("taken back: ")
    advice = "ask for another opset"
    if level == "exact":
        advice += ", or another level: at level exact only few operators are written in parts"
    raise OpsetError(f"the model cannot be converted to opset {opset}: {reason}; {advice}")


def _evaluator(model: Model) -> Any:
    """Computes constant nodes on ONNX Runtime, which is imported when the first node is."""
    from graphopt.runtime.folding import NodeEvaluator

    return NodeEvaluator(model)


def change_signature(graph: Graph, signature: Signature) -> tuple[str, ...]:
    """Give a model that was just loaded the signature a user asks for.

    Returns:
        Sentences on what was done beyond what was asked for word by word.

    Raises:
        UsageError: a name is unknown or taken, or what is asked for cannot be had.
    """
    return signature.apply(graph, Inference(graph.model).run) if signature else ()


def extract(
    model: Any,
    *,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    around: str | None = None,
    depth: int = 1,
) -> Graph:
    """Cut a part out of a model, unoptimized, with the weights it needs; the argument is not changed.

    Args:
        model: A path, bytes, `ModelProto`, `onnx_ir.Model` or torch `ONNXProgram`.
        inputs: Values the part begins at; None for those inputs of the model that the outputs need.
        outputs: Values it returns; None for the model's outputs.
        around: A node, or a value it gives, in place of inputs and outputs: the part is what lies around it.
        depth: How many steps against and along the edges from that node.

    Returns:
        The main graph of the part, to be saved or optimized.

    Raises:
        ModelError: the model cannot be read.
        UsageError: a name is unknown, or an output needs an input that is not named.
    """
    if around is None and inputs is None and outputs is None:
        raise UsageError("say what to cut out: name inputs, outputs, or a node to cut around")
    if around is not None and (inputs is not None or outputs is not None):
        raise UsageError("name inputs and outputs or a node to cut around, not both")
    graph = load(model)
    if around is not None:
        inputs, outputs = surroundings(graph, around, depth)
    elif inputs is None:
        inputs = needed_inputs(graph, outputs or ())
    change_signature(graph, Signature(inputs=inputs, outputs=outputs))
    return graph


def explain(
    model: Any,
    rules: Sequence[str],
    *,
    level: str = "default",
    target: str = "portable",
    aggressive: Sequence[str] = (),
    freeze_initializers: bool = False,
    trust_dim_names: bool = False,
    opset: int | None = None,
    ort_version: str | None = None,
    load_files: Sequence[str | os.PathLike[str]] = (),
    registry: Registry | None = None,
) -> tuple[Explanation, ...]:
    """Tell where rules fire on a model, and where and why they nearly do.

    The passes run over the model as they do in `optimize`. Then each rule is tried, and none fires any more, at every
    node of the result where its pattern could begin.

    Args:
        model: A path, bytes, `ModelProto`, `onnx_ir.Model` or torch `ONNXProgram`; not changed.
        rules: Rules, passes, or `pass/rule`.
        level: See `optimize`, as for the rest.
        target: What the result would have to run on.
        aggressive: Passes to run in their aggressive form.
        freeze_initializers: Treat overridable initializers as constants.
        trust_dim_names: Take dims of equal names to be equal.
        opset: The opset to convert to on the way.
        ort_version: With a target of ONNX Runtime: the oldest version the result must run on, such as `1.22`.
        load_files: Python files with more passes.
        registry: The passes there are; default: the installed ones.

    Raises:
        ModelError: the model cannot be read.
        UsageError: a level, target, pass or rule does not exist.
    """
    if level not in LEVELS:
        raise UsageError(f"there is no level '{level}'; choose one of {', '.join(LEVELS)}")
    newer = newer_than_known(target, ort_version)
    registry = registry or load_registry(load_files)
    chosen = choose(registry, rules)
    seen = Observations(chosen)
    graph = load(model)
    options = Options(
        level=level,
        target=target,
        freeze_initializers=freeze_initializers,
        trust_dim_names=trust_dim_names,
        opset=opset,
        ort_version=ort_version,
    )
    context = Context(Inference(graph.model, trust_dim_names=trust_dim_names), options, _evaluator(graph.model))
    context.observer, context.on_note = seen.on_miss, seen.on_note
    report = MetaOptimizer(registry, Selection(aggressive=tuple(aggressive))).run(graph.model, context)
    fired = report.rewrites_by_rule
    found = []
    for owner, item in chosen:
        runs = [one for one in report.passes if one.name == owner.name]
        failed = next((one.error or one.status for one in runs if one.status not in ("changed", "nothing to do")), "")
        obstacle = failed
        if item.numeric not in options.classes:
            obstacle = f"its class {item.numeric.value} is beyond the level '{level}'; --level fast-math allows all"
        elif not runs:
            obstacle = "nothing asked for it; it runs with the option it serves"
        name = f"{owner.name}/{item.name}"
        found.append(explain_item(owner, item, graph, context, fired.get(name, 0), seen, obstacle))
    if newer:
        found = [dataclasses.replace(item, notes=(newer, *item.notes)) for item in found]
    return tuple(found)


def _verify_result(
    original: Any,
    signature: Signature,
    prepare: Callable[[Graph], None] | None,
    result: Result,
    level: str,
    options: dict[str, Any],
) -> Verification:
    from graphopt import runtime

    with ExitStack() as stack:
        path = _written(result.graph, original, "optimized", stack)
        if signature or prepare is not None or not isinstance(original, (str, os.PathLike)):
            # The truth is the original with the signature asked for, and nothing else done to it.
            graph = load(original)
            change_signature(graph, signature)
            if prepare is not None:
                prepare(graph)
            original = _written(graph, original, "original", stack)
        # Both were loaded a moment ago: straight to the runtime, without looking at them once more.
        return runtime.verify(original, path, level=level, **options)


def _written(graph: Graph, source: Any, name: str, stack: ExitStack) -> str:
    """A model as a file that goes with `stack`; where weights are in files it lies beside them, so that they stay."""
    import tempfile

    if isinstance(source, (str, os.PathLike)) and graph.model.details["external_files"].mappings:
        try:
            staged = stage(graph, f"{os.fspath(source)}.{name}", external_data="reference")
        except OutputError:  # a folder that may not be written: the weights are copied
            pass
        else:
            stack.callback(staged.discard)
            return staged.path
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="graphopt-"))
    path = os.path.join(folder, f"{name}.onnx")
    save(graph, path)
    return path


def verify(
    original: str | os.PathLike[str], rewritten: str | os.PathLike[str] | None = None, **options: Any
) -> Verification:
    """Compare two model files on ONNX Runtime; see `graphopt.runtime.verify` for the options.

    The second may be left out where `against` names a command that runs the first one elsewhere.

    Raises:
        ModelError: a file cannot be read.
    """
    from graphopt import runtime

    _require_model(original)
    if rewritten is not None:
        _require_model(rewritten)
    return runtime.verify(original, rewritten, **options)


def benchmark(original: str | os.PathLike[str], rewritten: str | os.PathLike[str], **options: Any) -> Benchmark:
    """Time two model files against each other in one run; see `graphopt.runtime.benchmark` for the options.

    Raises:
        ModelError: a file cannot be read.
    """
    from graphopt import runtime

    _require_model(original)
    _require_model(rewritten)
    return runtime.benchmark(original, rewritten, **options)


def sweep(original: str | os.PathLike[str], rewritten: str | os.PathLike[str], **options: Any) -> Sweep:
    """Time two model files against each other at several sizes; see `graphopt.runtime.sweep` for the options.

    Raises:
        ModelError: a file cannot be read.
    """
    from graphopt import runtime

    _require_model(original)
    _require_model(rewritten)
    return runtime.sweep(original, rewritten, **options)


def _require_model(path: str | os.PathLike[str]) -> None:
    """Refuse what is no model before a process is started for it."""
    if isinstance(path, (str, os.PathLike)):
        load(path)


def operators(model: Model) -> dict[str, int]:
    """Operators by name over all graphs, most frequent first; constants are not counted."""
    counts: Counter[str] = Counter()
    for graph in model.graphs():
        for domain, op_type in graph.kinds:
            counts[f"{domain}.{op_type}" if domain else op_type] += len(graph.of_kind(op_type, domain))
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def model_bytes(model: Model) -> int:
    """Bytes of a model that was just loaded, its weights included wherever they lie."""
    files = model.details["external_files"].mappings.values()
    mappings = {id(mapping) for mapping in files}
    size: int = model.details["bytes"]
    if not mappings:
        return size
    regions = {
        (id(tensor.region.mapping), tensor.region.offset): tensor.nbytes
        for graph in model.graphs()
        for node in graph.all_nodes()
        for tensor in (node.tensor, node.default)
        if tensor is not None and tensor.region is not None and id(tensor.region.mapping) in mappings
    }
    return size + sum(regions.values())
