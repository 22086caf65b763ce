"""Writes computations as the one standard operator that newer opsets have for them, where the user asked for an opset.

Exporters for older opsets spell normalizations and activations in parts. The result is the same function, computed in
one piece and mostly with less rounding. Never without being asked: the model would need a newer runtime. An operator
that ONNX Runtime has no kernel for, and computes by more parts than it replaces, is not written.
"""

from __future__ import annotations

from graphopt import Context, DType, Graph, Model, Node, Options, Value, graph_pass
from passes._cover import Cover, is_near, number, other, sole_user, with_number
from passes._gelus import gelu_around
from passes._normalization import LAYER_NORMALIZATION, RMS_NORMALIZATION, normalized


def is_asked(model: Model, options: Options) -> bool:
    """Only where an opset is asked for, and only when the model has it."""
    return options.opset is not None and model.graph.opsets.get("") == options.opset


def _has(graph: Graph, opset: int) -> bool:
    return graph.opsets.get("", 0) >= opset


# --- Gelu


@graph_pass(
    before="""(float[2,3] x) => (float[2,3] y) <float c = {1.4142135}, float one = {1.0}, float half = {0.5}> {
        z = Div(x, c)
        e = Erf(z)
        a = Add(e, one)
        m = Mul(x, a)
        y = Mul(m, half)
    }""",
    after="(float[2,3] x) => (float[2,3] y) { y = Gelu(x) }",
    unless=[
        """(float[2,3] x) => (float[2,3] y) <float c = {1.5}, float one = {1.0}, float half = {0.5}> {
            z = Div(x, c)  e = Erf(z)  a = Add(e, one)  m = Mul(x, a)  y = Mul(m, half)
        }""",
        """(float[2,3] x) => (float[2,3] y) <float c = {1.4142135}, float one = {1.0004}, float half = {0.5}> {
            z = Div(x, c)  e = Erf(z)  a = Add(e, one)  m = Mul(x, a)  y = Mul(m, half)
        }""",
        """(float[2,3] x, float[2,3] w) => (float[2,3] y)
           <float c = {1.4142135}, float one = {1.0}, float half = {0.5}> {
            z = Div(x, c)  e = Erf(z)  a = Add(e, one)  m = Mul(w, a)  y = Mul(m, half)
        }""",
        """(float[3] x) => (float[1,3] y) <float c = {1.4142135}, float one = {1.0}, float[1,1] half = {0.5}> {
            z = Div(x, c)  e = Erf(z)  a = Add(e, one)  m = Mul(x, a)  y = Mul(m, half)
        }""",
    ],
    numeric="R",
    opset=20,
)
def gelu(graph: Graph, context: Context) -> None:
    """Half of x times one plus the error function of x over the root of two is Gelu."""
    if _has(graph, 20):
        for node in graph.of_kind("Erf"):
            _fuse_gelu(node, context, "none")


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
    after="""(float[2,3] x) => (float[2,3] y) { y = Gelu<approximate = "tanh">(x) }""",
    unless=[
        """(float[2,3] x) => (float[2,3] y) <float three = {2.0}, float c = {0.044715}, float r = {0.7978846},
           float one = {1.0}, float half = {0.5}> {
            p = Pow(x, three)  q = Mul(p, c)  s = Add(x, q)  z = Mul(s, r)  t = Tanh(z)  a = Add(t, one)
            h = Mul(x, half)  y = Mul(h, a)
        }""",
    ],
    numeric="R",
    opset=20,
)
def gelu_tanh(graph: Graph, context: Context) -> None:
    """Its approximation by a hyperbolic tangent is Gelu's other form."""
    if _has(graph, 20):
        for node in graph.of_kind("Tanh"):
            _fuse_gelu(node, context, "tanh")


def _fuse_gelu(inner: Node, context: Context, form: str) -> None:
    found = gelu_around(inner)
    if found is not None and found[1].dtype is DType.FLOAT:  # the only type the runtime has kernels of both forms for
        cover, x = found
        approximate = None if form == "none" else form
        cover.replace(context, lambda b: b.Gelu(x, approximate=approximate))


# --- other activations


@graph_pass(
    before="""(float[2,3] x) => (float[2,3] y) <float three = {3.0}, float zero = {0.0}, float six = {6.0}> {
        a = Add(x, three)
        c = Clip(a, zero, six)
        m = Mul(x, c)
        y = Div(m, six)
    }""",
    after="(float[2,3] x) => (float[2,3] y) { y = HardSwish(x) }",
    unless=[
        """(float[2,3] x) => (float[2,3] y)
           <float three = {3.0}, float zero = {0.0}, float six = {6.0}, float seven = {7.0}> {
            a = Add(x, three)  c = Clip(a, zero, six)  m = Mul(x, c)  y = Div(m, seven)
        }""",
    ],
    numeric="R",
    opset=14,
)
def hard_swish(graph: Graph, context: Context) -> None:
    """A sixth of x times x plus three, clipped to zero and six, is HardSwish; the runtime makes two parts of it."""
    if not _has(graph, 14):
        return
    for node in graph.of_kind("Clip"):
        _fuse_clipped(node, context)
    for node in graph.of_kind("HardSigmoid"):
        is_sixth = is_near(node.param("alpha"), 1 / 6) and is_near(node.param("beta"), 0.5)
        product, x = sole_user(node.results[0], "Mul"), node.operand(0)
        if is_sixth and product is not None and x is not None and other(product, node.results[0]) is x:
            cover = Cover(product)
            cover.enter(node.results[0], "HardSigmoid")
            _put(cover, context, "HardSwish", x)


def _fuse_clipped(clip: Node, context: Context) -> None:
    cover = Cover(clip)
    plus_three = cover.enter(clip.operand(0), "Add")
    x = None if plus_three is None else with_number(plus_three, 3.0)
    if x is None or number(clip.operand(1)) != 0.0 or number(clip.operand(2)) != 6.0:
        return
    value, is_scaled, is_multiplied = clip.results[0], False, False
    path = [clip]
    while not (is_scaled and is_multiplied):
        node = sole_user(value, "Mul", "Div")
        if node is None:
            return
        if node.op_type == "Div" and node.operand(0) is value and is_near(number(node.operand(1), value), 6.0):
            is_repeated, is_scaled = is_scaled, True
        elif node.op_type == "Mul" and other(node, value) is x:
            is_repeated, is_multiplied = is_multiplied, True
        elif node.op_type == "Mul" and with_number(node, 1 / 6) is value:
            is_repeated, is_scaled = is_scaled, True
        else:
            return
        if is_repeated:
            return
        value = node.results[0]
        path.append(node)
    whole = Cover(path[-1])
    for node in (*path, clip.operands[0].producer if clip.operands[0] is not None else clip):
        whole.enter(node.results[0], node.op_type)
    _put(whole, context, "HardSwish", x)


@graph_pass(
    before="(float[2,3] x) => (float[2,3] y) { s = Softplus(x)  t = Tanh(s)  y = Mul(x, t) }",
    after="(float[2,3] x) => (float[2,3] y) { y = Mish(x) }",
    unless=["(float[2,3] x, float[2,3] w) => (float[2,3] y) { s = Softplus(x)  t = Tanh(s)  y = Mul(w, t) }"],
    numeric="U",
    opset=18,
)
def mish(graph: Graph, context: Context) -> None:
    """X times the hyperbolic tangent of its Softplus is Mish; the runtime computes that in the same three parts."""
    if not _has(graph, 18):
        return
    for node in graph.of_kind("Softplus"):
        x, tangent = node.operand(0), sole_user(node.results[0], "Tanh")
        product = None if tangent is None else sole_user(tangent.results[0], "Mul")
        if tangent is not None and product is not None and x is not None and other(product, tangent.results[0]) is x:
            cover = Cover(product)
            cover.enter(tangent.results[0], "Tanh")
            cover.enter(node.results[0], "Softplus")
            _put(cover, context, "Mish", x)


def _put(cover: Cover, context: Context, op_type: str, x: Value) -> None:
    if x.dtype is DType.FLOAT:
        cover.replace(context, lambda b: b.apply(op_type, [x]))


# --- normalizations


@graph_pass(
    before="""(float[2,5,4] x) => (float[2,5,4] y) <int64[1] a = {-1}, float two = {2.0}, float eps = {0.00001},
              float[4] w = {1.0, 0.5, 2.0, 1.5}, float[4] c = {0.0, 0.1, 0.2, 0.3}> {
        m = ReduceMean(x, a)
        d = Sub(x, m)
        p = Pow(d, two)
        v = ReduceMean(p, a)
        e = Add(v, eps)
        s = Sqrt(e)
        n = Div(d, s)
        f = Mul(n, w)
        y = Add(f, c)
    }""",
    after="""(float[2,5,4] x) => (float[2,5,4] y)
             <float[4] w = {1.0, 0.5, 2.0, 1.5}, float[4] c = {0.0, 0.1, 0.2, 0.3}> {
        y = LayerNormalization<axis = -1, epsilon = 0.00001>(x, w, c)
    }""",
    unless=[
        """(float[2,5,1] x) => (float[2,5,4] y) <int64[1] a = {-1}, float two = {2.0}, float eps = {0.00001},
           float[4] w = {1.0, 0.5, 2.0, 1.5}, float[4] c = {0.0, 0.1, 0.2, 0.3}> {
            m = ReduceMean(x, a)  d = Sub(x, m)  p = Pow(d, two)  v = ReduceMean(p, a)
            e = Add(v, eps)  s = Sqrt(e)  n = Div(d, s)  f = Mul(n, w)  y = Add(f, c)
        }""",
        # The attribute has no more than the digits of float32.
        """(double[2,5,4] x) => (double[2,5,4] y) <int64[1] a = {-1}, double two = {2.0}, double eps = {0.00001}> {
            m = ReduceMean(x, a)  d = Sub(x, m)  p = Pow(d, two)  v = ReduceMean(p, a)
            e = Add(v, eps)  s = Sqrt(e)  y = Div(d, s)
        }""",
        """(float[2,4,4] x) => (float[2,4,4] y) <int64[1] a = {1}, float two = {2.0}, float eps = {0.00001},
           float[4] w = {1.0, 0.5, 2.0, 1.5}, float[4] c = {0.0, 0.1, 0.2, 0.3}> {
            m = ReduceMean(x, a)  d = Sub(x, m)  p = Pow(d, two)  v = ReduceMean(p, a)
            e = Add(v, eps)  s = Sqrt(e)  n = Div(d, s)  f = Mul(n, w)  y = Add(f, c)
        }""",
    ],
    numeric="R",
    largest=1e12,
    opset=20,
)
def layer_normalization(graph: Graph, context: Context) -> None:
    """Subtracting the mean of the last axes and dividing by their standard deviation is LayerNormalization."""
    if _has(graph, 17):
        for node in graph.of_kind("Sqrt"):
            normalized(node, context, LAYER_NORMALIZATION)


@graph_pass(
    before="""(float[2,5,4] x) => (float[2,5,4] y) <int64[1] a = {-1}, float two = {2.0}, float eps = {0.00001},
              float[4] w = {1.0, 0.5, 2.0, 1.5}> {
        p = Pow(x, two)
        v = ReduceMean(p, a)
        e = Add(v, eps)
        s = Sqrt(e)
        r = Reciprocal(s)
        n = Mul(x, r)
        y = Mul(w, n)
    }""",
    after="""(float[2,5,4] x) => (float[2,5,4] y) <float[4] w = {1.0, 0.5, 2.0, 1.5}> {
        y = RMSNormalization<axis = -1, epsilon = 0.00001>(x, w)
    }""",
    unless=[
        """(float[2,5,4] x, float[2,5,4] z) => (float[2,5,4] y) <int64[1] a = {-1}, float two = {2.0},
           float eps = {0.00001}, float[4] w = {1.0, 0.5, 2.0, 1.5}> {
            p = Pow(x, two)  v = ReduceMean(p, a)  e = Add(v, eps)  s = Sqrt(e)  r = Reciprocal(s)
            n = Mul(z, r)  y = Mul(w, n)
        }""",
    ],
    numeric="R",
    largest=1e12,
    opset=23,
)
def rms_normalization(graph: Graph, context: Context) -> None:
    """Dividing by the root of the mean of squares of the last axes is RMSNormalization."""
    if _has(graph, 23):
        for node in graph.of_kind("Sqrt"):
            normalized(node, context, RMS_NORMALIZATION)
