"""Patterns as data: what a rule looks for.

A pattern looks like the graph it matches:

    x, p, q = var("x"), attr("perm"), attr("perm")
    op.Transpose(op.Transpose(x, perm=p), perm=q)

Operands are positional; None demands an omitted one, `...` at the end allows more. A keyword is a parameter by the
name ONNX gives it, whether the model's opset spells it as an attribute or as an operand; its default is filled in
before it is compared. The same variable twice is the same value twice. What the pattern does not mention may be
anything: the rule must carry it over or refuse.
"""

from __future__ import annotations

from collections.abc import Callable
from types import EllipsisType
from typing import Any, TypeAlias

from graphopt.ir import Value
from graphopt.tensors import DType


class Variable:
    """Any value; everywhere in a pattern the same one."""

    __slots__ = ("dtypes", "name", "rank", "where")

    def __init__(
        self, name: str, dtypes: frozenset[DType], rank: int | None, where: Callable[[Value], bool] | None
    ) -> None:
        self.name = name
        self.dtypes = dtypes
        self.rank = rank
        self.where = where

    def __repr__(self) -> str:
        return self.name


class Attribute:
    """Any value of a parameter that is known before the model runs."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"attr {self.name}"


class Constant:
    """A constant: any, or one whose every element is `value`."""

    __slots__ = ("name", "value")

    def __init__(self, name: str, value: float | bool | None) -> None:
        self.name = name
        self.value = value

    def __repr__(self) -> str:
        return self.name if self.value is None else f"const({self.value})"


class Application:
    """One result of an operator application."""

    __slots__ = ("domain", "more", "op_types", "operands", "parameters", "result")

    def __init__(
        self,
        op_types: tuple[str, ...],
        domain: str,
        operands: tuple[Operand, ...],
        parameters: dict[str, Any],
        more: bool,
        result: int = 0,
    ) -> None:
        self.op_types = op_types
        self.domain = domain
        self.operands = operands
        self.parameters = parameters
        self.more = more
        self.result = result

    def __getitem__(self, result: int) -> Application:
        """The same application read at another result."""
        return Application(self.op_types, self.domain, self.operands, self.parameters, self.more, result)

    @property
    def depth(self) -> int:
        """How many applications lie on the longest way from here to a leaf."""
        return 1 + max((item.depth for item in self.operands if isinstance(item, Application)), default=0)

    def applications(self) -> list[Application]:
        """This and every inner application, outermost first."""
        found = [self]
        for item in self.operands:
            if isinstance(item, Application):
                found.extend(item.applications())
        return found

    def __repr__(self) -> str:
        return f"{'|'.join(self.op_types)}({', '.join(map(repr, self.operands))})"


Operand: TypeAlias = Variable | Constant | Application | None
Term: TypeAlias = Operand | float | bool | EllipsisType


class _Operators:
    """Makes patterns: `op.Relu(x)`, `op.one_of("Add", "Mul")(x, y)`, `op.domain("com.microsoft").Gelu(x)`."""

    __slots__ = ("_domain",)

    def __init__(self, domain: str = "") -> None:
        self._domain = domain

    def __getattr__(self, op_type: str) -> Callable[..., Application]:
        if op_type.startswith("_"):
            raise AttributeError(op_type)
        return self.one_of(op_type)

    def one_of(self, *op_types: str) -> Callable[..., Application]:
        """An application of any of several operators."""

        def make(*operands: Term, **parameters: Any) -> Application:
            more = bool(operands) and operands[-1] is ...
            kept = operands[:-1] if more else operands
            return Application(op_types, self._domain, tuple(_operand(item) for item in kept), parameters, more)

        return make

    def domain(self, name: str) -> _Operators:
        """The operators of another domain."""
        return _Operators(name)


def _operand(item: Term) -> Operand:
    if item is ...:
        raise TypeError("'...' may only stand last among the operands of a pattern")
    if isinstance(item, (bool, int, float)):
        return Constant("constant", item)
    assert not isinstance(item, EllipsisType)
    return item


op = _Operators()
"""Operators, as patterns: `op.Transpose(x, perm=p)`."""


def var(
    name: str,
    *,
    dtype: DType | tuple[DType, ...] | None = None,
    rank: int | None = None,
    where: Callable[[Value], bool] | None = None,
) -> Variable:
    """Any value.

    Args:
        name: For messages.
        dtype: Element types it may have.
        rank: The rank it must be known to have.
        where: A further condition on the value.
    """
    dtypes = () if dtype is None else dtype if isinstance(dtype, tuple) else (dtype,)
    return Variable(name, frozenset(dtypes), rank, where)


def attr(name: str) -> Attribute:
    """A parameter to be bound, known before the model runs; `name` is for messages."""
    return Attribute(name)


def const(value: float | bool | str | None = None) -> Constant:
    """A constant to be bound: any, or one whose every element is `value`; a string is a name for messages."""
    return Constant(value, None) if isinstance(value, str) else Constant("constant", value)
