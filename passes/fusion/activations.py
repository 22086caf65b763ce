"""Writes activations as the operators of ONNX Runtime that compute them in one kernel."""

from __future__ import annotations

import math

import numpy as np

from graphopt import Builder, Context, DType, Graph, Match, Miss, Node, Value, const, graph_pass, op, rule, var
from passes._gelus import gelu_around
from passes._proofs import type_name
from passes.fusion import RUNTIME

TARGETS = RUNTIME

x = var("x")
alpha = const("alpha")


@graph_pass(
    before="""(float[2,3] x) => (float[2,3] y) <float c = {1.4142135}, float one = {1.0}, float half = {0.5}> {
        z = Div(x, c)
        e = Erf(z)
        a = Add(e, one)
        m = Mul(x, a)
        y = Mul(m, half)
    }""",
    after="(float[2,3] x) => (float[2,3] y) { y = com.microsoft.Gelu(x) }",
    unless=[
        """(float[2,3] x) => (float[2,3] y) <float c = {1.5}, float one = {1.0}, float half = {0.5}> {
            z = Div(x, c)  e = Erf(z)  a = Add(e, one)  m = Mul(x, a)  y = Mul(m, half)
        }""",
        """(float[2,3] x, float[2,3] w) => (float[2,3] y)
           <float c = {1.4142135}, float one = {1.0}, float half = {0.5}> {
            z = Div(x, c)  e = Erf(z)  a = Add(e, one)  m = Mul(w, a)  y = Mul(m, half)
        }""",
        """(float[3] x) => (float[1,3] y) <float c = {1.4142135}, float one = {1.0}, float[1,1] half = {0.5}> {
            z = Div(x, c)  e = Erf(z)  a = Add(e, one)  m = Mul(x, a)  y = Mul(m, half)
        }""",
        """(float[2,3] x) => (float[2,3] y, float[2,3] e)
           <float c = {1.4142135}, float one = {1.0}, float half = {0.5}> {
            z = Div(x, c)  e = Erf(z)  a = Add(e, one)  m = Mul(x, a)  y = Mul(m, half)
        }""",
        # There is no kernel for double.
        """(double[2,3] x) => (double[2,3] y) <double c = {1.4142135}, double one = {1.0}, double half = {0.5}> {
            z = Div(x, c)  e = Erf(z)  a = Add(e, one)  m = Mul(x, a)  y = Mul(m, half)
        }""",
        # Something random in between.
        """(float[2,3] x) => (float[2,3] y) <float c = {1.4142135}, float one = {1.0}, float half = {0.5},
           float share = {0.5}, bool yes = {1}> {
            z = Div(x, c)  e = Erf(z)  d = Dropout(e, share, yes)  a = Add(d, one)  m = Mul(x, a)  y = Mul(m, half)
        }""",
    ],
    numeric="R",
    opset=17,
)
def gelu(graph: Graph, context: Context) -> None:
    """Half of x times one plus the error function of x over the root of two is Gelu."""
    is_standard = graph.opsets.get("", 0) >= 20 and context.target.runs("Gelu", DType.FLOAT, "")
    for node in graph.of_kind("Erf"):
        _fuse_gelu(node, context, "Gelu", "" if is_standard else "com.microsoft")


@graph_pass(
    before="""(float[2,3] x) => (float[2,3] y) <float three = {3.0}, float c = {0.044715}, float r = {0.7978846},
              float one = {1.0}, float half = {0.5}> {
        p = Pow(x, three)
        q = Mul(p, c)
        s = Add(x, q)
        z = Mul(s, r)
        t = Tanh(z)
        a = Add(t, one)
        h = Mul(x, half)
        y = Mul(h, a)
    }""",
    after="(float[2,3] x) => (float[2,3] y) { y = com.microsoft.FastGelu(x) }",
    unless=[
        """(float[2,3] x) => (float[2,3] y) <float three = {2.0}, float c = {0.044715}, float r = {0.7978846},
           float one = {1.0}, float half = {0.5}> {
            p = Pow(x, three)  q = Mul(p, c)  s = Add(x, q)  z = Mul(s, r)  t = Tanh(z)  a = Add(t, one)
            h = Mul(x, half)  y = Mul(h, a)
        }""",
        """(float[2,3] x) => (float[2,3] y, float[2,3] p) <float three = {3.0}, float c = {0.044715},
           float r = {0.7978846}, float one = {1.0}, float half = {0.5}> {
            p = Pow(x, three)  q = Mul(p, c)  s = Add(x, q)  z = Mul(s, r)  t = Tanh(z)  a = Add(t, one)
            h = Mul(x, half)  y = Mul(h, a)
        }""",
        # The kernel for double is no more exact than that for float.
        """(double[2,3] x) => (double[2,3] y) <double three = {3.0}, double c = {0.044715},
           double r = {0.7978845608028654}, double one = {1.0}, double half = {0.5}> {
            p = Pow(x, three)  q = Mul(p, c)  s = Add(x, q)  z = Mul(s, r)  t = Tanh(z)  a = Add(t, one)
            h = Mul(x, half)  y = Mul(h, a)
        }""",
        # Something random in between.
        """(float[2,3] x) => (float[2,3] y) <float three = {3.0}, float c = {0.044715}, float r = {0.7978846},
           float one = {1.0}, float half = {0.5}, float share = {0.5}, bool yes = {1}> {
            p = Pow(x, three)  q = Mul(p, c)  s = Add(x, q)  z = Mul(s, r)  t = Tanh(z)  d = Dropout(t, share, yes)
            a = Add(d, one)  h = Mul(x, half)  y = Mul(h, a)
        }""",
        # The kernel wants an axis.
        """(float x) => (float y) <float three = {3.0}, float c = {0.044715}, float r = {0.7978846},
           float one = {1.0}, float half = {0.5}> {
            p = Pow(x, three)  q = Mul(p, c)  s = Add(x, q)  z = Mul(s, r)  t = Tanh(z)  a = Add(t, one)
            h = Mul(x, half)  y = Mul(h, a)
        }""",
    ],
    numeric="R",
    opset=17,
)
def fast_gelu(graph: Graph, context: Context) -> None:
    """The approximation of Gelu by a hyperbolic tangent is FastGelu."""
    for node in graph.of_kind("Tanh"):
        _fuse_gelu(node, context, "FastGelu", "com.microsoft")


def _fuse_gelu(inner: Node, context: Context, op_type: str, domain: str) -> None:
    found = gelu_around(inner)
    if found is None:
        return
    cover, of = found
    if not context.target.runs(op_type, of.dtype, domain):
        kernel = f"kernel of {op_type} for {type_name(of.dtype)}"
        context.note(f"a Gelu stays in parts: {context.target.name} has no {kernel}")
    elif op_type == "FastGelu" and of.dtype is DType.DOUBLE:
        context.note("a Gelu stays in parts: the kernel of FastGelu for double is no more exact than that for float")
    elif op_type == "FastGelu" and not of.rank:
        context.note("a Gelu stays in parts: the kernel of FastGelu takes no single number")
    elif not cover.replace(context, lambda b: b.apply(op_type, [of], domain=domain)):
        context.note("a Gelu stays in parts: a part of it is read elsewhere, or kept")


@rule(
    op.Mul(x, op.Sigmoid(op.Mul(x, alpha))),
    before="(float[2,3] x) => (float[2,3] y) <float c = {1.702}> { z = Mul(x, c)  s = Sigmoid(z)  y = Mul(x, s) }",
    after="(float[2,3] x) => (float[2,3] y) { y = com.microsoft.QuickGelu<alpha = 1.702>(x) }",
    unless=[
        """(float[2,3] x, float[2,3] w) => (float[2,3] y) <float c = {1.702}>
           { z = Mul(w, c)  s = Sigmoid(z)  y = Mul(x, s) }""",
        "(float[3] x) => (float[1,3] y) <float[1,1] c = {1.702}> { z = Mul(x, c)  s = Sigmoid(z)  y = Mul(x, s) }",
        # One factor for each element; the sigmoid is a result.
        "(float[2] x) => (float[2] y) <float[2] c = {1.702, 1.5}> { z = Mul(x, c)  s = Sigmoid(z)  y = Mul(x, s) }",
        "(float[3] x) => (float[3] y, float[3] s) <float c = {1.702}> { z = Mul(x, c)  s = Sigmoid(z)  y = Mul(x, s) }",
        # The attribute has no more than the digits of float32.
        "(double[3] x) => (double[3] y) <double c = {1.702}> { z = Mul(x, c)  s = Sigmoid(z)  y = Mul(x, s) }",
    ],
    numeric="R",
)
def quick_gelu(m: Match, b: Builder) -> Value | Miss:
    """A value times the sigmoid of a multiple of it is QuickGelu."""
    value, factor = m[x], m[alpha]
    if factor.const is None or factor.const.size != 1 or (factor.rank or 0) > (value.rank or 0):
        return b.no("the factor is not one number")
    number = float(factor.const.scalar())
    if not math.isfinite(number) or (value.dtype is DType.DOUBLE and float(np.float32(number)) != number):
        return b.no("the factor does not fit into an attribute")
    return _quick_gelu(b, value, number)


@rule(
    op.Mul(x, op.Sigmoid(x)),
    before="(float[2,3] x) => (float[2,3] y) { s = Sigmoid(x)  y = Mul(x, s) }",
    after="(float[2,3] x) => (float[2,3] y) { y = com.microsoft.QuickGelu<alpha = 1.0>(x) }",
    unless=[
        "(float[2,3] x, float[2,3] w) => (float[2,3] y) { s = Sigmoid(x)  y = Mul(w, s) }",
        "(float[2,3] x) => (float[2,3] y, float[2,3] s) { s = Sigmoid(x)  y = Mul(x, s) }",
        # What is multiplied is a part of the sigmoid's operand, stretched; something random in between.
        "(float[2,3] x, float[1,3] w) => (float[2,3] y) { s = Sigmoid(w)  y = Mul(x, s) }",
        """(float[2,3] x) => (float[2,3] y) <float share = {0.5}, bool yes = {1}>
           { s = Sigmoid(x)  d = Dropout(s, share, yes)  y = Mul(x, d) }""",
        "(bfloat16[3] x) => (bfloat16[3] y) { s = Sigmoid(x)  y = Mul(x, s) }",
    ],
    numeric="R",
)
def silu(m: Match, b: Builder) -> Value | Miss:
    """A value times its sigmoid is QuickGelu with a factor of one."""
    return _quick_gelu(b, m[x], 1.0)


def _quick_gelu(b: Builder, value: Value, factor: float) -> Value | Miss:
    if not b.target.runs("QuickGelu", value.dtype):
        return b.no(f"{b.target.name} has no kernel of QuickGelu for {type_name(value.dtype)}")
    fused: Value = b.microsoft.QuickGelu(value, alpha=factor)
    return fused
