"""Operator schemas by (domain, operator, opset), in plain Python and remembered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from onnx import defs, helper

from graphopt.tensors.dtype import DType

# Attributes that became operands under another name.
_RENAMED_PARAMETERS = {("TopK", "k"): "K", ("Pad", "value"): "constant_value", ("Pad", "paddings"): "pads"}


@dataclass(frozen=True, slots=True)
class Formal:
    """A formal input or output of an operator."""

    name: str
    optional: bool
    variadic: bool
    dtypes: frozenset[str]
    """Type strings as the schema spells them, for example `tensor(float)`."""
    type_variable: str


@dataclass(frozen=True, slots=True)
class Operator:
    """One version of one operator, as ONNX defines it."""

    domain: str
    op_type: str
    since: int
    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    min_inputs: int
    max_inputs: int
    min_outputs: int
    max_outputs: int
    attributes: Mapping[str, int]
    """Every attribute, with its kind as in `AttributeProto.type`."""
    required: frozenset[str]
    defaults: Mapping[str, Any]
    """Attributes with a default, in IR form: int, float, str or a tuple of them."""
    is_deprecated: bool = False
    """True if models of this version must no longer use it."""

    def input_index(self, name: str) -> int | None:
        """The position of the formal input `name`, or None; the names of older opsets' attributes will do."""
        name = _RENAMED_PARAMETERS.get((self.op_type, name), name)
        for index, formal in enumerate(self.inputs):
            if formal.name == name:
                return index
        return None

    def input_dtypes(self, index: int) -> frozenset[DType]:
        """Element types the formal input at `index` accepts as tensors; empty if unknown."""
        formal = self.inputs[min(index, len(self.inputs) - 1)] if self.inputs else None
        return frozenset() if formal is None else _tensor_dtypes(formal.dtypes)


@cache
def _tensor_dtypes(texts: frozenset[str]) -> frozenset[DType]:
    names = {dtype.text: dtype for dtype in DType}
    return frozenset(names[text[7:-1]] for text in texts if text.startswith("tensor(") and text[7:-1] in names)


@cache
def operator(domain: str, op_type: str, opset: int) -> Operator | None:
    """The version of an operator that a model importing `opset` of `domain` uses; None if ONNX does not know it."""
    try:
        schema = defs.get_schema(op_type, opset, domain)
    except defs.SchemaError:
        return None
    return _convert(schema)


def _formal(parameter: Any) -> Formal:
    option = defs.OpSchema.FormalParameterOption
    return Formal(
        name=parameter.name,
        optional=parameter.option == option.Optional,
        variadic=parameter.option == option.Variadic,
        dtypes=frozenset(parameter.types),
        type_variable=parameter.type_str,
    )


def _convert(schema: Any) -> Operator:
    defaults = {
        name: _plain(helper.get_attribute_value(attribute.default_value))
        for name, attribute in schema.attributes.items()
        if attribute.default_value.name
    }
    return Operator(
        domain=schema.domain,
        op_type=schema.name,
        since=schema.since_version,
        inputs=tuple(_formal(parameter) for parameter in schema.inputs),
        outputs=tuple(_formal(parameter) for parameter in schema.outputs),
        min_inputs=schema.min_input,
        max_inputs=schema.max_input,
        min_outputs=schema.min_output,
        max_outputs=schema.max_output,
        attributes={name: int(attribute.type.value) for name, attribute in schema.attributes.items()},
        required=frozenset(name for name, attribute in schema.attributes.items() if attribute.required),
        defaults=defaults,
        is_deprecated=schema.deprecated,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (list, tuple)):
        return tuple(_plain(item) for item in value)
    return value


@cache
def versions(op_type: str, domain: str = "") -> tuple[int, ...]:
    """The opsets in which an operator came or changed, oldest first; empty for one that ONNX does not know."""
    return _versions().get((domain, op_type), ())


@cache
def _versions() -> dict[tuple[str, str], tuple[int, ...]]:
    found: dict[tuple[str, str], list[int]] = {}
    for schema in defs.get_all_schemas_with_history():
        found.setdefault((schema.domain, schema.name), []).append(schema.since_version)
    return {key: tuple(sorted(numbers)) for key, numbers in sorted(found.items())}


def operator_names(domain: str = "") -> tuple[str, ...]:
    """Every operator of a domain that ONNX knows in any opset."""
    return tuple(op_type for home, op_type in _versions() if home == domain)


@cache
def latest_opset(domain: str = "") -> int:
    """The newest opset of a standard domain that the installed onnx knows; 1 for a domain it does not know."""
    if domain == "":
        return int(defs.onnx_opset_version())
    versions = [schema.since_version for schema in defs.get_all_schemas_with_history() if schema.domain == domain]
    return max(versions, default=1)


@cache
def min_ir_version(opset: int) -> int:
    """The oldest IR version a model of that standard opset may declare."""
    return int(helper.OP_SET_ID_VERSION_MAP.get(("ai.onnx", opset), 3))
