"""What README's three lines call: `optimize`, `verify` and `benchmark`."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphopt.analysis.inference import Inference
from graphopt.errors import UsageError
from graphopt.ir import Graph, Model
from graphopt.onnxio import load, save, to_proto, write_model
from graphopt.onnxio.namemap import NameMap
from graphopt.pipeline import Context, MetaOptimizer, Options, Registry, Selection, load_registry
from graphopt.pipeline.meta import AfterPass, Progress
from graphopt.records import Benchmark, OptimizeReport, Verification
from graphopt.rewrite import LEVELS

if TYPE_CHECKING:
    from onnx import ModelProto

TARGETS = ("portable",)
"""What a result can be made for: `portable` emits standard operators only."""


@dataclass(slots=True)
class Result:
    """An optimized model and what was done to it.

    Attributes:
        graph: The optimized main graph.
        report: Passes, rewrites, sizes.
        names: What became of every name.
        verification: The verdict on the result, None if none was asked for.
    """

    graph: Graph
    report: OptimizeReport
    names: NameMap
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
    strict: bool = False,
    prepare: Callable[[Graph], None] | None = None,
    progress: Progress | None = None,
    after_pass: AfterPass | None = None,
    registry: Registry | None = None,
    **verify_options: Any,
) -> Result:
    """Optimize a model; the argument is never changed.

    Args:
        model: A path, bytes, `ModelProto`, `onnx_ir.Model` or torch `ONNXProgram`.
        level: `exact`, `default` or `fast-math`: which numeric classes of rewrites run.
        target: What the result must run on.
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
        strict: Raise where a pass fails, instead of rolling it back and going on.
        prepare: Changes the loaded graph before any pass runs.
        progress: Told the name of each pass before it runs, and the sweep.
        after_pass: Called after each pass that changed something, with its name, the sweep and the main graph.
        registry: The passes there are; default: the installed ones.
        **verify_options: See `verify`.

    Raises:
        ModelError: the model cannot be read.
        UsageError: a level, target, pass, rule or name does not exist.
        PassError: a pass failed and `strict` is set.
    """
    if level not in LEVELS:
        raise UsageError(f"there is no level '{level}'; choose one of {', '.join(LEVELS)}")
    if target not in TARGETS:
        raise UsageError(f"there is no target '{target}'; choose one of {', '.join(TARGETS)}")
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
    )
    pipeline = MetaOptimizer(registry or load_registry(load_files), chosen)
    pipeline.progress, pipeline.after_pass = progress, after_pass
    graph = load(model)
    before, size = operators(graph.model), model_bytes(graph.model)
    if prepare is not None:
        prepare(graph)
    context = Context(Inference(graph.model, trust_dim_names=trust_dim_names), options, _evaluator(graph.model))
    names = NameMap(graph.model)
    with graph.model.listening(names):
        report = pipeline.run(graph.model, context)
    report = dataclasses.replace(
        report,
        bytes_before=size,
        bytes_after=write_model(graph.model).length,
        operators_before=before,
        operators_after=operators(graph.model),
    )
    result = Result(graph, report, names)
    if verify:
        if freeze_initializers:
            verify_options.setdefault("override_defaults", False)
        result.verification = _verify_result(model, result, level, verify_options)
    return result


def _evaluator(model: Model) -> Any:
    """Computes constant nodes on ONNX Runtime, which is imported when the first node is."""
    from graphopt.runtime.folding import NodeEvaluator

    return NodeEvaluator(model)


def _verify_result(original: Any, result: Result, level: str, options: dict[str, Any]) -> Verification:
    import tempfile

    from graphopt import runtime

    with tempfile.TemporaryDirectory(prefix="graphopt-") as folder:
        path = os.path.join(folder, "optimized.onnx")
        result.save(path)
        if not isinstance(original, (str, os.PathLike)):
            source = os.path.join(folder, "original.onnx")
            save(load(original), source)
            original = source
        # Both were loaded a moment ago: straight to the runtime, without looking at them once more.
        return runtime.verify(original, path, level=level, **options)


def verify(original: str | os.PathLike[str], rewritten: str | os.PathLike[str], **options: Any) -> Verification:
    """Compare two model files on ONNX Runtime; see `graphopt.runtime.verify` for the options.

    Raises:
        ModelError: a file cannot be read.
    """
    from graphopt import runtime

    _require_model(original)
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
    """Bytes of the model as one message, its weights included wherever they lie."""
    return write_model(model).length
