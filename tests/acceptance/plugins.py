"""Models and passes planted by the tests of measured acceptance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SLOW = '''
"""Equal and slow."""
from graphopt import op, rule, var

x = var("x")


@rule(
    op.Softsign(x),
    before="(float[2] x) => (float[2] y) { y = Softsign(x) }",
    after="""(float[2] x) => (float[2] y) {
        a = Cos(x) b = Sin(a) c = Cos(b) d = Sin(c) e = Cos(d) f = Sin(e) g = Cos(f) h = Sin(g)
        two = Constant<value = float {2.0}>() one = Constant<value = float {1.0}>()
        never = Greater(h, two) s = Abs(x) t = Add(s, one) u = Div(x, t) y = Where(never, x, u)
    }""",
    numeric="U",
)
def drag(m, b):
    """A choice that is always the same, and dearly made."""
    value = m[x]
    for _ in range(ROUNDS):
        value = b.Sin(b.Cos(value))
    never = b.Greater(value, b.constant(2.0, m[x].dtype))
    quotient = b.Div(m[x], b.Add(b.Abs(m[x]), b.constant(1.0, m[x].dtype)))
    return b.Where(never, m[x], quotient)
'''
GOOD = '''

@rule(
    op.Softplus(op.Softplus(x)),
    before="(float[2] x) => (float[2] y) { t = Softplus(x)  y = Softplus(t) }",
    after="""(float[2] x) => (float[2] y) {
        e = Exp(x) two = Constant<value = float {2.0}>() s = Add(e, two) y = Log(s)
    }""",
    numeric="U",
)
def pays(m, b):
    """log(1 + exp(log(1 + exp(x)))) = log(2 + exp(x))."""
    return b.Log(b.Add(b.Exp(m[x]), b.constant(2.0, m[x].dtype)))
'''
WRONG = '''
"""Wrong."""
from graphopt import op, rule, var

x = var("x")


@rule(
    op.Elu(x),
    before="(float[2] x) => (float[2] y) { y = Elu(x) }",
    after="(float[2] x) => (float[2] y) { y = Selu(x) }",
)
def lie(m, b):
    """Not so."""
    return b.Selu(m[x])
'''
CRASH = '''
"""Crashes."""
from graphopt import op, rule, var

x = var("x")


@rule(
    op.Elu(x),
    before="(float[2] x) => (float[2] y) { y = Elu(x) }",
    after="(float[2] x) => (float[2] y) { y = Selu(x) }",
)
def crash(m, b):
    """Never gets there."""
    raise ZeroDivisionError("of my own making")
'''


def plugin(path: Path, text: str, rounds: int = 4) -> Path:
    """Write a file of passes."""
    path.write_text(text.replace("ROUNDS", str(rounds)))
    return path


def model(path: Path, operators: tuple[str, ...] = ("Softsign", "Identity", "Elu"), size: int = 4) -> Path:
    """A row of operators on one vector, with a weight added first."""
    weight = numpy_helper.from_array(np.linspace(-1, 1, size, dtype=np.float32), "w")
    nodes, last = [helper.make_node("Add", ["x", "w"], ["v"], name="add")], "v"
    for index, name in enumerate(operators):
        nodes.append(helper.make_node(name, [last], [f"v{index}"], name=f"{name.lower()}{index}"))
        last = f"v{index}"
    nodes.append(helper.make_node("Mul", [last, "w"], ["y"], name="mul"))
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size]) for name in "xy"]
    graph = helper.make_graph(nodes, "row", info[:1], info[1:], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
    return path


def operators(path: object) -> list[str]:
    """Operators of a file, in order."""
    return [node.op_type for node in onnx.load(path).graph.node]
