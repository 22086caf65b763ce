"""Seeded inputs for models: from a list of input specifications beside the models, else from the declared types.

A folder of models may hold `models.json` (a list of entries with `file` and `inputs`) and `zip_index.json` (for each
zip file, `members` with `member` and `inputs`). An input is a name, a dtype, a shape and how to fill it: `randn` (half
a standard normal), `randint(a,b)`, `const:v`, `arange`, `bool` or `str`.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto

Feeds = dict[str, Any]
BATCH = 2
SIZES_TO_TRY = (2, 8, 64, 640)  # for dims whose size is not declared; the first that the original runs on is used
TOTALS = {  # dims that are sums by convention, though their names do not say so
    "total_sequence": ["past_sequence", "sequence"],
    "total_sequence_length": ["past_sequence_length", "sequence_length"],
}
INTEGER_LIMIT = 2  # guessed integers are 0 or 1, valid as masks and as indices of nearly anything


@dataclass(frozen=True, slots=True)
class InputSpec:
    """How to fill one input."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    fill: str


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the numpy dtype of a dtype's name, bfloat16 and the float8 family included."""
    return np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else np.dtype(name)


def read_index(folder: Path) -> dict[str, list[InputSpec]]:
    """Read the specifications beside a folder's models.

    Returns:
        For `FILE` and for `ZIP/MEMBER` the inputs; models that are not known to run are left out.
    """
    found: dict[str, list[InputSpec]] = {}
    if (folder / "models.json").exists():
        for entry in json.loads((folder / "models.json").read_text(encoding="utf-8")):
            if entry.get("inputs") is not None:
                found[entry["file"]] = parse_specs(entry["inputs"])
    if (folder / "zip_index.json").exists():
        for archive, content in json.loads((folder / "zip_index.json").read_text(encoding="utf-8")).items():
            for entry in content["members"]:
                if entry.get("inputs") is not None:
                    found[f"{archive}/{entry['member']}"] = parse_specs(entry["inputs"])
    return found


def parse_specs(entries: Sequence[dict[str, Any]]) -> list[InputSpec]:
    """Turn the JSON form of inputs into specifications."""
    return [InputSpec(entry["name"], entry["dtype"], tuple(entry["shape"]), entry["gen"]) for entry in entries]


def guess_specs(model: onnx.ModelProto, size: int) -> list[InputSpec] | str:
    """Make specifications from the declared types of the inputs that must be fed, or say why that is impossible.

    Args:
        model: The model.
        size: For dims whose size is not declared, save those that lead an input: batches are 2.
    """
    specs = []
    leading = {value.type.tensor_type.shape.dim[0].dim_param for value in model.graph.input if rank(value)}
    for value in required_inputs(model):
        if not value.type.HasField("tensor_type"):
            return f"input {value.name} is not a tensor"
        tensor = value.type.tensor_type
        if not tensor.HasField("shape"):
            return f"input {value.name} has no declared rank"
        if tensor.elem_type == TensorProto.STRING:
            dtype, how = "str", "str"
        else:
            numpy_type = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            dtype, how = numpy_type.name, guess_fill(value.name, numpy_type)
        sizes = []
        for axis, dim in enumerate(tensor.shape.dim):
            terms = dim_terms(dim, value.name, axis)
            sizes.append(sum(BATCH if axis == 0 or term in leading else size for term in terms) or dim.dim_value)
        specs.append(InputSpec(value.name, dtype, tuple(sizes), how))
    return specs


def rank(value: onnx.ValueInfoProto) -> int:
    """Return the number of dims of an input, 0 if unknown."""
    return len(value.type.tensor_type.shape.dim)


def dim_terms(dim: onnx.TensorShapeProto.Dimension, name: str, axis: int) -> list[str]:
    """Return the symbols that a dim is the sum of: none if it is a number, two for `past + sequence`."""
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return []
    if dim.dim_param in TOTALS:
        return TOTALS[dim.dim_param]
    return [term.strip() for term in dim.dim_param.split("+")] if dim.dim_param else [f"{name}[{axis}]"]


def guess_fill(name: str, dtype: np.dtype[Any]) -> str:
    """Guess how to fill an input from its name and dtype."""
    if dtype.kind == "b":
        return "bool"
    if "mask" in name.lower():
        return "const:1"
    return f"randint(0,{INTEGER_LIMIT})" if dtype.kind in "iu" else "randn"


def required_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs without a default."""
    initialized = {tensor.name for tensor in model.graph.initializer}
    initialized |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    return [value for value in model.graph.input if value.name not in initialized]


def fill(spec: InputSpec, seed: int) -> Any:
    """Make the array for one input; the seed and the name decide its content."""
    random = np.random.RandomState((zlib.crc32(spec.name.encode()) + seed) & 0x7FFFFFFF)
    if spec.fill == "str":
        words = random.choice(["a", "b", "word", "other"], spec.shape)
        return np.asarray(words, dtype=object)
    dtype = dtype_of(spec.dtype)
    if spec.fill == "randn":
        return np.asarray(0.5 * random.standard_normal(spec.shape)).astype(dtype)
    if spec.fill == "bool":
        return np.asarray(random.random_sample(spec.shape) > 0.5).astype(dtype)
    if spec.fill == "arange":
        return np.arange(np.prod(spec.shape, dtype=int)).reshape(spec.shape).astype(dtype)
    if spec.fill.startswith("const:"):
        return np.full(spec.shape, float(spec.fill[6:])).astype(dtype)
    limits = re.fullmatch(r"randint\((-?\d+),(-?\d+)\)", spec.fill)
    if limits is None:
        raise ValueError(
            f"{spec.fill!r} is not a way to fill an input: use randn, randint(a,b), const:v, arange, bool or str"
        )
    return np.asarray(random.randint(int(limits[1]), int(limits[2]), spec.shape)).astype(dtype)


def make_feeds(specs: Sequence[InputSpec], seed: int = 0) -> Feeds:
    """Make one set of feeds."""
    return {spec.name: fill(spec, seed) for spec in specs}


def other_sizes(model: onnx.ModelProto, specs: Sequence[InputSpec]) -> Iterator[list[InputSpec]]:
    """Yield the specifications at other sizes of the symbolic dims: all dims one larger, then each alone.

    Not every combination suits a model; the caller keeps the first that the original runs on.
    """
    symbols: dict[str, None] = {}
    places: dict[tuple[str, int], list[str]] = {}
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            places[value.name, axis] = dim_terms(dim, value.name, axis)
            symbols.update(dict.fromkeys(places[value.name, axis]))
    if not symbols:
        return
    for grown in [list(symbols), *([symbol] for symbol in list(symbols)[:4] if len(symbols) > 1)]:
        more = {place: sum(term in grown for term in terms) for place, terms in places.items()}
        yield [
            replace(spec, shape=tuple(size + more.get((spec.name, axis), 0) for axis, size in enumerate(spec.shape)))
            for spec in specs
        ]


def nudge(feeds: Feeds) -> Feeds:
    """Move every float number to its next neighbour: the change that tells how much rounding a model amplifies."""
    return {
        name: np.nextafter(array, array.dtype.type(np.inf)) if array.dtype.kind == "f" else array
        for name, array in feeds.items()
    }
