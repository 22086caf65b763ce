"""ONNX files to IR and back."""

from __future__ import annotations

from graphopt.onnxio.loading import load
from graphopt.onnxio.metadata import metadata_of
from graphopt.onnxio.save import save
from graphopt.onnxio.text import parse_text
from graphopt.onnxio.writer import to_proto, write_model

__all__ = ["load", "metadata_of", "parse_text", "save", "to_proto", "write_model"]
