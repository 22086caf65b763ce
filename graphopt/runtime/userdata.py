"""The user's own inputs: `.npz`, `.npy`, ONNX `test_data_set_*` folders, `script.py:function`."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphopt.errors import FeedError
from graphopt.runtime.feeds import Feed
from graphopt.runtime.session import Port
from graphopt.runtime.values import Data, numpy_dtype

# A script may yield for ever; this many feeds are taken where the user does not say how many runs.
_FROM_A_SCRIPT = 16


def read_data(where: str | Path, ports: Sequence[Port], runs: int | None = None) -> list[Feed]:
    """Read the user's inputs.

    Args:
        where: A `.npz` (input name -> array), a `.npy` (for a model with one input), a `test_data_set_*` folder or a
            folder of such, or `script.py:function`, a function that returns a dict or an iterable of dicts.
        ports: Inputs of the model.
        runs: At most so many feeds.

    Raises:
        FeedError: Nothing can be read there, or it does not fit the model's inputs.
    """
    text = str(where)
    path = Path(text)
    required = [port for port in ports if not port.overridable]
    if path.suffix == ".npz":
        feeds = [Feed(path.name, _npz(path))]
    elif path.suffix == ".npy":
        if len(required) != 1:
            raise FeedError(
                f"{path.name} holds one array and the model has {len(required)} inputs; use a .npz with their names"
            )
        feeds = [Feed(path.name, {required[0].name: _load(path)})]
    elif path.is_dir():
        feeds = _test_data(path, required)
    elif ".py:" in text:
        feeds = _script(text, runs)
    else:
        raise FeedError(
            f"cannot read inputs from {text}; give a .npz, .npy, test_data_set folder or script.py:function"
        )
    if runs is not None:
        feeds = feeds[:runs]
    if not feeds:
        raise FeedError(f"{text} holds no inputs")
    return [Feed(feed.label, _fit(feed, ports)) for feed in feeds]


def _load(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise FeedError(f"cannot read {path}: {error}; write it with numpy.save or numpy.savez") from error


def _npz(path: Path) -> dict[str, Data]:
    with _load(path) as archive:
        return {name: archive[name] for name in archive.files}


def _fit(feed: Feed, ports: Sequence[Port]) -> dict[str, Data]:
    """Check names, and bring arrays to the dtype of the input where nothing is lost."""
    known = {port.name: port for port in ports}
    for name in feed.values:
        if name not in known:
            raise FeedError(f"{feed.label} has {name!r}, which is no input; inputs are {', '.join(known)}")
    missing = [port.name for port in ports if not port.overridable and port.name not in feed.values]
    if missing:
        raise FeedError(
            f"{feed.label} lacks the input{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}; add to it"
        )
    return {name: _cast(feed.label, value, known[name]) for name, value in feed.values.items()}


def _cast(label: str, value: Data, port: Port) -> Data:
    dtype = numpy_dtype(port.type)
    if dtype is None or value is None or isinstance(value, list | tuple | dict):
        return value
    array = np.asarray(value)
    if dtype.kind == "O" or array.dtype == dtype:
        return array
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
        lossless = array.dtype.kind != "O" and (
            cast.dtype.kind == "f" or bool(np.array_equal(cast.astype(array.dtype), array))
        )
    if not lossless:
        raise FeedError(
            f"{label} has {array.dtype.name} for {port.name!r}, which is {port.type}, and a cast would lose values; "
            "cast it yourself"
        )
    return cast


def _test_data(folder: Path, required: Sequence[Port]) -> list[Feed]:
    sets = sorted(folder.glob("test_data_set_*")) if not folder.name.startswith("test_data_set_") else [folder]
    if not sets and list(folder.glob("input_*.pb")):
        sets = [folder]
    feeds = []
    for one in sets:
        files = sorted(one.glob("input_*.pb"), key=lambda file: int(file.stem.split("_")[-1]))
        if len(files) > len(required):
            raise FeedError(
                f"{one} holds {len(files)} inputs and the model has {len(required)}; "
                "check that it belongs to this model"
            )
        feeds.append(
            Feed(one.name, {port.name: _proto(file, port) for port, file in zip(required, files, strict=False)})
        )
    return feeds


def _proto(path: Path, port: Port) -> Data:
    import onnx
    from onnx import numpy_helper

    raw = path.read_bytes()
    try:
        if port.type.startswith("seq("):
            return numpy_helper.to_list(onnx.SequenceProto.FromString(raw))
        if port.type.startswith("optional("):
            return numpy_helper.to_optional(onnx.OptionalProto.FromString(raw))
        return numpy_helper.to_array(onnx.TensorProto.FromString(raw))
    except Exception as error:
        raise FeedError(f"cannot read {path} as {port.type}: {error}") from error


def _script(text: str, runs: int | None) -> list[Feed]:
    file, _, function = text.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise FeedError(f"there is no script {path}")
    spec = importlib.util.spec_from_file_location(f"graphopt_inputs_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise FeedError(f"{path} is no Python script")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        made = getattr(module, function)()
    except AttributeError:
        raise FeedError(f"{path} has no function {function!r}") from None
    except Exception as error:
        raise FeedError(f"{text} raised {type(error).__name__}: {error}") from error
    if isinstance(made, Mapping):
        return [Feed(f"{path.name}:{function}", dict(made))]
    if not isinstance(made, Iterable):
        raise FeedError(f"{text} returned a {type(made).__name__}; return a dict of arrays or an iterable of such")
    label = f"{path.name}:{function}"
    return [
        Feed(f"{label} {number}", dict(one))
        for number, one in enumerate(itertools.islice(made, runs or _FROM_A_SCRIPT), 1)
    ]
