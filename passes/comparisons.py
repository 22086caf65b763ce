"""Simplifies comparisons, truth values and choices: Not of a comparison, x == x, Where of Not, Where of True and False.

For floats, not less is not greater or equal: NaN is neither. So comparisons are turned around for integers alone.
"""

from __future__ import annotations

from graphopt import Builder, DType, Match, Miss, Node, Value, op, rule, var
from passes._numbers import is_all
from passes._proofs import same_type

x, y, z, c = var("x"), var("y"), var("z"), var("c")
_true = var("true", where=lambda value: is_all(value, True))
_false = var("false", where=lambda value: is_all(value, False))
_zero = var("zero", where=lambda value: is_all(value, 0))
_one = var("one", where=lambda value: is_all(value, 1))

_OPPOSITE = {
    "Greater": "LessOrEqual",
    "GreaterOrEqual": "Less",
    "Less": "GreaterOrEqual",
    "LessOrEqual": "Greater",
}
_COMPARED = (DType.INT32, DType.INT64)
"""Integer types that the runtime compares in every way."""
_COMPARISON = op.one_of(*_OPPOSITE)(x, y)


@rule(
    op.Not(_COMPARISON),
    before="(int64[N,3] x, int64[3] z) => (bool[N,3] y) { t = Less(x, z)  y = Not(t) }",
    after="(int64[N,3] x, int64[3] z) => (bool[N,3] y) { y = GreaterOrEqual(x, z) }",
    unless=[
        "(float[2] x, float[2] z) => (bool[2] y) { t = Less(x, z)  y = Not(t) }",
        "(int64[2] x, int64[2] z) => (bool[2] y) { t = Equal(x, z)  y = Not(t) }",
        "(uint8[2] x, uint8[2] z) => (bool[2] y) { t = Less(x, z)  y = Not(t) }",
    ],
    opsets=(12, None),
)
def not_of_comparison(m: Match, b: Builder) -> Value | Miss:
    """Not of a comparison of integers is the opposite comparison."""
    if m[x].dtype not in _COMPARED:
        return b.no("a NaN is neither less nor greater, or the runtime has no kernel")
    made: Value = b.apply(_OPPOSITE[m.node(_COMPARISON).op_type], (m[x], m[y]))
    return made


@rule(
    op.Xor(x, _true),
    before="(bool[N,3] x) => (bool[N,3] y) <bool c = {1}> { y = Xor(x, c) }",
    after="(bool[N,3] x) => (bool[N,3] y) { y = Not(x) }",
    unless=[
        "(bool[3] x) => (bool[2,3] y) <bool[2,1] c = {1,1}> { y = Xor(x, c) }",
        "(bool[2] x) => (bool[2] y) <bool[2] c = {1,0}> { y = Xor(x, c) }",
    ],
)
def xor_true(m: Match, b: Builder) -> Value | Miss:
    """Exclusive or with True is Not."""
    made: Value = b.Not(m[x])
    return made if same_type(m[x], m.root.result) else b.no("the True may widen the other operand")


@rule(
    op.Equal(x, _true),
    before="(bool[N,3] x) => (bool[N,3] y) <bool c = {1}> { t = Equal(x, c)  y = Not(t) }",
    after="(bool[N,3] x) => (bool[N,3] y) { y = Not(x) }",
    unless=[
        "(int64[2] x) => (bool[2] y) <int64 c = {1}> { t = Equal(x, c)  y = Not(t) }",
        "(bool[3] x) => (bool[2,3] y) <bool[2,1] c = {1,1}> { t = Equal(x, c)  y = Not(t) }",
    ],
)
def equal_true(m: Match, b: Builder) -> Value | Miss:
    """A truth value equals True where it is true."""
    value: Value = m[x]
    return value if same_type(value, m.root.result) else b.no("it is no truth value, or the True may widen it")


@rule(
    op.Equal(x, _false),
    before="(bool[N,3] x) => (bool[N,3] y) <bool c = {0}> { y = Equal(x, c) }",
    after="(bool[N,3] x) => (bool[N,3] y) { y = Not(x) }",
    unless=[
        "(int64[2] x) => (bool[2] y) <int64 c = {0}> { y = Equal(x, c) }",
        "(bool[3] x) => (bool[2,3] y) <bool[2,1] c = {0,0}> { y = Equal(x, c) }",
    ],
)
def equal_false(m: Match, b: Builder) -> Value | Miss:
    """A truth value equals False where it is not true."""
    if not same_type(m[x], m.root.result):
        return b.no("it is no truth value, or the False may widen it")
    made: Value = b.Not(m[x])
    return made


# --- truth values made numbers


def _truth(m: Match, b: Builder, *, negated: bool) -> Value | Miss:
    if m[c].dtype is not DType.BOOL or not same_type(m[c], m.root.result):
        return b.no("what is converted is no truth value, or the constant may widen it")
    value: Value = b.Not(m[c]) if negated else m[c]
    return value


_TRUTH = op.Cast(c)


@rule(
    op.Cast(_TRUTH, to=int(DType.BOOL)),
    before="(bool[N,3] x) => (bool[N,3] y) { n = Cast<to = 7>(x)  t = Cast<to = 9>(n)  y = Not(t) }",
    after="(bool[N,3] x) => (bool[N,3] y) { y = Not(x) }",
    unless=["(int64[2] x) => (bool[2] y) { n = Cast<to = 1>(x)  t = Cast<to = 9>(n)  y = Not(t) }"],
    keep=(_TRUTH,),
)
def cast_truth_there_and_back(m: Match, b: Builder) -> Value | Miss:
    """A truth value made a number and a truth value again is what it was."""
    is_text = m[_TRUTH].dtype is DType.STRING
    return b.no("a text is no number") if is_text else _truth(m, b, negated=False)


@rule(
    op.Equal(op.Cast(c), _one),
    before="(bool[N,3] x) => (bool[N,3] y) <int64 o = {1}> { n = Cast<to = 7>(x)  t = Equal(n, o)  y = Not(t) }",
    after="(bool[N,3] x) => (bool[N,3] y) { y = Not(x) }",
    unless=[
        "(int32[2] x) => (bool[2] y) <int64 o = {1}> { n = Cast<to = 7>(x)  t = Equal(n, o)  y = Not(t) }",
        "(bool[2] x) => (bool[2] y) <int64 o = {2}> { n = Cast<to = 7>(x)  t = Equal(n, o)  y = Not(t) }",
    ],
)
def truth_equals_one(m: Match, b: Builder) -> Value | Miss:
    """A truth value made a number equals 1 where it is true."""
    return _truth(m, b, negated=False)


@rule(
    op.one_of("Equal", "LessOrEqual")(op.Cast(c), _zero),
    before="(bool[N,3] x) => (bool[N,3] y) <int64 o = {0}> { n = Cast<to = 7>(x)  y = Equal(n, o) }",
    after="(bool[N,3] x) => (bool[N,3] y) { y = Not(x) }",
    unless=["(int32[2] x) => (bool[2] y) <int64 o = {0}> { n = Cast<to = 7>(x)  y = Equal(n, o) }"],
    opsets=(12, None),
)
def truth_equals_zero(m: Match, b: Builder) -> Value | Miss:
    """A truth value made a number equals 0 where it is not true."""
    return _truth(m, b, negated=True)


@rule(
    op.Greater(op.Cast(c), _zero),
    before="(bool[N,3] x) => (bool[N,3] y) <float o = {0.0}> { n = Cast<to = 1>(x)  t = Greater(n, o)  y = Not(t) }",
    after="(bool[N,3] x) => (bool[N,3] y) { y = Not(x) }",
    unless=["(int32[2] x) => (bool[2] y) <float o = {0.0}> { n = Cast<to = 1>(x)  t = Greater(n, o)  y = Not(t) }"],
)
def truth_above_zero(m: Match, b: Builder) -> Value | Miss:
    """A truth value made a number is above 0 where it is true."""
    return _truth(m, b, negated=False)


@rule(
    op.Less(op.Cast(c), _one),
    before="(bool[N,3] x) => (bool[N,3] y) <int64 o = {1}> { n = Cast<to = 7>(x)  y = Less(n, o) }",
    after="(bool[N,3] x) => (bool[N,3] y) { y = Not(x) }",
    unless=["(int32[2] x) => (bool[2] y) <int64 o = {1}> { n = Cast<to = 7>(x)  y = Less(n, o) }"],
)
def truth_below_one(m: Match, b: Builder) -> Value | Miss:
    """A truth value made a number is below 1 where it is not true."""
    return _truth(m, b, negated=True)


# --- choices

_NOT = op.Not(c)


@rule(
    op.Where(_NOT, x, y),
    before="(bool[N,3] c, float[3] x, float z) => (float[N,3] y) { n = Not(c)  y = Where(n, x, z) }",
    after="(bool[N,3] c, float[3] x, float z) => (float[N,3] y) { y = Where(c, z, x) }",
    unless=[
        "(bool[2] c, float[2] x, float[2] z) => (float[2] y, bool[2] n) { n = Not(c)  y = Where(n, x, z) }",
        "(bool[2] c, bool[2] x, bool[2] z) => (bool[2] y) { n = Not(c)  t = Where(n, x, z)  y = And(n, t) }",
    ],
    keep=(_NOT,),
    numeric="Z",
)
def where_not(m: Match, b: Builder) -> Value | Miss:
    """Where of Not takes the branches the other way round; the runtime may make 0.0 of -0.0 in one of them."""
    if not all(_chooses_by(user, m[_NOT]) for user in m[_NOT].users):
        return b.no("the Not is read by others and would stay")
    made: Value = b.Where(m[c], m[y], m[x])
    return made


def _chooses_by(node: Node, condition: Value) -> bool:
    """True if a node reads a value as the condition of a Where, and nowhere else."""
    return node.is_op("Where") and [place for place, value in enumerate(node.operands) if value is condition] == [0]


@rule(
    op.Where(c, _true, _false),
    before="(bool[N,3] c) => (bool[N,3] y) <bool t = {1}, bool f = {0}> { w = Where(c, t, f)  y = Not(w) }",
    after="(bool[N,3] c) => (bool[N,3] y) { y = Not(c) }",
    unless=[
        "(bool[2] c) => (int64[2] y) <int64 t = {1}, int64 f = {0}> { w = Where(c, t, f)  y = Abs(w) }",
        "(bool[2] c) => (bool[2] y) <bool t = {0}, bool f = {1}> { w = Where(c, t, f)  y = Not(w) }",
        "(bool[2] c) => (bool[3,2] y) <bool[3,1] t = {1,1,1}, bool f = {0}> { w = Where(c, t, f)  y = Not(w) }",
    ],
)
def where_true_false(m: Match, b: Builder) -> Value | Miss:
    """A Where between True and False is its condition."""
    value: Value = m[c]
    return value if same_type(value, m.root.result) else b.no("the branches may widen the condition, or be numbers")


@rule(
    op.Where(c, _false, _true),
    before="(bool[N,3] c) => (bool[N,3] y) <bool t = {1}, bool f = {0}> { y = Where(c, f, t) }",
    after="(bool[N,3] c) => (bool[N,3] y) { y = Not(c) }",
    unless=["(bool[2] c) => (bool[3,2] y) <bool[3,1] t = {1,1,1}, bool f = {0}> { y = Where(c, f, t) }"],
)
def where_false_true(m: Match, b: Builder) -> Value | Miss:
    """A Where between False and True is Not of its condition."""
    made: Value = b.Not(m[c])
    return made if same_type(m[c], m.root.result) else b.no("the branches may widen the condition, or be numbers")


_INNER_ELSE = op.Where(c, y, z)


@rule(
    op.Where(c, x, _INNER_ELSE),
    before="""(bool[N,3] c, int64[3] x, int64[3] z, int64[3] w) => (int64[N,3] y)
              { t = Where(c, z, w)  y = Where(c, x, t) }""",
    after="(bool[N,3] c, int64[3] x, int64[3] z, int64[3] w) => (int64[N,3] y) { y = Where(c, x, w) }",
    unless=[
        """(bool[3] c, bool[3] d, int64[3] x, int64[3] z, int64[3] w) => (int64[3] y)
           { t = Where(d, z, w)  y = Where(c, x, t) }""",
        """(bool[1] c, int64[1] x, int64[3] z, int64[1] w) => (int64[3] y)
           { t = Where(c, z, w)  y = Where(c, x, t) }""",
    ],
    numeric="Z",
)
def where_else_where(m: Match, b: Builder) -> Value | Miss:
    """In the else branch of a condition, a Where by the same condition takes its else branch; so does then."""
    made: Value = b.Where(m[c], m[x], m[z])
    return made if same_type(made, m.root.result) else b.no("the branch never taken may widen the result")


_INNER_THEN = op.Where(c, y, z)


@rule(
    op.Where(c, _INNER_THEN, x),
    before="""(bool[N,3] c, int64[3] x, int64[3] z, int64[3] w) => (int64[N,3] y)
              { t = Where(c, z, w)  y = Where(c, t, x) }""",
    after="(bool[N,3] c, int64[3] x, int64[3] z, int64[3] w) => (int64[N,3] y) { y = Where(c, z, x) }",
    unless=[
        """(bool[3] c, bool[3] d, int64[3] x, int64[3] z, int64[3] w) => (int64[3] y)
           { t = Where(d, z, w)  y = Where(c, t, x) }""",
    ],
    numeric="Z",
)
def where_then_where(m: Match, b: Builder) -> Value | Miss:
    """In the then branch of a condition, a Where by the same condition takes its then branch."""
    made: Value = b.Where(m[c], m[y], m[x])
    return made if same_type(made, m.root.result) else b.no("the branch never taken may widen the result")
