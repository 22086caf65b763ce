"""Converts the model to the opset the user asked for, up or down, or says which node stands in the way.

Every node of the standard domain is written as the other opset spells it, in the main graph, in bodies and in local
functions. Where an operator's meaning changed under its name, nodes keep theirs, by other parameters or a few operators
around them. Nothing is converted unless everything is. A later sweep tries again: an axis that is computed today may be
a constant after the next round of folding.
"""

from __future__ import annotations

from graphopt import Context, Graph, Model, Node, Options, Tensor, Value, graph_pass, schema
from passes._opset_changes import converted
from passes._opset_spelling import Item, Refusal, Spelling
from passes._replacing import replace_node

_OLDEST = 7
_TRAINING_INFO = 20
_REFERENCES = {
    1: "value_float",
    2: "value_int",
    3: "value_string",
    6: "value_floats",
    7: "value_ints",
    8: "value_strings",
}
"""The attribute of `Constant` that holds a value of a kind of attribute."""
_OTHER_BITS = {"AveragePool": 19}
"""Operators that ONNX Runtime has another kernel for from an opset on, which adds in another order."""


def is_asked(model: Model, options: Options) -> bool:
    """Only where an opset is asked for that the model does not have."""
    return options.opset is not None and any(
        graph.opsets.get("", options.opset) != options.opset for graph in _roots(model)
    )


@graph_pass(
    before="""(float[2,3,4] x) => (float[2,4] y) {
        s = ReduceSum<axes = [1], keepdims = 0>(x)
        y = Softmax<axis = 1>(s)
    }""",
    after="""(float[2,3,4] x) => (float[2,4] y) {
        a = Constant<value = int64[1] {1}>()
        s = ReduceSum<keepdims = 0>(x, a)
        y = Softmax<axis = 1>(s)
    }""",
    unless=[
        """(float[1,1,2,2] x) => (float[1,1,4,4] y) <float[0] r = {}, float[4] s = {1.0, 1.0, 2.0, 2.0}> {
            y = Resize<coordinate_transformation_mode = "tf_half_pixel_for_nn">(x, r, s)
        }""",
    ],
    opset=11,
    options={"opset": 13},
    whole_model=True,
)
def convert(graph: Graph, context: Context) -> None:
    """Every node is written as the opset asked for spells it, with the meaning it has."""
    target, model = context.options.opset, graph.model
    if target is None or not is_asked(model, context.options):
        return
    try:
        plans = _plans(model, target, is_exact=context.options.level == "exact")
    except Refusal as refusal:
        context.take_back(str(refusal))
    with context.rewrite(graph):
        for root in _roots(model):
            if "" in root.opsets:
                root.set_opset("", target)
        replaced: dict[Value, Value] = {}
        for plan in plans:
            _carry_out(plan, context, replaced)
            if plan.remark:
                context.note(plan.remark)
        if target < 12:
            for scope in model.graphs():
                _spell_constants(scope)
        _raise_ir_version(model, target)


def _roots(model: Model) -> list[Graph]:
    return [*(function.graph for function in model.functions.values()), model.graph]


# --- planning: nothing is edited


def _plans(model: Model, target: int, *, is_exact: bool) -> list[Spelling]:
    """How every node that changes is written.

    Raises:
        Refusal: one cannot be; the text names it.
    """
    if any(number == _TRAINING_INFO for number, _ in model.details.get("fields", [])):
        raise Refusal("it holds training information, which is not converted; take that out first")
    plans = []
    for root in _roots(model):
        source = root.opsets.get("", target)
        if source < _OLDEST:
            raise Refusal(f"opset {source} is older than {_OLDEST}; convert it with onnx.version_converter first")
        for scope in (*root.bodies_inside(), root):
            for node in scope.order():
                if node.domain != "":
                    continue
                plan = _plan(node, source, target, is_exact=is_exact)
                if plan is not None:
                    plans.append(plan)
            _refuse_sparse(scope, target)
    return plans


def _plan(node: Node, source: int, target: int, *, is_exact: bool) -> Spelling | None:
    try:
        least = _OTHER_BITS.get(node.op_type)
        if is_exact and least is not None and min(source, target) < least <= max(source, target):
            raise Refusal(f"runtimes round otherwise in it from opset {least} on")
        plan = converted(node, source, target)
        if plan is not None and plan.expansion is not None and node.is_pinned:
            raise Refusal("it is kept by name, and takes other operators there")
    except Refusal as refusal:
        name = node.name or next((value.name for value in node.results if value.name), "")
        raise Refusal(f"{node.op_type} '{name}': {refusal}") from None
    return plan


def _refuse_sparse(scope: Graph, target: int) -> None:
    if target < 11 and any(node.tensor is None for node in scope.constants()):
        raise Refusal("it holds sparse constants, which there are none of before opset 11")


# --- carrying out


def _carry_out(plan: Spelling, context: Context, replaced: dict[Value, Value]) -> None:
    """Write one node as planned; plans know values as they were before `replaced` took their place."""
    node = plan.node
    graph = node.graph
    assert graph is not None
    operands = [
        _value(replaced.get(item, item) if isinstance(item, Value) else item, node, graph) for item in plan.operands
    ]
    if plan.expansion is not None:
        builder = context.builder(graph)
        built = plan.expansion(builder, operands)
        values = built if isinstance(built, tuple) else (built,)
        replaced.update(zip(node.results, values, strict=False))
        replace_node(graph, node, values, builder)
    elif plan.op_type != node.op_type:
        renamed = graph.make_node(
            plan.op_type, operands, results=len(node.results), attributes=plan.attributes, name=node.name
        )
        for old, new in zip(node.results, renamed.results, strict=True):
            new.type = old.type
        graph.insert(renamed, rank=node.rank)
        replaced.update(zip(node.results, renamed.results, strict=True))
        replace_node(graph, node, renamed.results)
    else:
        for name in [name for name in node.attributes if name not in plan.attributes]:
            graph.set_attribute(node, name, None)
        for name, value in plan.attributes.items():
            graph.set_attribute(node, name, value)
        graph.set_operands(node, operands)


def _value(item: Item, node: Node, graph: Graph) -> Value | None:
    """An operand in the graph; a constant is made."""
    if item is None or isinstance(item, Value):
        return item
    if isinstance(item, Tensor):
        source = graph.make_constant(item)
    else:
        source = graph.make_node("Constant", attributes={_REFERENCES[item.kind]: item})
    graph.insert(source, rank=node.rank)
    return source.results[0]


def _spell_constants(scope: Graph) -> None:
    """Before opset 12 a `Constant` holds a tensor and nothing else."""
    for node in scope.constants():
        if node.stored_as_node and node.tensor is not None and node.origin is not None:
            fresh = scope.make_constant(node.tensor)
            fresh.name = node.name
            scope.insert(fresh, rank=node.rank)
            scope.store_as_node(fresh, True)
            replace_node(scope, node, fresh.results)


def _raise_ir_version(model: Model, target: int) -> None:
    needed = schema.min_ir_version(target)
    if model.ir_version >= needed:
        return
    if model.ir_version < 4:
        # There, an initializer listed as an input is a constant; from 4 on a caller could override it.
        model.graph.set_detail("listed_inputs", None)
    model.set_ir_version(needed)
