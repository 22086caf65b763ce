"""Removes operators that only move data and move nothing: exporters' leftovers, no-op views, slices, pads, scatters.

A rule fires only where the operator's own definition or proved shapes say that nothing happens; a dim that is unknown
proves nothing. Operators in training mode are left alone.
"""

from __future__ import annotations

from graphopt import Builder, Match, Miss, Value, attr, const, op, rule, var
from passes import _noops as noops
from passes._proofs import contents, is_given, same_shape

x, y, z = var("x"), var("y"), var("z")


def _operand(m: Match, b: Builder, does_nothing: bool, doubt: str) -> Value | Miss:
    """What the operator reads, if it is proved that this is also what it gives."""
    value: Value = m[x]
    return value if does_nothing else b.no(doubt)


# --- Identity, Dropout, Cast


@rule(
    op.Identity(x),
    before="(float[2] x) => (float[2] y) { s = Identity(x)  t = Identity(s)  y = Relu(t) }",
    after="(float[2] x) => (float[2] y) { y = Relu(x) }",
    unless=[
        "(float[2] x) => (float[2] y) { y = Abs(x) }",
        "(float[2] x) => (float[2] y) { y = Identity(x) }",
        "(float[2] x) => (float[2] y, float[2] z) { y = Relu(x)  z = Identity(y) }",
    ],
)
def identity(m: Match, b: Builder) -> Value | Miss:
    """An Identity is its operand, of whatever type; exporters leave them for detach and stop-gradient."""
    if noops.is_relay(m.root, m[x]):
        return b.no("ONNX demands an Identity here: its operand cannot be returned under another name")
    return _operand(m, b, not noops.is_fragile_output(m.root, m[x]), "the runtime does not load what would be left")


@rule(
    op.Dropout(x, ...),
    before="(float[2] x) => (float[2] y) <float r = {0.3}, bool t = {0}> { d = Dropout(x, r, t)  y = Relu(d) }",
    after="(float[2] x) => (float[2] y) { y = Relu(x) }",
    unless=[
        "(float[2] x) => (float[2] y) <float r = {0.3}, bool t = {1}> { d = Dropout(x, r, t)  y = Relu(d) }",
        "(float[2] x, bool t) => (float[2] y) <float r = {0.3}> { d = Dropout(x, r, t)  y = Relu(d) }",
        "(float[2] x) => (float[2] y, bool[2] mask) { d, mask = Dropout(x)  y = Relu(d) }",
    ],
)
def dropout(m: Match, b: Builder) -> Value | Miss:
    """A Dropout that does not train is its operand, whatever the ratio."""
    if any(mask.is_used for mask in m.root.results[1:]):
        return b.no("the mask is read")
    return _operand(m, b, not m.root.param("training_mode"), "it trains, or may")


@rule(
    op.one_of("Cast", "BitCast")(x),
    before="(float[2] x) => (float[2] y) { t = Cast<to = 1>(x)  y = Relu(t) }",
    after="(float[2] x) => (float[2] y) { y = Relu(x) }",
    unless=[
        "(float[2] x) => (double[2] y) { t = Cast<to = 11>(x)  y = Relu(t) }",
        "(double[2] x) => (float[2] y) { t = Cast<to = 1>(x)  y = Relu(t) }",
    ],
)
def cast_to_same_type(m: Match, b: Builder) -> Value | Miss:
    """A Cast to the type its operand has changes nothing."""
    return _operand(m, b, m[x].dtype == m.root.param("to"), "the operand has another type, or an unknown one")


@rule(
    op.CastLike(x, y),
    before="(float[2] x, float[3] like) => (float[2] y) { t = CastLike(x, like)  y = Relu(t) }",
    after="(float[2] x, float[3] like) => (float[2] y) { y = Relu(x) }",
    unless=[
        "(float[2] x, double[3] like) => (double[2] y) { t = CastLike(x, like)  y = Relu(t) }",
        "(int32[2] x, int64[3] like) => (int64[2] y) { t = CastLike(x, like)  y = Abs(t) }",
    ],
)
def cast_like_same_type(m: Match, b: Builder) -> Value | Miss:
    """A CastLike of two operands of one type is the first."""
    same = m[x].dtype is not None and m[x].dtype is m[y].dtype
    return _operand(m, b, same, "the operands have different types, or unknown ones")


# --- Slice, Pad, Tile, Expand, Resize


@rule(
    op.Slice(x, ...),
    before="""(float[N,3] x) => (float[N,3] y) <int64[2] s = {0,0}, int64[2] e = {9223372036854775807,3}>
              { t = Slice(x, s, e)  y = Relu(t) }""",
    after="(float[N,3] x) => (float[N,3] y) { y = Relu(x) }",
    unless=[
        "(float[4] x) => (float[3] y) <int64[1] s = {0}, int64[1] e = {3}> { t = Slice(x, s, e)  y = Relu(t) }",
        "(float[4] x) => (float[3] y) <int64[1] s = {1}, int64[1] e = {9}> { t = Slice(x, s, e)  y = Relu(t) }",
        "(float[N] x) => (float[M] y) <int64[1] s = {0}, int64[1] e = {100}> { t = Slice(x, s, e)  y = Relu(t) }",
        """(float[4] x) => (float[4] y) <int64[1] s = {-1}, int64[1] e = {-9}, int64[1] a = {0}, int64[1] p = {-1}>
           { t = Slice(x, s, e, a, p)  y = Relu(t) }""",
        "(float[4] x, int64[1] e) => (float[N] y) <int64[1] s = {0}> { t = Slice(x, s, e)  y = Relu(t) }",
    ],
)
def full_slice(m: Match, b: Builder) -> Value | Miss:
    """A Slice from beginning to end with step 1 is its operand."""
    return _operand(m, b, noops.is_full_slice(m.root, m[x]), "it may leave something out, or turn it around")


@rule(
    op.Pad(x, ...),
    before="""(float[N,3] x) => (float[N,3] y) <int64[4] p = {0,0,0,0}>
              { t = Pad<mode = "reflect">(x, p)  y = Relu(t) }""",
    after="(float[N,3] x) => (float[N,3] y) { y = Relu(x) }",
    unless=[
        "(float[3] x) => (float[4] y) <int64[2] p = {0,1}> { t = Pad(x, p)  y = Relu(t) }",
        "(float[3] x) => (float[3] y) <int64[2] p = {-1,1}> { t = Pad(x, p)  y = Relu(t) }",
        "(float[3] x, int64[2] p) => (float[N] y) { t = Pad(x, p)  y = Relu(t) }",
    ],
)
def zero_pad(m: Match, b: Builder) -> Value | Miss:
    """A Pad by nothing is its operand, in every mode."""
    pads = contents(m.root, "pads")
    return _operand(m, b, pads is not None and all(pad == 0 for pad in pads), "a pad may not be 0")


@rule(
    op.Tile(x, ...),
    before="(float[N,3] x) => (float[N,3] y) <int64[2] r = {1,1}> { t = Tile(x, r)  y = Relu(t) }",
    after="(float[N,3] x) => (float[N,3] y) { y = Relu(x) }",
    unless=[
        "(float[2,3] x) => (float[2,6] y) <int64[2] r = {1,2}> { t = Tile(x, r)  y = Relu(t) }",
        "(float[2,3] x) => (float[2,0] y) <int64[2] r = {1,0}> { t = Tile(x, r)  y = Relu(t) }",
        "(float[2] x, int64[1] r) => (float[N] y) { t = Tile(x, r)  y = Relu(t) }",
    ],
)
def tile_once(m: Match, b: Builder) -> Value | Miss:
    """A Tile that repeats once along every axis is its operand."""
    repeats = contents(m.root, "repeats")
    once = (repeats is not None and all(count == 1 for count in repeats)) or same_shape(m.root.result, m[x])
    return _operand(m, b, once, "it may repeat along some axis")


@rule(
    op.Expand(x, y),
    before="(float[N,3] x) => (float[N,3] y) <int64[2] s = {1,3}> { t = Expand(x, s)  y = Relu(t) }",
    after="(float[N,3] x) => (float[N,3] y) { y = Relu(x) }",
    unless=[
        "(float[1,3] x) => (float[2,3] y) <int64[2] s = {2,3}> { t = Expand(x, s)  y = Relu(t) }",
        "(float[3] x) => (float[1,3] y) <int64[2] s = {1,3}> { t = Expand(x, s)  y = Relu(t) }",
        "(float[N] x) => (float[M] y) <int64[1] s = {3}> { t = Expand(x, s)  y = Relu(t) }",
        "(float[1] x, int64[1] s) => (float[N] y) { t = Expand(x, s)  y = Relu(t) }",
    ],
)
def expand_to_same_shape(m: Match, b: Builder) -> Value | Miss:
    """An Expand to ones, or to the dims there are, is its operand."""
    same = same_shape(m.root.result, m[x]) or noops.is_expand_to_ones(m.root, m[x])
    return _operand(m, b, same, "a dim may grow")


@rule(
    op.one_of("Resize", "Upsample")(x, ...),
    before="""(float[1,1,N,3] x) => (float[1,1,N,3] y) <float[4] s = {1.0,1.0,1.0,1.0}>
              { t = Resize<mode = "cubic">(x, , s)  y = Relu(t) }""",
    after="(float[1,1,N,3] x) => (float[1,1,N,3] y) { y = Relu(x) }",
    unless=[
        """(float[1,1,2,3] x) => (float[1,1,4,3] y) <float[4] s = {1.0,1.0,2.0,1.0}>
           { t = Resize<mode = "nearest">(x, , s)  y = Relu(t) }""",
        """(float[1,1,2,9] x) => (float[1,1,2,9] y) <float[4] s = {1.0,1.0,1.0,1.05}>
           { t = Resize<mode = "linear">(x, , s)  y = Relu(t) }""",
        """(float[2,2] x) => (float[2,2] y) <float[4] r = {0.0,0.0,0.5,0.5}, float[2] s = {1.0,1.0}> {
           t = Resize<mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize">(x, r, s)
           y = Relu(t) }""",
    ],
    opsets=(9, None),
)
def resize_by_one(m: Match, b: Builder) -> Value | Miss:
    """A Resize or Upsample by 1 along every axis is its operand; the runtime copies it in every mode."""
    return _operand(m, b, noops.keeps_scale(m.root, m[x]), "it may scale, or crop")


@rule(
    op.CenterCropPad(x, ...),
    before="(float[2,3] x) => (float[2,3] y) <int64[2] s = {2,3}> { t = CenterCropPad(x, s)  y = Relu(t) }",
    after="(float[2,3] x) => (float[2,3] y) { y = Relu(x) }",
    unless=["(float[2,4] x) => (float[2,3] y) <int64[2] s = {2,3}> { t = CenterCropPad(x, s)  y = Relu(t) }"],
)
def crop_to_same_shape(m: Match, b: Builder) -> Value | Miss:
    """A CenterCropPad to the shape there is neither crops nor pads."""
    return _operand(m, b, same_shape(m.root.result, m[x]), "the result may have another shape")


# --- views


@rule(
    op.Transpose(x),
    before="(float[N,M] x) => (float[N,M] y) { t = Transpose<perm = [0,1]>(x)  y = Relu(t) }",
    after="(float[N,M] x) => (float[N,M] y) { y = Relu(x) }",
    unless=[
        "(float[2,3] x) => (float[3,2] y) { t = Transpose(x)  y = Relu(t) }",
        "(float[2,2] x) => (float[2,2] y) { t = Transpose<perm = [1,0]>(x)  y = Relu(t) }",
    ],
)
def identity_transpose(m: Match, b: Builder) -> Value | Miss:
    """A Transpose that keeps the order of the axes is its operand."""
    order = m.root.param("perm")
    keeps = order == tuple(range(len(order))) if order else m[x].rank is not None and m[x].rank < 2
    return _operand(m, b, keeps, "axes change places")


@rule(
    op.Reshape(x, y),
    before="(float[N,3,4] x) => (float[N,3,4] y) <int64[3] s = {0,-1,4}> { t = Reshape(x, s)  y = Relu(t) }",
    after="(float[N,3,4] x) => (float[N,3,4] y) { y = Relu(x) }",
    unless=[
        "(float[2,3] x) => (float[3,2] y) <int64[2] s = {3,2}> { t = Reshape(x, s)  y = Relu(t) }",
        "(float[N,3] x) => (float[M,3] y) <int64[2] s = {7,3}> { t = Reshape(x, s)  y = Relu(t) }",
        "(float[N,4] x) => (float[0,K] y) <int64[2] s = {0,5}> { t = Reshape<allowzero = 1>(x, s)  y = Relu(t) }",
        "(float[2,3] x, int64[2] s) => (float[N,M] y) { t = Reshape(x, s)  y = Relu(t) }",
    ],
)
def reshape_to_same_shape(m: Match, b: Builder) -> Value | Miss:
    """A Reshape to the shape there is changes nothing."""
    same = same_shape(m.root.result, m[x]) or noops.is_reshape_in_place(m.root, m[x])
    return _operand(m, b, same, "a dim may change")


@rule(
    op.Flatten(x),
    before="(float[N,M] x) => (float[N,M] y) { t = Flatten(x)  y = Relu(t) }",
    after="(float[N,M] x) => (float[N,M] y) { y = Relu(x) }",
    unless=[
        "(float[2,3] x) => (float[1,6] y) { t = Flatten<axis = 0>(x)  y = Relu(t) }",
        "(float[2,3,4] x) => (float[2,12] y) { t = Flatten(x)  y = Relu(t) }",
        "(float[2] x) => (float[2,1] y) { t = Flatten(x)  y = Relu(t) }",
    ],
)
def flatten_matrix(m: Match, b: Builder) -> Value | Miss:
    """A Flatten of a matrix between its two axes changes nothing."""
    is_flat = (m[x].rank == 2 and m.root.param("axis") in (1, -1)) or same_shape(m.root.result, m[x])
    return _operand(m, b, is_flat, "the result may have another shape")


@rule(
    op.Squeeze(x, ...),
    before="(float[2,3] x) => (float[2,3] y) { t = Squeeze(x)  y = Relu(t) }",
    after="(float[2,3] x) => (float[2,3] y) { y = Relu(x) }",
    unless=[
        "(float[2,1] x) => (float[2] y) { t = Squeeze(x)  y = Relu(t) }",
        "(float[2,N] x) => (float[2,N] y) { t = Squeeze(x)  y = Relu(t) }",
        "(float[1,2] x) => (float[2] y) <int64[0] a = {}> { t = Squeeze(x, a)  y = Relu(t) }",
    ],
)
def squeeze_nothing(m: Match, b: Builder) -> Value | Miss:
    """A Squeeze of whatever dim is 1 changes nothing where none is; an empty list of axes means the same."""
    nothing = not is_given(m.root, "axes") and noops.has_no_unit_dim(m[x])
    return _operand(m, b, nothing, "axes are given, or a dim may be 1")


@rule(
    op.Unsqueeze(x, ...),
    before="(float[N] x) => (float[N] y) <int64[0] a = {}> { t = Unsqueeze(x, a)  y = Relu(t) }",
    after="(float[N] x) => (float[N] y) { y = Relu(x) }",
    unless=["(float[2] x) => (float[1,2] y) <int64[1] a = {0}> { t = Unsqueeze(x, a)  y = Relu(t) }"],
)
def unsqueeze_nothing(m: Match, b: Builder) -> Value | Miss:
    """An Unsqueeze without axes changes nothing."""
    return _operand(m, b, contents(m.root, "axes") == (), "there are axes, or may be")


@rule(
    op.one_of("DepthToSpace", "SpaceToDepth")(x, blocksize=1),
    before="(float[1,4,N,M] x) => (float[1,4,N,M] y) { t = DepthToSpace<blocksize = 1>(x)  y = Relu(t) }",
    after="(float[1,4,N,M] x) => (float[1,4,N,M] y) { y = Relu(x) }",
    unless=["(float[1,4,2,2] x) => (float[1,1,4,4] y) { t = DepthToSpace<blocksize = 2>(x)  y = Relu(t) }"],
)
def blocks_of_one(m: Match, b: Builder) -> Value | Miss:
    """A DepthToSpace or SpaceToDepth with blocks of one pixel moves nothing."""
    return _operand(m, b, True, "")


@rule(
    op.Einsum(x),
    before="""(float[N,M] x) => (float[N,M] y) { t = Einsum<equation = "ij -> ij">(x)  y = Relu(t) }""",
    after="(float[N,M] x) => (float[N,M] y) { y = Relu(x) }",
    unless=[
        """(float[2,3] x) => (float[3,2] y) { t = Einsum<equation = "ij->ji">(x)  y = Relu(t) }""",
        """(float[2,3] x) => (float[2] y) { t = Einsum<equation = "ij->i">(x)  y = Relu(t) }""",
        """(float[2,2] x) => (float[2] y) { t = Einsum<equation = "ii->i">(x)  y = Relu(t) }""",
        """(float[2,3] x) => (float[3,2] y) { t = Einsum<equation = "ji">(x)  y = Relu(t) }""",
    ],
)
def einsum_of_same_labels(m: Match, b: Builder) -> Value | Miss:
    """An Einsum of one operand to the same labels in the same order is that operand."""
    return _operand(m, b, noops.keeps_labels(m.root.param("equation")), "axes move, or are summed")


# --- one part, every element, no element


@rule(
    op.Concat(x),
    before="(float[N,3] x) => (float[N,3] y) { t = Concat<axis = 1>(x)  y = Relu(t) }",
    after="(float[N,3] x) => (float[N,3] y) { y = Relu(x) }",
    unless=["(float[2] x) => (float[4] y) { t = Concat<axis = 0>(x, x)  y = Relu(t) }"],
)
def concat_of_one(m: Match, b: Builder) -> Value | Miss:
    """A Concat of one operand is that operand."""
    return _operand(m, b, True, "")


@rule(
    op.Split(x, ...),
    before="(float[N,3] x) => (float[N,3] y) { t = Split<axis = 1, num_outputs = 1>(x)  y = Relu(t) }",
    after="(float[N,3] x) => (float[N,3] y) { y = Relu(x) }",
    unless=["(float[4] x) => (float[2] y) { s, t = Split<num_outputs = 2>(x)  y = Relu(t) }"],
)
def split_into_one(m: Match, b: Builder) -> Value | Miss:
    """A Split into one part is its operand."""
    return _operand(m, b, len(m.root.results) == 1, "there are more parts")


@rule(
    op.Gather(x, const()),
    before="(float[N,3] x) => (float[N,3] y) <int64[3] i = {0,1,-1}> { t = Gather<axis = 1>(x, i)  y = Relu(t) }",
    after="(float[N,3] x) => (float[N,3] y) { y = Relu(x) }",
    unless=[
        "(float[3] x) => (float[3] y) <int64[3] i = {0,2,1}> { t = Gather(x, i)  y = Relu(t) }",
        "(float[4] x) => (float[3] y) <int64[3] i = {0,1,2}> { t = Gather(x, i)  y = Relu(t) }",
        "(float[N] x) => (float[3] y) <int64[3] i = {0,1,2}> { t = Gather(x, i)  y = Relu(t) }",
        "(float[1,3] x) => (float[3] y) <int64 i = {0}> { t = Gather(x, i)  y = Relu(t) }",
    ],
)
def gather_in_order(m: Match, b: Builder) -> Value | Miss:
    """A Gather of every index in order is its operand."""
    return _operand(m, b, noops.gathers_in_order(m.root, m[x]), "an index may be left out, or elsewhere")


@rule(
    op.one_of("ScatterND", "ScatterElements", "Scatter")(x, y, z),
    before="(float[3] x, float[0] u) => (float[3] y) <int64[0,1] i = {}> { t = ScatterND(x, i, u)  y = Relu(t) }",
    after="(float[3] x, float[0] u) => (float[3] y) { y = Relu(x) }",
    unless=[
        "(float[3] x, float[1] u) => (float[3] y) <int64[1,1] i = {1}> { t = ScatterND(x, i, u)  y = Relu(t) }",
        "(float[3] x, int64[N,1] i, float[N] u) => (float[3] y) { t = ScatterND(x, i, u)  y = Relu(t) }",
    ],
)
def scatter_nothing(m: Match, b: Builder) -> Value | Miss:
    """A scatter of no elements leaves its operand as it is."""
    return _operand(m, b, noops.scatters_nothing(m.root), "something may be written")


_POSITION = attr("position")
_SEQUENCE = op.SequenceConstruct(...)


@rule(
    op.SequenceAt(_SEQUENCE, y, position=_POSITION),
    before="""(float[2] x, float[3] z) => (float[3] y) <int64 i = {-1}>
              { s = SequenceConstruct(x, z)  t = SequenceAt(s, i)  y = Relu(t) }""",
    after="(float[2] x, float[3] z) => (float[3] y) { y = Relu(z) }",
    unless=[
        """(float[2] x, float[3] z, int64 i) => (float[N] y)
           { s = SequenceConstruct(x, z)  t = SequenceAt(s, i)  y = Relu(t) }""",
        """(float[2] x, float[3] z) => (float[N] y) <int64 i = {2}>
           { s = SequenceConstruct(x, z)  t = SequenceAt(s, i)  y = Relu(t) }""",
    ],
    keep=(_SEQUENCE,),
)
def element_of_sequence(m: Match, b: Builder) -> Value | Miss:
    """An element taken from a sequence just made is the value that went in."""
    parts, place = m.node(_SEQUENCE).operands, m[_POSITION]
    found = parts[place] if isinstance(place, int) and -len(parts) <= place < len(parts) else None
    return found or b.no("there is no such element: the model fails")


@rule(
    op.OptionalGetElement(x),
    before="(float[2] x) => (float[2] y) { t = OptionalGetElement(x)  y = Relu(t) }",
    after="(float[2] x) => (float[2] y) { y = Relu(x) }",
    unless=["(optional(float[2]) x) => (float[2] y) { t = OptionalGetElement(x)  y = Relu(t) }"],
    opsets=(18, None),
)
def element_of_tensor(m: Match, b: Builder) -> Value | Miss:
    """What is no optional is its own element."""
    return _operand(m, b, noops.is_present(m[x]), "it may be an optional, and empty")


_OPTIONAL = op.Optional(x)


@rule(
    op.OptionalGetElement(_OPTIONAL),
    before="(float[2] x) => (float[2] y) { s = Optional(x)  t = OptionalGetElement(s)  y = Relu(t) }",
    after="(float[2] x) => (float[2] y) { y = Relu(x) }",
    unless=["(optional(float[2]) x) => (float[2] y) { t = OptionalGetElement(x)  y = Relu(t) }"],
    keep=(_OPTIONAL,),
)
def element_of_optional(m: Match, b: Builder) -> Value | Miss:
    """What comes out of an optional just made is what went in."""
    return _operand(m, b, True, "")
