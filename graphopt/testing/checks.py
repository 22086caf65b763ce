"""Running one rule over its examples and their variants, and judging what comes out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onnx import ModelProto, checker

from graphopt import schema
from graphopt.analysis.inference import Inference
from graphopt.errors import ExecutionError, GraphoptError, ProviderMissingError
from graphopt.ir import Graph
from graphopt.onnxio import load, parse_text, to_proto
from graphopt.pipeline import Context, MetaOptimizer, Options, Pass, Registry, Selection
from graphopt.pipeline.passes import Item
from graphopt.rewrite import NumericClass, Rule
from graphopt.targets import MICROSOFT, target_named
from graphopt.testing.feeds import feeds_of
from graphopt.testing.structure import same_structure
from graphopt.testing.variants import variants

_NEWEST_TESTED = 21
"""Examples are read at this opset unless the rule's range ends before or begins after it."""
_SIZES = (2, 1, 0, 3)
EXAMPLE = "the example"
"""The name of the test of the plain example."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """How one generated test ended.

    Attributes:
        name: What was tested.
        ok: Nothing was found wrong.
        reason: What was found wrong.
        fired: The rule fired.
        not_judged: Why the numbers of the result were compared with nothing; empty where they were, or need not be.
        left_out: Why nothing empty was fed, though dims are free; empty where it was.
    """

    name: str
    ok: bool
    reason: str = ""
    fired: bool = False
    not_judged: str = ""
    left_out: str = ""


def opset_of(item: Item) -> int:
    """The opset an item's examples are written for."""
    if item.examples.opset is not None:
        return item.examples.opset
    first, last = item.opsets if isinstance(item, Rule) else (1, None)
    return max(first, min(_NEWEST_TESTED, last or _NEWEST_TESTED))


def example_model(item: Item, text: str, opset: int | None = None) -> ModelProto:
    """The model of an example, of the opset its item says if none is given.

    Raises:
        RuleError: the text does not parse.
    """
    opset = min(opset or opset_of(item), schema.latest_opset())
    return parse_text(text, {"": opset, "com.microsoft": 1, "ai.onnx.ml": 3, "local": 1, "test": 1})


def check_item(owner: Pass, item: Item) -> Iterator[CheckReport]:
    """Every generated test of one rule or graph pass.

    Yields:
        A report for each test: the plain example, each `unless`, each variant.
    """
    yield _check_plain(owner, item)
    yield _check_summary(item)
    for number, text in enumerate(item.examples.unless, 1):
        yield _check_unless(owner, item, f"unless {number}", example_model(item, text))
    example = example_model(item, item.examples.before)
    for name, variant in variants(example):
        yield check_variant(owner, item, name, variant)


def apply(owner: Pass, item: Item, model: ModelProto, *, level: str = "fast-math") -> tuple[Graph, int]:
    """Run one item alone over a model, to its fixed point.

    Returns:
        The graph and how many rewrites were made.
    """
    alone = Pass(owner.name, owner.summary, (item,), owner.module, targets=owner.targets)
    graph = load(model)
    asked = {"level": level, "target": owner.targets[0] if owner.targets else "portable"} | item.examples.options
    aggressive = (owner.name,) if asked.pop("aggressive", False) else ()
    context = Context(Inference(graph.model), Options(**asked), _evaluator(graph))
    report = MetaOptimizer(Registry([alone]), Selection(strict=True, aggressive=aggressive)).run(graph.model, context)
    return graph, len(report.rewrites)


def _evaluator(graph: Graph):  # type: ignore[no-untyped-def]  # the runtime is imported on first use
    from graphopt.runtime.folding import NodeEvaluator

    return NodeEvaluator(graph.model)


def _check_plain(owner: Pass, item: Item) -> CheckReport:
    name, not_judged = EXAMPLE, ""
    try:
        before = example_model(item, item.examples.before)
        checker.check_model(before, full_check=True)
        graph, fired = apply(owner, item, before)
        if not fired:
            return CheckReport(name, False, "the rule does not fire on its own example")
        after = load(example_model(item, item.examples.after, item.examples.options.get("opset")))
        if not same_structure(load(to_proto(graph)), after):  # as written, with the Identity ONNX may demand
            return CheckReport(name, False, f"the result is not `after` but:\n{_text(graph)}", True)
        if item.numeric is not NumericClass.DOMAIN:
            verdict = _judged(owner, item, before, to_proto(graph), {})
            if verdict.wrong:
                return CheckReport(name, False, verdict.wrong, True)
            not_judged = verdict.not_judged
        _, again = apply(owner, item, to_proto(graph))
    except GraphoptError as error:
        return CheckReport(name, False, str(error))
    if again:
        return CheckReport(name, False, "running it on its own result changes that again", True)
    return CheckReport(name, True, fired=True, not_judged=not_judged)


def _check_summary(item: Item) -> CheckReport:
    is_sentence = item.summary.endswith(".") and len(item.summary) < 121
    return CheckReport("its documentation", is_sentence, "" if is_sentence else "the first line is not one sentence")


def _check_unless(owner: Pass, item: Item, name: str, model: ModelProto) -> CheckReport:
    try:
        _, fired = apply(owner, item, model)
    except GraphoptError as error:
        return CheckReport(name, False, str(error))
    return CheckReport(
        name, fired == 0, "the rule fires on an example it should leave alone" if fired else "", fired > 0
    )


def check_variant(owner: Pass, item: Item, name: str, model: ModelProto) -> CheckReport:
    """Whether the rule is right, or leaves it alone, on a disturbed example."""
    try:
        checker.check_model(model, full_check=False)
    except checker.ValidationError:
        return CheckReport(name, True, "no valid model")  # disturbing it broke it: nothing to learn
    try:
        graph, fired = apply(owner, item, model)
        result = to_proto(graph)
    except GraphoptError as error:
        return CheckReport(name, False, str(error))
    try:
        checker.check_model(_as_checked(owner, result), full_check=False)
    except checker.ValidationError as error:
        return CheckReport(name, False, f"the result is not valid: {error}\n{_text(graph)}", fired > 0)
    is_symbolic = name.startswith("symbolic dims")
    not_judged = ""
    left_out = _why_nothing_empty(owner, item, model) if is_symbolic else ""
    for size in _SIZES if is_symbolic else (2,):
        if left_out and not size:
            continue
        sizes = _free_dims(model, size)
        verdict = _judged(owner, item, model, result, sizes)
        if verdict.wrong:
            return CheckReport(name, False, f"{verdict.wrong} (free dims {size})\n{_text(graph)}", fired > 0)
        not_judged = not_judged or verdict.not_judged
    return CheckReport(name, True, fired=fired > 0, not_judged=not_judged if fired else "", left_out=left_out)


def _why_nothing_empty(owner: Pass, item: Item, model: ModelProto) -> str:
    """Why a model may not be fed empty tensors: kernels of another provider alone may end this process.

    They divide by an empty dim, which is a signal and no error. A rule says that its operators fail there by having an
    aggressive form; an example that has such operators itself gives nothing there that could be compared.
    """
    provider = _provider(owner)
    if provider == "cpu":
        return ""
    if item.examples.options.get("aggressive"):
        return "fed nothing empty: the aggressive form is for models that get none"
    kernels = target_named("ort-cpu").kernels
    strange = {
        node.op_type for graph in load(model).model.graphs() for node in graph.nodes() if node.domain == MICROSOFT
    }
    alone = sorted(name for name in strange if f"{MICROSOFT}::{name}" not in kernels)
    return f"fed nothing empty: {', '.join(alone)} of the example fails there on {provider}" if alone else ""


def _as_checked(owner: Pass, model: ModelProto) -> ModelProto:
    """The model as ONNX's checker can read it: without what only the runtime has in the standard domain."""
    if not owner.targets:
        return model
    kernels = target_named(owner.targets[0]).kernels
    opset = next((item.version for item in model.opset_import if item.domain == ""), 0)
    graph = load(model)
    for scope in graph.model.graphs():
        for node in scope.nodes():
            is_strange = node.domain == "" and schema.operator("", node.op_type, opset) is None
            if is_strange and f"::{node.op_type}" in kernels:
                for value in node.results:
                    stand_in = scope.make_node("Identity", [node.operands[0]])
                    scope.insert(stand_in)
                    scope.replace_uses(value, stand_in.results[0])
                scope.erase(node)
    return to_proto(graph)


def _free_dims(model: ModelProto, size: int) -> dict[str, int]:
    return {
        dim.dim_param: size
        for info in model.graph.input
        for dim in info.type.tensor_type.shape.dim
        if dim.HasField("dim_param")
    }


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What is wrong with a result, or why nobody knows; both empty if it is right."""

    wrong: str = ""
    not_judged: str = ""


def _judged(owner: Pass, item: Item, before: ModelProto, after: ModelProto, sizes: dict[str, int]) -> _Verdict:
    """Compare a result with its original on the provider that the pass is for."""
    from graphopt.runtime import judge

    provider = _provider(owner)
    try:
        verdict = judge(
            before.SerializeToString(),
            after.SerializeToString(),
            item.numeric.value,
            feeds_of(before, sizes, item.examples.largest),
            ulp=item.ulp,
            provider=provider,
        )
    except ProviderMissingError:
        return _Verdict(not_judged=f"its operators are those of {provider}, which does not start here")
    except ExecutionError as error:
        return _Verdict(not_judged=f"the original does not load: {error}")
    return _Verdict("" if verdict.ok else verdict.reason)


def _provider(owner: Pass) -> str:
    """Where the operators of a pass are found: on the CPU unless it is for other targets only."""
    providers = [target.removeprefix("ort-") for target in owner.targets if target.startswith("ort-")]
    runs_elsewhere_only = len(providers) == len(owner.targets) > 0 and "cpu" not in providers
    return providers[0] if runs_elsewhere_only else "cpu"


def _text(graph: Graph) -> str:
    from onnx import printer

    return str(printer.to_text(to_proto(graph).graph))
