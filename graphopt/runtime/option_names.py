"""Which options a provider has and which entries a session knows, as the runtime tells; called in the worker."""

from __future__ import annotations

import importlib
import mmap
from pathlib import Path

from graphopt.errors import ExecutionError
from graphopt.runtime.session import PROBE, Session, SessionSettings


def option_names_here(provider: str) -> tuple[str, ...]:
    """The options that a provider says it has; none where it does not say."""
    try:
        session = Session(PROBE, SessionSettings(provider=provider))
    except ExecutionError:
        return ()
    return tuple(sorted(session.raw.get_provider_options().get(provider, {})))


def mentions_here(entry: str) -> bool:
    """Whether the runtime's own library has the name of an entry in it, so that newer ones are known, too."""
    package = importlib.import_module("onnxruntime.capi")
    for path in sorted(Path(str(package.__file__)).parent.glob("onnxruntime_pybind11_state*")):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data.find(b"\0" + entry.encode() + b"\0") >= 0:
                return True
    return False
