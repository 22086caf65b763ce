"""Fusions for ONNX Runtime: parts of a model as the one operator that its providers have a kernel for.

They run for the targets `ort-cpu` and `ort-cuda`, once the passes for every target have settled: patterns are written
for the normal form that those leave. An operator is emitted only where the target's table of kernels has it.
"""

from __future__ import annotations

RUNTIME = ("ort-cpu", "ort-cuda")
"""The targets of passes whose operators both providers may have; the first one judges the examples."""

CUDA_ONLY = ("ort-cuda",)
"""The targets of passes whose operators only CUDA has."""
