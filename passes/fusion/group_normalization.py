"""Writes group normalization, and the SiLU behind it, as the one kernel that ONNX Runtime has for it on CUDA.

The kernel wants channels last. Between two Transposes it is still the faster form, and it is twice as fast where the
convolutions around it want channels last, too (the provider's option `prefer_nhwc`). It takes the variance as the mean
of squares less the square of the mean: a group whose values differ little from one another and lie far from 0 loses it,
down to NaN, so that it is of class D. It fails where a dim is 0: where that may be, it is written in the aggressive
mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from graphopt import Builder, Context, DType, Graph, Node, Tensor, Value, graph_pass, is_uniform
from passes._cover import Cover, sole_user
from passes._proofs import is_never_empty, same_dim, same_shape, type_name
from passes._weights import in_double
from passes.fusion import CUDA_ONLY

TARGETS = CUDA_ONLY

_MICROSOFT = "com.microsoft"
_WIDEST_GROUP = 256
"""Channels of a group that the kernel computes in one block of threads; two of them at a time."""
_LAST, _FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


@dataclass(slots=True)
class _Found:
    """A group normalization.

    Attributes:
        x: What is normalized, channels first.
        groups: How many groups of channels there are.
        epsilon: What is added to the variance.
        scale: Factor of each channel.
        shift: Addend of each channel.
        cover: The nodes of it.
        activated: A SiLU follows.
    """

    x: Value
    groups: int
    epsilon: float
    scale: np.ndarray[Any, np.dtype[np.float64]]
    shift: np.ndarray[Any, np.dtype[np.float64]]
    cover: Cover
    activated: bool = False


@graph_pass(
    before="""(float[2,8,3,5] x) => (float[2,8,3,5] y)
              <int64[3] g = {0,2,-1}, float[2] one = {1,1}, float[2] none = {0,0}, int64[4] d = {2,8,3,5},
               float[8,1,1] w = {1,2,3,4,5,6,7,8}, float[8,1,1] c = {0,1,0,1,0,1,0,1}> {
        r = Reshape(x, g)
        i = InstanceNormalization<epsilon = 0.001>(r, one, none)
        o = Reshape(i, d)
        m = Mul(o, w)
        a = Add(m, c)
        y = com.microsoft.QuickGelu<alpha = 1.0>(a)
    }""",
    after="""(float[2,8,3,5] x) => (float[2,8,3,5] y)
             <float[8] w = {1,2,3,4,5,6,7,8}, float[8] c = {0,1,0,1,0,1,0,1}> {
        t = Transpose<perm = [0,2,3,1]>(x)
        n = com.microsoft.GroupNorm<groups = 2, epsilon = 0.001, activation = 1, channels_last = 1>(t, w, c)
        y = Transpose<perm = [0,3,1,2]>(n)
    }""",
    unless=[
        # More channels of a group than a block has threads for, an odd number of them, and three dims.
        """(float[1,516,3,5] x) => (float[1,516,3,5] y)
           <int64[3] g = {0,2,-1}, float[2] one = {1,1}, float[2] none = {0,0}, int64[4] d = {1,516,3,5}>
           { r = Reshape(x, g)  i = InstanceNormalization(r, one, none)  y = Reshape(i, d) }""",
        """(float[2,6,3,5] x) => (float[2,6,3,5] y)
           <int64[3] g = {0,2,-1}, float[2] one = {1,1}, float[2] none = {0,0}, int64[4] d = {2,6,3,5}>
           { r = Reshape(x, g)  i = InstanceNormalization(r, one, none)  y = Reshape(i, d) }""",
        """(float[2,8,15] x) => (float[2,8,15] y)
           <int64[3] g = {0,2,-1}, float[2] one = {1,1}, float[2] none = {0,0}, int64[3] d = {2,8,15}>
           { r = Reshape(x, g)  i = InstanceNormalization(r, one, none)  y = Reshape(i, d) }""",
        # Other views than groups of channels, of the batch and of the result.
        """(float[2,8,3,5] x) => (float[2,8,3,5] y)
           <int64[3] g = {1,4,-1}, float[4] one = {1,1,1,1}, float[4] none = {0,0,0,0}, int64[4] d = {2,8,3,5}>
           { r = Reshape(x, g)  i = InstanceNormalization(r, one, none)  y = Reshape(i, d) }""",
        """(float[2,8,3,5] x) => (float[2,8,5,3] y)
           <int64[3] g = {0,2,-1}, float[2] one = {1,1}, float[2] none = {0,0}, int64[4] d = {2,8,5,3}>
           { r = Reshape(x, g)  i = InstanceNormalization(r, one, none)  y = Reshape(i, d) }""",
        # A part that is read elsewhere.
        """(float[2,8,3,5] x) => (float[2,8,3,5] y, float[2,2,60] i)
           <int64[3] g = {0,2,-1}, float[2] one = {1,1}, float[2] none = {0,0}, int64[4] d = {2,8,3,5}>
           { r = Reshape(x, g)  i = InstanceNormalization(r, one, none)  y = Reshape(i, d) }""",
        # Images there may be none of.
        """(float[N,8,3,5] x) => (float[N,8,3,5] y)
           <int64[3] g = {0,2,-1}, float[2] one = {1,1}, float[2] none = {0,0}, int64[4] d = {0,8,3,5}>
           { r = Reshape(x, g)  i = InstanceNormalization(r, one, none)  y = Reshape(i, d) }""",
        # Something random in between, and a number that the kernel refuses.
        """(float[2,8,3,5] x) => (float[2,8,3,5] y)
           <int64[3] g = {0,2,-1}, float[2] one = {1,1}, float[2] none = {0,0}, int64[4] d = {2,8,3,5},
            float share = {0.5}, bool yes = {1}>
           { r = Reshape(x, g)  i = InstanceNormalization(r, one, none)  o = Dropout(i, share, yes)
             y = Reshape(o, d) }""",
        """(float[2,8,3,5] x) => (float[2,8,3,5] y)
           <int64[3] g = {0,2,-1}, float[2] one = {1,1}, float[2] none = {0,0}, int64[4] d = {2,8,3,5}>
           { r = Reshape(x, g)  i = InstanceNormalization<epsilon = -0.001>(r, one, none)  y = Reshape(i, d) }""",
        # No kernel for the type.
        """(double[2,8,3,5] x) => (double[2,8,3,5] y)
           <int64[3] g = {0,2,-1}, double[2] one = {1,1}, double[2] none = {0,0}, int64[4] d = {2,8,3,5}>
           { r = Reshape(x, g)  i = InstanceNormalization(r, one, none)  y = Reshape(i, d) }""",
    ],
    numeric="D",
)
def group_norm(graph: Graph, context: Context) -> None:
    """Normalization of groups of channels, with scale, shift and SiLU, is GroupNorm of the channels last."""
    for found in _all(graph):
        _replace(found, context)


def _all(graph: Graph) -> list[_Found]:
    """Every group normalization of a graph."""
    candidates: list[_Found | None] = []
    candidates += [_viewed(node) for node in graph.of_kind("InstanceNormalization")]
    candidates += [_viewed(node) for node in graph.of_kind("LayerNormalization")]
    candidates += [_standard(node) for node in graph.of_kind("GroupNormalization")]
    found = [item for item in candidates if item is not None and item.cover.root.graph is graph]
    for item in found:
        _absorb(item)
    return found


# --- recognizing ------------------------------------------------------------------------------------------------------


def _viewed(node: Node) -> _Found | None:
    """Normalization of each group, viewed as one row or one channel."""
    back = sole_user(node.results[0], "Reshape")
    if back is None or back.operand(0) is not node.results[0] or not node.has_latest_meaning:
        return None
    cover = Cover(back)
    cover.nodes[node] = None
    view = cover.enter(node.operand(0), "Reshape")
    x = None if view is None else view.operand(0)
    if view is None or x is None or x.rank != 4 or x.shape is None or not same_shape(x, back.results[0]):
        return None
    rows, channels = view.results[0].shape, x.shape[1]
    if rows is None or len(rows) != 3 or not same_dim(rows[0], x.shape[0]):
        return None
    groups = rows[1]
    if not isinstance(groups, int) or not isinstance(channels, int) or not groups or channels % groups:
        return None
    scale, shift = np.ones(groups), np.zeros(groups)
    if node.op_type == "LayerNormalization":
        is_last = node.param("axis") in (-1, 2)
        if not is_last or len(node.results) > 1 or not _is_plain(node.operand(1), 1.0) or node.operand(2) is not None:
            return None
    else:
        tensors = [None if value is None else value.const for value in (node.operand(1), node.operand(2))]
        if tensors[0] is None or tensors[1] is None:
            return None
        scale, shift = in_double(tensors[0]), in_double(tensors[1])
    repeats = channels // groups
    return _Found(x, groups, _epsilon(node), np.repeat(scale, repeats), np.repeat(shift, repeats), cover)


def _standard(node: Node) -> _Found | None:
    """ONNX's own operator, whose scale is one for each group before opset 21."""
    x, groups = node.operand(0), node.param("num_groups")
    tensors = [None if value is None else value.const for value in (node.operand(1), node.operand(2))]
    if x is None or x.rank != 4 or x.shape is None or tensors[0] is None or tensors[1] is None:
        return None
    channels = x.shape[1]
    if not isinstance(groups, int) or not isinstance(channels, int) or groups < 1 or channels % groups:
        return None
    scale, shift = in_double(tensors[0]), in_double(tensors[1])
    if scale.size != channels:
        scale, shift = np.repeat(scale, channels // groups), np.repeat(shift, channels // groups)
    return _Found(x, groups, _epsilon(node), scale, shift, Cover(node)) if scale.size == channels else None


def _epsilon(node: Node) -> float:
    epsilon = node.param("epsilon")
    return epsilon if isinstance(epsilon, float) else 1e-5


def _is_plain(value: Value | None, number: float) -> bool:
    return value is not None and is_uniform(value, number)


def _absorb(found: _Found) -> None:
    """Take in the scale and shift for each channel, and the SiLU, that follow."""
    for op_type in ("Mul", "Add"):
        result = found.cover.root.results[0]
        node = sole_user(result, op_type)
        vector = None if node is None else _per_channel(node, result, found.scale.size)
        if node is None or vector is None:
            continue
        with np.errstate(over="ignore", invalid="ignore"):  # such numbers are left where they are, further down
            if op_type == "Mul":
                found.scale, found.shift = found.scale * vector, found.shift * vector
            else:
                found.shift = found.shift + vector
        _grow(found, node)
    result = found.cover.root.results[0]
    users = result.users
    quick = [user for user in users if user.op_type == "QuickGelu" and user.domain == _MICROSOFT]
    if (
        len(users) == 1
        and quick
        and quick[0].attributes.get("alpha", 1.702) == 1.0
        and quick[0].graph is result.producer.graph
    ):
        found.activated = True
        _grow(found, quick[0])


def _grow(found: _Found, node: Node) -> None:
    grown = Cover(node)
    grown.nodes |= found.cover.nodes
    found.cover = grown


def _per_channel(node: Node, value: Value, channels: int) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """The constant beside a value of channels first, one number for each channel."""
    other = next((item for item in node.operands if item is not value), None)
    if other is None or other.const is None or other.const.rank > 4:
        return None
    dims = (1,) * (4 - other.const.rank) + tuple(other.const.shape)
    if dims[0] != 1 or dims[2] != 1 or dims[3] != 1 or dims[1] not in (1, channels):
        return None
    return np.broadcast_to(in_double(other.const).reshape(-1), (channels,))


# --- writing ----------------------------------------------------------------------------------------------------------


def _replace(found: _Found, context: Context) -> None:
    x, channels = found.x, found.scale.size
    width = channels // found.groups
    if not context.target.runs("GroupNorm", x.dtype) or width % 2 or width > _WIDEST_GROUP:
        name = type_name(x.dtype)
        context.note(f"a group normalization stays in parts: no GroupNorm for {name} and groups of {width} channels")
        return
    if not context.is_aggressive and not is_never_empty(x):
        context.note(
            "a group normalization stays in parts: dims may be 0 and the kernel fails there; fix them with "
            "--fix-dim, or run it aggressively"
        )
        return
    with np.errstate(over="ignore"):
        weights = [array.astype(np.float32) for array in (found.scale, found.shift)]
    if found.epsilon < 0 or not all(bool(np.isfinite(array).all()) for array in weights):
        return
    total, skip = _sum_before(found, context)

    def build(b: Builder) -> Value:
        scale, shift = (b.constant(Tensor.from_numpy(array, DType.FLOAT)) for array in weights)
        attributes = {
            "groups": found.groups,
            "epsilon": found.epsilon,
            "activation": int(found.activated),
            "channels_last": 1,
        }
        if skip is None:
            last = b.microsoft.GroupNorm(b.Transpose(x, perm=_LAST), scale, shift, **attributes)
        else:
            operands = [b.Transpose(value, perm=_LAST) for value in (total, skip)]
            last = b.microsoft.SkipGroupNorm(operands[0], scale, shift, operands[1], **attributes)
        first: Value = b.Transpose(last, perm=_FIRST)
        return first

    found.cover.replace(context, build)


def _sum_before(found: _Found, context: Context) -> tuple[Value, Value | None]:
    """What is normalized, and one number for each channel of each image where that is added to it just before."""
    x, add = found.x, found.x.producer
    use = x.sole_use()
    if use is None or not add.is_op("Add") or add.graph is not use[0].graph:
        return x, None
    left, right = add.operand(0), add.operand(1)
    if left is None or right is None or not context.target.runs("SkipGroupNorm", x.dtype):
        return x, None
    for value, skip in ((left, right), (right, left)):
        if same_shape(value, x) and skip.shape is not None and skip.const is None and _is_for_each_image(skip, value):
            found.cover.nodes[add] = None
            return value, skip
    return x, None


def _is_for_each_image(skip: Value, of: Value) -> bool:
    dims, whole = skip.shape or (), of.shape or ()
    return len(dims) == 4 and dims[2] == dims[3] == 1 and all(map(same_dim, dims[:2], whole[:2]))


# --- sums of channels last --------------------------------------------------------------------------------------------


@graph_pass(
    before="""(float[2,3,5,8] x, float[2,3,5,8] r, float[8] w, float[8] c) => (float[2,3,5,8] y, float[2,3,5,8] z) {
        s = Add(x, r)
        y = com.microsoft.GroupNorm<groups = 2, epsilon = 0.001, activation = 1, channels_last = 1>(s, w, c)
        z = Relu(s)
    }""",
    after="""(float[2,3,5,8] x, float[2,3,5,8] r, float[8] w, float[8] c) => (float[2,3,5,8] y, float[2,3,5,8] z) {
        y, s = com.microsoft.SkipGroupNorm<groups = 2, epsilon = 0.001, activation = 1, channels_last = 1>(x, w, c, r)
        z = Relu(s)
    }""",
    unless=[
        # Addends that are stretched.
        """(float[2,3,5,8] x, float[1,3,5,8] r, float[8] w, float[8] c) => (float[2,3,5,8] y) {
            s = Add(x, r)  y = com.microsoft.GroupNorm<groups = 2, activation = 1, channels_last = 1>(s, w, c)
        }""",
        """(float[2,3,5,8] x, float[8] r, float[8] w, float[8] c) => (float[2,3,5,8] y) {
            s = Add(x, r)  y = com.microsoft.GroupNorm<groups = 2, activation = 1, channels_last = 1>(s, w, c)
        }""",
        # A scale that is made of the sum.
        """(float[1,1,8,8] x, float[1,1,8,8] r, float[8] c) => (float[1,1,8,8] y) <int64[3] a = {0,1,2}> {
            s = Add(x, r)  w = ReduceMax<keepdims = 0>(s, a)
            y = com.microsoft.GroupNorm<groups = 2, activation = 1, channels_last = 1>(s, w, c)
        }""",
        """(float[2,3,5,8] x, float[2,3,5,8] r, float[8] w, float[8] c) => (float[2,3,5,8] y) {
            s = Sub(x, r)  y = com.microsoft.GroupNorm<groups = 2, activation = 1, channels_last = 1>(s, w, c)
        }""",
        """(float[2,3,5,8] x, float[2,3,5,8] r, float[8] w, float[8] c) => (float[2,3,5,8] y)
           <float share = {0.5}, bool yes = {1}> {
            s = Add(x, r)  d = Dropout(s, share, yes)
            y = com.microsoft.GroupNorm<groups = 2, activation = 1, channels_last = 1>(d, w, c)
        }""",
    ],
    numeric="R",
)
def skip_group_norm(graph: Graph, context: Context) -> None:
    """GroupNorm of a sum of channels last is SkipGroupNorm, which gives the sum too."""
    for node in graph.of_kind("GroupNorm", _MICROSOFT):
        total, scale, shift = (node.operand(place) for place in range(3))
        if node.graph is not graph or total is None or scale is None or shift is None or node.is_pinned:
            continue
        add = total.producer
        if not add.is_op("Add") or add.graph is not graph or add.is_pinned or context.keeps(add) or context.keeps(node):
            continue
        value, skip = add.operand(0), add.operand(1)
        if value is None or skip is None or not same_shape(value, total) or not same_shape(skip, total):
            continue
        if not context.target.runs("SkipGroupNorm", total.dtype) or not (_is_early(scale) and _is_early(shift)):
            continue
        is_shared = len(total.uses) > 1
        b = context.builder(graph)
        made = b.microsoft.SkipGroupNorm(value, scale, shift, skip, outputs=1 + is_shared, **node.attributes)
        with context.rewrite(graph):
            context.replace(node.results[0], made[0] if is_shared else made, b)
            if is_shared:
                graph.replace_uses(total, made[1])
            if add.graph is graph and not add.is_used:
                graph.erase(add)


def _is_early(value: Value) -> bool:
    """True if a value is there before anything is computed: it cannot be made of the sum."""
    return value.const is not None or not value.producer.is_operator
