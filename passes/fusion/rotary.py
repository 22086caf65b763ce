"""Writes rotary embeddings as the operator of ONNX Runtime that turns all pairs in one kernel.

Exporters write `x·cos + turned(x)·sin` in six to ten nodes for the queries and for the keys of every layer. The tables
that the operator wants are computed in the run, half as large as those of the model, once for all layers: a row for
each position, or for each position of each batch where batches have positions of their own.
"""

from __future__ import annotations

import numpy as np

from graphopt import Builder, Context, DType, Graph, Node, Tensor, Value, graph_pass, symbol
from passes._cover import Cover
from passes._proofs import same_dim, type_name
from passes.fusion import RUNTIME
from passes.fusion._attention_layout import is_same
from passes.fusion._rotary_angles import HALVES, PAIRS, Known, half_as_it_is
from passes.fusion._rotary_forms import Rotation, rotation_around
from passes.fusion._rotary_rows import Layout, Rows, layout_of, rows_of, split_behind

TARGETS = RUNTIME

_RANGE = 11
"""The first opset that counts."""

_LARGEST_HEAD = 1024
"""Elements of a head that a block of threads has room for."""


_HALVES = """(float[2,3,5,8] x, float[1,5,4] f) => (float[2,3,5,8] y) <int64[1] one = {1}> {
    e = Concat<axis = -1>(f, f)  c3 = Cos(e)  s3 = Sin(e)  c = Unsqueeze(c3, one)  s = Unsqueeze(s3, one)
    a, b = Split<axis = 3, num_outputs = 2>(x)  n = Neg(b)  r = Concat<axis = -1>(n, a)
    p = Mul(x, c)  q = Mul(r, s)  y = Add(p, q)
}"""

_PAIRS = """(float[2,5,3,8] x, float[2,5,4] c, float[2,5,4] s) => (float[2,5,3,8] y)
           <int64[2] two = {2,4}, int64[1] last = {-1}, int64[5] twice = {2,5,1,4,2}, int64[4] wide = {2,5,1,8},
            int64[4] shape = {2,5,3,8}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] end = {8},
            int64[1] by = {2}> {
    c5 = Unsqueeze(c, two)  cw = Expand(c5, twice)  cc = Reshape(cw, wide)
    s5 = Unsqueeze(s, two)  sw = Expand(s5, twice)  ss = Reshape(sw, wide)
    a = Slice(x, zero, end, last, by)  b = Slice(x, one, end, last, by)  n = Neg(b)
    ul = Unsqueeze(n, last)  ur = Unsqueeze(a, last)  j = Concat<axis = -1>(ul, ur)  r = Reshape(j, shape)
    p = Mul(x, cc)  q = Mul(r, ss)  y = Add(p, q)
}"""

_PARTS = """(float[2,3,5,8] x, float[5,4] c, float[5,4] s) => (float[2,3,5,8] y) {
    a, b = Split<axis = 3, num_outputs = 2>(x)  ac = Mul(a, c)  bs = Mul(b, s)  bc = Mul(b, c)  as = Mul(a, s)
    f = Sub(ac, bs)  g = Add(bc, as)  y = Concat<axis = -1>(f, g)
}"""


@graph_pass(
    before=_HALVES,
    after="""(float[2,3,5,8] x, float[1,5,4] f) => (float[2,3,5,8] y) <int64[1] zero = {0}, int64[2] rows = {-1,4}> {
        c3 = Cos(f)  c = Reshape(c3, rows)  s3 = Sin(f)  s = Reshape(s3, rows)
        y = com.microsoft.RotaryEmbedding<interleaved = 0>(x, zero, c, s)
    }""",
    unless=[
        _HALVES.replace("Concat<axis = -1>(f, f)", "Concat<axis = -1>(f, g)").replace("f) =>", "f, float[1,5,4] g) =>"),
        _HALVES.replace("Concat<axis = -1>(n, a)", "Concat<axis = -1>(a, n)"),
        _HALVES.replace("Neg(b)", "Neg(a)").replace("(n, a)", "(n, b)"),
        _HALVES.replace("(float[2,3,5,8] y)", "(float[2,3,5,8] y, float[2,3,5,8] r)"),
        _HALVES.replace("Mul(x, c)", "Mul(w, c)").replace("x, float", "x, float[2,3,5,8] w, float"),
        _HALVES.replace("<axis = 3, num_outputs = 2>(x)", "<axis = 3>(x, u)")
        .replace("<int64[1] one = {1}>", "<int64[1] one = {1}, int64[2] u = {4,4}>")
        .replace("float[2,3,5,8] x", "double[2,3,5,8] x")
        .replace("float", "double"),
        _HALVES.replace("float[1,5,4] f", "float[3,5,4] f").replace("{1}", "{0}"),
        _HALVES.replace("float[1,5,4] f", "float[1,1,4] f"),
        # Something random in between.
        _HALVES.replace("n = Neg(b)", "d = Dropout(b, share, yes)  n = Neg(d)").replace(
            "{1}>", "{1}, float share = {0.5}, bool yes = {1}>"
        ),
    ],
    numeric="R",
    largest=1e4,
)
def rotary_halves(graph: Graph, context: Context) -> None:
    """Turning the first half of each head against the second by angles is RotaryEmbedding."""
    _rewrite(graph, context, "Neg", HALVES)


@graph_pass(
    before=_PAIRS,
    after="""(float[2,5,3,8] x, float[2,5,4] c, float[2,5,4] s) => (float[2,5,3,8] y)
             <int64[3] flat = {0,0,24}, int64[4] apart = {0,0,3,8}, int64[2] rows = {-1,4},
              int64[2,5] n = {0,1,2,3,4,5,6,7,8,9}> {
        z = Reshape(x, flat)  cc = Reshape(c, rows)  ss = Reshape(s, rows)
        t = com.microsoft.RotaryEmbedding<interleaved = 1>(z, n, cc, ss)  y = Reshape(t, apart)
    }""",
    unless=[
        _PAIRS.replace("Concat<axis = -1>(ul, ur)", "Concat<axis = -1>(ur, ul)"),
        _PAIRS.replace("Expand(s5, twice)", "Expand(s5, other)")
        .replace("{2,4}", "{2,3}")
        .replace("int64[2] two", "int64[5] other = {2,5,1,2,4}, int64[2] two")
        .replace("twice = {2,5,1,4,2}", "twice = {2,5,1,2,4}"),
        _PAIRS.replace("Slice(x, one, end, last, by)", "Slice(x, one, end, last, by)  z = Abs(b)")
        .replace("float[2,5,3,8] y)", "float[2,5,3,8] y, float[2,5,3,4] z)")
        .replace("Mul(x, cc)", "Mul(r, cc)"),
        _PAIRS.replace("float[", "double["),
        _PAIRS.replace("n = Neg(b)", "d = Dropout(b, share, yes)  n = Neg(d)").replace(
            "{2}>", "{2}, float share = {0.5}, bool yes = {1}>"
        ),
        _PAIRS.replace("(float[2,5,3,8] y)", "(float[2,5,3,8] y, float[2,5,3,8] q)"),
    ],
    numeric="R",
    largest=1e18,
)
def rotary_pairs(graph: Graph, context: Context) -> None:
    """Turning every second element of each head against the one before it by angles is RotaryEmbedding."""
    _rewrite(graph, context, "Neg", PAIRS)


@graph_pass(
    before=_PARTS,
    after="""(float[2,3,5,8] x, float[5,4] c, float[5,4] s) => (float[2,3,5,8] y) <int64[1] zero = {0}> {
        y = com.microsoft.RotaryEmbedding<interleaved = 0>(x, zero, c, s)
    }""",
    unless=[
        _PARTS.replace("Sub(ac, bs)", "Sub(bs, ac)"),
        _PARTS.replace("Mul(a, s)", "Mul(a, c)"),
        _PARTS.replace("Concat<axis = -1>(f, g)", "Concat<axis = -1>(g, f)"),
        _PARTS.replace("(float[2,3,5,8] y)", "(float[2,3,5,8] y, float[2,3,5,4] g)"),
        _PARTS.replace("float[", "double["),
        _PARTS.replace("ac = Mul(a, c)", "ac0 = Mul(a, c)  ac = Dropout(ac0, share, yes)").replace(
            " {\n", " <float share = {0.5}, bool yes = {1}> {\n"
        ),
        # Heads larger than a block has threads for, and of a size that is not known.
        _PARTS.replace("[2,3,5,8]", "[2,3,5,2048]").replace("[5,4]", "[5,1024]"),
        _PARTS.replace("[2,3,5,8]", "[2,3,5,N]").replace("[5,4]", "[5,M]"),
        # Angles of another axis, and of one number for each head.
        _PARTS.replace("axis = 3", "axis = 2")
        .replace("axis = -1", "axis = 2")
        .replace("[2,3,5,8]", "[2,3,8,4]")
        .replace("[5,4]", "[4,4]"),
        _PARTS.replace("float[5,4] c", "float[3,1,1] c").replace("float[5,4] s", "float[3,1,1] s"),
        # Pairs that are put together in another shape.
        """(float[2,3,4,8] x, float[1,1,4,4] c, float[1,1,4,4] s) => (float[2,3,32] y)
           <int64[1] zero = {0}, int64[1] one = {1}, int64[1] end = {100}, int64[1] three = {3}, int64[1] two = {2},
            int64[1] four = {4}, int64[3] shape = {2,3,32}> {
            a = Slice(x, zero, end, three, two)  b = Slice(x, one, end, three, two)  ac = Mul(a, c)  bs = Mul(b, s)
            u = Sub(ac, bs)  d = Mul(a, s)  e = Mul(b, c)  w = Add(d, e)  u5 = Unsqueeze(u, four)
            w5 = Unsqueeze(w, four)  k = Concat<axis = -1>(u5, w5)  y = Reshape(k, shape)
        }""",
    ],
    numeric="R",
    largest=1e18,
)
def rotary_parts(graph: Graph, context: Context) -> None:
    """Both elements of each pair, computed apart from the two by angles, are RotaryEmbedding."""
    _rewrite(graph, context, "Sub", None)


@graph_pass(
    before="""(float[B,S,24] h, float[B,S,4] c, float[B,S,4] s) => (float[B,3,S,8] y) <int64[4] shape = {0,0,3,8}> {
        g = Reshape(h, shape)  x = Transpose<perm = [0,2,1,3]>(g)  y = RotaryEmbedding<interleaved = 1>(x, c, s)
    }""",
    after="""(float[B,S,24] h, float[B,S,4] c, float[B,S,4] s) => (float[B,3,S,8] y)
             <int64[4] shape = {0,0,3,8}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2},
              int64 nought = {0}, int64 step = {1}, int64[2] rows = {-1,4}, int64[1] four = {4}> {
        cc = Reshape(c, rows)  ss = Reshape(s, rows)  d = Shape(c)  b = Slice(d, zero, one, zero)  d2 = Shape(c)
        l = Slice(d2, one, two, zero)  l0 = Squeeze(l, zero)  columns = Range(nought, l0, step)  b0 = Squeeze(b, zero)
        batches = Range(nought, b0, step)  firsts = Mul(batches, l)  f = Unsqueeze(firsts, one)
        k = Unsqueeze(columns, zero)  n = Add(f, k)
        w = Shape(n)  v = Slice(w, one, two, zero)  o = Concat<axis = 0>(v, four)
        p = ConstantOfShape<value = float[1] {0.0}>(o)  cp = Concat<axis = 0>(cc, p)  w2 = Shape(n)
        v2 = Slice(w2, one, two, zero)  o2 = Concat<axis = 0>(v2, four)
        p2 = ConstantOfShape<value = float[1] {0.0}>(o2)  sp = Concat<axis = 0>(ss, p2)
        t = com.microsoft.RotaryEmbedding<interleaved = 1>(h, n, cp, sp)  u = Reshape(t, shape)
        y = Transpose<perm = [0,2,1,3]>(u)
    }""",
    unless=[
        """(float[B,3,S,8] x, float[B,S,4] c, float[B,S,4] s) => (float[B,3,S,8] y) {
            y = RotaryEmbedding<interleaved = 1>(x, c, s)
        }""",
        """(float[B,S,24] h, float[N,4] c, float[N,4] s, int64[B,S] ids) => (float[B,3,S,8] y)
           <int64[4] shape = {0,0,3,8}> {
            g = Reshape(h, shape)  x = Transpose<perm = [0,2,1,3]>(g)  y = RotaryEmbedding(x, c, s, ids)
        }""",
    ],
    numeric="R",
    opset=23,
    largest=1e18,
)
def rotary_moved(graph: Graph, context: Context) -> None:
    """The standard RotaryEmbedding turns before the heads move to the front, as the one of the runtime can."""
    for node in list(graph.of_kind("RotaryEmbedding")):
        found = _standard(node) if node.graph is graph else None
        reason = None if found is None else _fuse(*found, context, is_moved_only=True)
        if reason is not None:
            context.note(reason)


def _standard(node: Node) -> tuple[Rotation, Layout] | None:
    """What a standard RotaryEmbedding of tables for each batch does."""
    x, cosines, sines = (node.operand(place) for place in range(3))
    if x is None or cosines is None or sines is None or node.operand(3) is not None or not node.has_latest_meaning:
        return None
    if x.shape is None or cosines.shape is None or len(x.shape) != 4 or len(cosines.shape) != 3:
        return None
    size, half = x.shape[-1], cosines.shape[-1]
    turned = node.param("rotary_embedding_dim") or size
    if not isinstance(half, int) or turned != 2 * half or None in cosines.shape:
        return None
    kind = PAIRS if node.param("interleaved") else HALVES
    tables = half_as_it_is(cosines, half), half_as_it_is(sines, half)
    layout = Layout(0, 2, 1, cosines.shape[0], cosines.shape[1], (0, 1))
    return Rotation(Cover(node), x, 2 * half, *tables, cosines, kind), layout


def _rewrite(graph: Graph, context: Context, op_type: str, kind: str | None) -> None:
    """Replace all rotations that have such an operator in the middle."""
    known: Known = {}
    for node in list(graph.of_kind(op_type)):
        found = rotation_around(node, known) if node.graph is graph else None
        if isinstance(found, Rotation):
            if kind not in (None, found.kind):
                continue
            found = _fuse(found, layout_of(found), context)
        if found is not None:
            context.note(found)


def _fuse(rotation: Rotation, layout: Layout | str, context: Context, *, is_moved_only: bool = False) -> str | None:
    """Replace a rotation; why not, if not.

    Args:
        rotation: The rotation.
        layout: Its axes, or why they are none that the operator has.
        context: The run.
        is_moved_only: Only where it then stands before the heads move to the front.
    """
    x = rotation.x
    if isinstance(layout, str):
        return layout
    if not context.target.runs("RotaryEmbedding", x.dtype):
        return f"{context.target.name} has no kernel of RotaryEmbedding for {type_name(x.dtype)}"
    size = x.shape[-1] if x.shape else None
    if not isinstance(size, int) or size > _LARGEST_HEAD:
        return "the size of a rotated head is unknown or too large"
    if not rotation.cover.is_private:
        return "a part of a rotation is read elsewhere"
    root, reason = rotation.cover.root, list[str]()
    others: dict[Value, Value] = {}

    def build(b: Builder) -> Value | None:
        rows = rows_of(b, x, layout, root, context)
        if isinstance(rows, str):
            reason.append(rows)
            return None
        if is_moved_only and not rows.is_turned:
            return None
        made = _operator(b, rotation, rows, layout)
        if isinstance(made, str):
            reason.append(made)
            return None
        others.update(rows.others)
        if rows.is_turned:
            others.update(split_behind(b, root, made, size, context))
        return rows.restore(b, made)

    graph, around = root.graph, _operands(rotation.cover)
    assert graph is not None
    with context.rewrite(graph):
        if rotation.cover.replace(context, build):
            for old, new in others.items():
                graph.replace_uses(old, new)
            _erase_unread(graph, context, [*around, *dict.fromkeys(old.producer for old in others)])
    return reason[0] if reason else None


def _operands(cover: Cover) -> list[Node]:
    """What makes the operands of the nodes inside."""
    return list(dict.fromkeys(value.producer for node in cover.nodes for value in node.operands if value is not None))


def _erase_unread(graph: Graph, context: Context, nodes: list[Node]) -> None:
    """Erase those of some operators that nobody reads, and what only they read."""
    pending = nodes
    while pending:
        node = pending.pop()
        if node.graph is not graph or not node.is_operator or node.is_used or node.is_pinned or context.keeps(node):
            continue
        pending.extend(value.producer for value in node.operands if value is not None)
        graph.erase(node)


def _operator(b: Builder, rotation: Rotation, rows: Rows, layout: Layout) -> Value | str:
    x, shape = rows.value, rotation.x.shape
    assert shape is not None
    is_partial = rotation.turned != shape[-1]
    if is_partial and rows.heads is None:
        return "the number of heads is unknown, of which only a part of each is rotated"
    length, batch = shape[layout.positions], 1 if layout.batch is None else shape[layout.batch]
    own_length, own_batch = layout.angle_positions, layout.angle_batch
    cosine, sine = rotation.cosine.rows(b), rotation.sine.rows(b)
    if own_batch == 1 and same_dim(own_length, length):
        positions = b.constant([0], DType.INT64)
    elif b.graph.opsets.get("", 0) < _RANGE:
        return "batches have positions of their own, which cannot be counted in this opset"
    else:
        dims = _dims(b, rotation.angles, layout)
        positions = _numbers(b, dims, layout)
        # The operator refuses rows for other dims than it turns, so equal names of dims are proof enough.
        is_long, is_whole = is_same(own_length, length), is_same(own_batch, batch)
        if not (is_long and is_whole):
            before = b.Shape(x)
            if not (is_long and own_batch == 1):
                x = _stretched(b, x, dims, rows.positions)
            positions = _for_each(b, positions, before, rows.positions)
        if own_batch is None or not symbol.is_positive(own_batch):
            cosine, sine = (_with_spare_rows(b, table, positions) for table in (cosine, sine))
    made: Value = b.microsoft.RotaryEmbedding(
        x,
        positions,
        cosine,
        sine,
        interleaved=int(rotation.kind == PAIRS),
        num_heads=rows.heads if is_partial else None,
        rotary_embedding_dim=rotation.turned if is_partial else None,
    )
    return made


def _dims(b: Builder, angles: Value, layout: Layout) -> tuple[Value, Value]:
    """Of how many batches and positions there are angles, each as a list of one."""
    sizes: list[Value] = []
    for axis, dim in zip(layout.angle_axes, (layout.angle_batch, layout.angle_positions), strict=True):
        if isinstance(dim, int) or axis is None:
            sizes.append(b.constant([dim if isinstance(dim, int) else 1], DType.INT64))
        else:
            sizes.append(b.Slice(b.Shape(angles), starts=[axis], ends=[axis + 1], axes=[0]))
    return sizes[0], sizes[1]


def _numbers(b: Builder, dims: tuple[Value, Value], layout: Layout) -> Value:
    """The row of the table for each position of each batch."""
    batch, positions = layout.angle_batch, layout.angle_positions
    if isinstance(batch, int) and isinstance(positions, int):
        known = np.arange(batch * positions, dtype=np.int64).reshape(batch, positions)
        return b.constant(known)
    zero, one = b.constant(0, DType.INT64), b.constant(1, DType.INT64)
    columns, rows = (b.Range(zero, b.Squeeze(size, axes=[0]), one) for size in (dims[1], dims[0]))
    made: Value = b.Add(b.Unsqueeze(b.Mul(rows, dims[1]), axes=[1]), b.Unsqueeze(columns, axes=[0]))
    return made


def _stretched(b: Builder, x: Value, dims: tuple[Value, Value], axis: int) -> Value:
    """What is turned, as often as there are angles for it: no proof says that their dims are equal."""
    wide = [b.constant([1], DType.INT64)] * (x.rank or 0)
    wide[0], wide[axis] = dims
    made: Value = b.Expand(x, b.Concat(*wide, axis=0))
    return made


def _for_each(b: Builder, positions: Value, shape: Value, axis: int) -> Value:
    """The rows of the table for each batch and position of what is turned."""
    own = [b.Slice(shape, starts=[place], ends=[place + 1], axes=[0]) for place in (0, axis)]
    made: Value = b.Expand(positions, b.Concat(*own, axis=0))
    return made


def _with_spare_rows(b: Builder, table: Value, positions: Value) -> Value:
    """A table with at least as many rows as there are positions, which the operator wants even of an empty batch."""
    assert table.shape is not None
    assert table.dtype is not None
    length = b.Slice(b.Shape(positions), starts=[1], ends=[2], axes=[0])
    shape = b.Concat(length, b.constant([table.shape[-1]], DType.INT64), axis=0)
    spare = b.ConstantOfShape(shape, value=Tensor.of([0], table.dtype))
    made: Value = b.Concat(table, spare, axis=0)
    return made
