"""Constants: element types and tensors whose bytes are read only when somebody asks for them."""

from __future__ import annotations

from graphopt.tensors.dtype import DType
from graphopt.tensors.region import FileMapping, FileRegion, map_file
from graphopt.tensors.tensor import Array, Tensor, as_strings

__all__ = ["Array", "DType", "FileMapping", "FileRegion", "Tensor", "as_strings", "map_file"]
