"""Writes normalizations that come in parts as the one operator ONNX Runtime has a kernel for.

It has both of them in the standard domain at every opset: LayerNormalization also before ONNX itself has it, and
RMSNormalization, which ONNX has from opset 23 on, before that as SimplifiedLayerNormalization. ONNX's own checker does
not know these two names there; the runtime loads them.
"""

from __future__ import annotations

from graphopt import Context, DType, Graph, graph_pass
from passes._normalization import Wanted, normalized
from passes.fusion import RUNTIME

TARGETS = RUNTIME

_DTYPES = (DType.FLOAT, DType.FLOAT16, DType.BFLOAT16, DType.DOUBLE)


@graph_pass(
    before="""(float[2,5,4] x) => (float[2,5,4] y) <float two = {2.0}, float eps = {0.00001},
              float[4] w = {1.0, 0.5, 2.0, 1.5}, float[4] c = {0.0, 0.1, 0.2, 0.3}> {
        m = ReduceMean<axes = [-1]>(x)
        d = Sub(x, m)
        p = Pow(d, two)
        v = ReduceMean<axes = [-1]>(p)
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
        """(float[2,5,1] x) => (float[2,5,4] y) <float two = {2.0}, float eps = {0.00001},
           float[4] w = {1.0, 0.5, 2.0, 1.5}, float[4] c = {0.0, 0.1, 0.2, 0.3}> {
            m = ReduceMean<axes = [-1]>(x)  d = Sub(x, m)  p = Pow(d, two)  v = ReduceMean<axes = [-1]>(p)
            e = Add(v, eps)  s = Sqrt(e)  n = Div(d, s)  f = Mul(n, w)  y = Add(f, c)
        }""",
        # Another axis than the last.
        """(float[2,4,4] x) => (float[2,4,4] y) <float two = {2.0}, float eps = {0.00001},
           float[4] w = {1.0, 0.5, 2.0, 1.5}, float[4] c = {0.0, 0.1, 0.2, 0.3}> {
            m = ReduceMean<axes = [1]>(x)  d = Sub(x, m)  p = Pow(d, two)  v = ReduceMean<axes = [1]>(p)
            e = Add(v, eps)  s = Sqrt(e)  n = Div(d, s)  f = Mul(n, w)  y = Add(f, c)
        }""",
        # The number added to the variance is not known before the model runs.
        """(float[2,5,4] x, float eps) => (float[2,5,4] y) <float two = {2.0}> {
            m = ReduceMean<axes = [-1]>(x)  d = Sub(x, m)  p = Pow(d, two)  v = ReduceMean<axes = [-1]>(p)
            e = Add(v, eps)  s = Sqrt(e)  y = Div(d, s)
        }""",
        # The variance is a result.
        """(float[2,5,4] x) => (float[2,5,4] y, float[2,5,1] v) <float two = {2.0}, float eps = {0.00001}> {
            m = ReduceMean<axes = [-1]>(x)  d = Sub(x, m)  p = Pow(d, two)  v = ReduceMean<axes = [-1]>(p)
            e = Add(v, eps)  s = Sqrt(e)  y = Div(d, s)
        }""",
        # Something random in between.
        """(float[2,5,4] x) => (float[2,5,4] y) <float two = {2.0}, float eps = {0.00001}, float share = {0.5},
           bool yes = {1}> {
            m = ReduceMean<axes = [-1]>(x)  d = Sub(x, m)  r = Dropout(d, share, yes)  p = Pow(r, two)
            v = ReduceMean<axes = [-1]>(p)  e = Add(v, eps)  s = Sqrt(e)  y = Div(d, s)
        }""",
        # One number added to each variance.
        """(float[2,5,4] x) => (float[2,5,4] y) <float two = {2.0}, float[5,1] eps = {1,2,3,4,5}> {
            m = ReduceMean<axes = [-1]>(x)  d = Sub(x, m)  p = Pow(d, two)  v = ReduceMean<axes = [-1]>(p)
            e = Add(v, eps)  s = Sqrt(e)  y = Div(d, s)
        }""",
    ],
    numeric="R",
    largest=1e12,
    opset=13,
)
def layer_normalization(graph: Graph, context: Context) -> None:
    """Subtracting the mean of the last axes and dividing by their standard deviation is LayerNormalization."""
    _normalize(graph, context, "LayerNormalization", is_centred=True)


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
        y = SimplifiedLayerNormalization<axis = -1, epsilon = 0.00001>(x, w)
    }""",
    unless=[
        """(float[2,5,4] x, float[2,5,4] z) => (float[2,5,4] y) <int64[1] a = {-1}, float two = {2.0},
           float eps = {0.00001}, float[4] w = {1.0, 0.5, 2.0, 1.5}> {
            p = Pow(x, two)  v = ReduceMean(p, a)  e = Add(v, eps)  s = Sqrt(e)  r = Reciprocal(s)
            n = Mul(z, r)  y = Mul(w, n)
        }""",
        # Not the square.
        """(float[2,5,4] x) => (float[2,5,4] y) <int64[1] a = {-1}, float four = {4.0}, float eps = {0.00001}> {
            p = Pow(x, four)  v = ReduceMean(p, a)  e = Add(v, eps)  s = Sqrt(e)  y = Div(x, s)
        }""",
        # The root is a result.
        """(float[2,5,4] x) => (float[2,5,4] y, float[2,5,1] s) <int64[1] a = {-1}, float two = {2.0},
           float eps = {0.00001}> {
            p = Pow(x, two)  v = ReduceMean(p, a)  e = Add(v, eps)  s = Sqrt(e)  y = Div(x, s)
        }""",
        # Another axis than the last, and something random in between.
        """(float[2,4,4] x) => (float[2,4,4] y) <int64[1] a = {1}, float two = {2.0}, float eps = {0.00001}> {
            p = Pow(x, two)  v = ReduceMean(p, a)  e = Add(v, eps)  s = Sqrt(e)  y = Div(x, s)
        }""",
        """(float[2,5,4] x) => (float[2,5,4] y) <int64[1] a = {-1}, float two = {2.0}, float eps = {0.00001},
           float share = {0.5}, bool yes = {1}> {
            p = Pow(x, two)  v = ReduceMean(p, a)  d = Dropout(v, share, yes)  e = Add(d, eps)  s = Sqrt(e)
            y = Div(x, s)
        }""",
    ],
    numeric="R",
    largest=1e12,
    opset=18,
)
def rms_normalization(graph: Graph, context: Context) -> None:
    """Dividing by the root of the mean of squares of the last axes is RMSNormalization, under either name."""
    name = "RMSNormalization" if graph.opsets.get("", 0) >= 23 else "SimplifiedLayerNormalization"
    _normalize(graph, context, name, is_centred=False)


def _normalize(graph: Graph, context: Context, name: str, *, is_centred: bool) -> None:
    dtypes = [dtype for dtype in _DTYPES if context.target.runs(name, dtype, "")]
    wanted = Wanted(name, is_centred, dtypes, asks_for_scale=False)
    for node in [*graph.of_kind("Sqrt"), *graph.of_kind("Pow")]:
        reason = normalized(node, context, wanted) if node.graph is graph else ""
        if reason:
            context.note(f"a normalization stays in parts: {reason}")
