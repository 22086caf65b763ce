"""Constants: element types and tensors whose bytes are read only when somebody asks for them."""

from __future__ import annotations

from graphopt.tensors.dtype import DType
from graphopt.tensors.region import FileRegion
from graphopt.tensors.tensor import Tensor

__all__ = ["DType", "FileRegion", "Tensor"]
