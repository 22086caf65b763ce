"""ONNX's text syntax, as rules spell their examples."""

from __future__ import annotations

import re

from onnx import ModelProto, parser

from graphopt.errors import RuleError
from graphopt.schema import min_ir_version


def parse_text(text: str, opsets: dict[str, int]) -> ModelProto:
    """A model of a graph in text syntax.

    Args:
        text: `(float[2] x) => (float[2] y) { y = Relu(x) }`; local functions may follow the graph.
        opsets: Opset imports by domain, "" for the standard one.

    Raises:
        RuleError: the text does not parse; the message quotes the place.
    """
    imports = ", ".join(f'"{domain}" : {version}' for domain, version in opsets.items())
    ir_version = max(8, min_ir_version(opsets.get("", 1)))
    body = text.strip()
    # The parser wants a name before the inputs; examples leave it out.
    named = body if re.match(r"[A-Za-z_]\w*\s*\(", body) else f"example {body}"
    try:
        return parser.parse_model(f"<ir_version: {ir_version}, opset_import: [{imports}]>\n{named}")
    except parser.ParseError as error:
        raise RuleError(f"this example does not parse: {error}; see ONNX's text syntax\n{body}") from error


def print_text(model: ModelProto) -> str:
    """A model in text syntax, for people."""
    from onnx import printer

    return str(printer.to_text(model))
