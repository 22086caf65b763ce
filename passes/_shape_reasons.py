"""Why something still reads a shape at run time: sentences for the report."""

from __future__ import annotations

from graphopt import Context, Expr, Node, Value
from passes._shape_region import Need, ShapeRegion
from passes._shape_targets import spellings

_STAYS = " stays: "


def explain(region: ShapeRegion, context: Context) -> None:
    """Note for each reason the first tensor whose shape stays, and the operator that needs it."""
    groups: dict[str, list[Need]] = {}
    for need in region.needs:
        groups.setdefault(_reason(need), []).append(need)
    for reason, needs in groups.items():
        first = needs[0]
        more = f" and {len(needs) - 1} more" if len(needs) > 1 else ""
        what = f"Shape of '{_label(source)}'" if (source := _source(first.value)) is not None else "A size"
        # Of an earlier sweep, the number was another.
        context.notes[:] = [note for note in context.notes if not (_STAYS in note and note.endswith(reason))]
        context.note(f"{what}{_STAYS}{first.user.op_type} '{first.user.name or _label_of(first.user)}'{more} {reason}")


def _reason(need: Need) -> str:
    if need.user.op_type != "Reshape" or need.index != 1:
        return "needs a number that only the run knows"
    targets = [need.value.elements or (), *spellings(need.user, need.index)]
    fewest = min(sum(isinstance(item, Expr) for item in target) for target in targets)
    if fewest > 1:
        return "has several dims that only the run knows; if dims of equal names are equal, try --trust-dim-names"
    return "cannot be given -1 for its only unknown dim, since another may be 0"


def _source(value: Value) -> Value | None:
    """The tensor whose shape a value comes from, the first that is found."""
    seen: dict[Node, None] = {}
    stack = [value.producer]
    while stack:
        node = stack.pop()
        if node in seen or not node.is_operator:
            continue
        seen[node] = None
        if node.op_type in ("Shape", "Size"):
            return node.operands[0]
        stack.extend(operand.producer for operand in reversed(node.operands) if operand is not None)
    return None


def _label(value: Value) -> str:
    return value.name or f"#{value.producer.serial}"


def _label_of(node: Node) -> str:
    return next((value.name for value in node.results if value.name), f"#{node.serial}")
