"""Which files a run over models reads and writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from graphopt.errors import UsageError


def files_of(sources: list[Path], output: Path | None, out_dir: Path | None) -> list[tuple[str, str]]:
    """Pairs of model and file to write.

    Raises:
        UsageError: the combination of arguments makes no sense.
    """
    if out_dir is not None:
        if output is not None:
            raise UsageError("give -o for one model or --out-dir for several, not both")
        names = [path.name for path in sources]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise UsageError(f"two inputs are called '{twice}', and their results would be too; rename one")
        return [(str(path), str(out_dir / path.name)) for path in sources]
    if len(sources) == 2 and output is None:
        return [(str(sources[0]), str(sources[1]))]
    if len(sources) > 1:
        raise UsageError("several models need --out-dir")
    source = sources[0]
    if not source.name or source.is_dir():
        raise UsageError(f"'{source}' is a folder; name the .onnx file in it")
    return [(str(source), str(output or source.with_name(f"{source.name.removesuffix('.onnx')}.opt.onnx")))]


@contextmanager
def folder_for(path: Path | None) -> Iterator[None]:
    """Make the folder for results; one that was made in vain goes again."""
    made = []
    try:
        if path is not None:
            made = [folder for folder in (path, *path.parents) if not folder.exists()]
            path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder '{path}': {error.strerror}; choose another") from error
    try:
        yield
    finally:
        for folder in made:
            with suppress(OSError):  # there is something in it
                folder.rmdir()


def files_read(
    load: list[Path] | None, custom_ops: list[Path] | None, data: str | None, plan: Path | None
) -> tuple[str, ...]:
    """The files a run reads beside the model."""
    paths = [*(load or ()), *(custom_ops or ()), *([plan] if plan is not None else ())]
    script = [] if data is None else [data, data.rpartition(":")[0]]
    return tuple(map(str, [*paths, *filter(None, script)]))
