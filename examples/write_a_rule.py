"""A rule of one's own, written, tested and put to work."""

from __future__ import annotations

import sys
import types

import onnx

from graphopt import Builder, Match, Value, load, op, optimize, rule, to_proto, var
from graphopt.pipeline import Registry
from graphopt.pipeline.passes import Pass

x = var("x")


@rule(
    op.Neg(op.Neg(x)),
    before="(float[2,3] x) => (float[2,3] y) { n = Neg(x)  y = Neg(n) }",
    after="(float[2,3] x) => (float[2,3] y) { y = Identity(x) }",
    unless=["(float[2] x) => (float[2] y) { n = Abs(x)  y = Neg(n) }"],
)
def cancel(m: Match, b: Builder) -> Value:
    """The negation of a negation is the operand."""
    return m[x]


def main() -> None:
    """Optimize a small model with nothing but that rule."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 20]> g (float[N] x) => (float[N] y) { a = Neg(x) b = Neg(a) y = Exp(b) }'
    )
    own = Pass("double_negation", "Two negations cancel.", (cancel,), types.ModuleType("double_negation"))
    result = optimize(model, registry=Registry([own]))
    print("before:", [node.op_type for node in load(model).nodes()])
    print("after: ", [node.op_type for node in to_proto(result.graph).graph.node])
    print("rules: ", result.report.rewrites_by_rule)


if __name__ == "__main__":
    sys.exit(main())
