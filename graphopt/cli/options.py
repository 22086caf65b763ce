"""Option texts that several commands share, and how their values are read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from graphopt.errors import UsageError

FILES, SIGNATURE, PASSES, COMPARISON, REPORT = "Files", "Signature", "Passes", "Comparison", "Report"
"""The headings under which options stand in the help and in the documentation."""

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document instead of a report.", rich_help_panel=REPORT)
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.", rich_help_panel=REPORT)]
Verbose = Annotated[
    int, typer.Option("--verbose", "-v", count=True, help="More detail; repeat for more.", rich_help_panel=REPORT)
]
Provider = Annotated[
    str,
    typer.Option(
        "--provider", help="auto, cpu, cuda, or a provider's name in the runtime.", rich_help_panel=COMPARISON
    ),
]
Providers = Annotated[
    list[str] | None,
    typer.Option(
        "--provider",
        metavar="NAME",
        help="auto, cpu, cuda, or a provider's name in the runtime; repeat it to compare on several.",
        rich_help_panel=COMPARISON,
    ),
]
ProviderOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--provider-option",
        metavar="NAME=VALUE",
        help="Option of the provider, as users will run it; of several, cuda:NAME=VALUE.",
        rich_help_panel=COMPARISON,
    ),
]
Dims = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=SIZE", help="Size of a free dim in the feeds.", rich_help_panel=COMPARISON),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape", metavar="INPUT=1,3,224,224", help="Shape of an input in the feeds.", rich_help_panel=COMPARISON
    ),
]
Ranges = Annotated[
    list[str] | None,
    typer.Option(
        "--range", metavar="INPUT=LOW:HIGH", help="Range of an input's values in the feeds.", rich_help_panel=COMPARISON
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DATA",
        help="Your own inputs: .npz, .npy, a test_data_set folder, or script.py:function.",
        rich_help_panel=COMPARISON,
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", min=0, max=2**63 - 1, help="Seed of the made feeds.", rich_help_panel=COMPARISON)
]


def finite(value: float | None) -> float | None:
    """A tolerance as given.

    Raises:
        BadParameter: It is infinite, or no number: then anything would be equal, or nothing.
    """
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no finite number")
    return value


Decode = Annotated[
    int | None,
    typer.Option(
        "--decode",
        min=0,
        max=4096,
        metavar="N",
        help="Tokens to compare on decoders, each side fed with its own past; by default up to 8, 0: none.",
        rich_help_panel=COMPARISON,
    ),
]
CustomOps = Annotated[
    list[Path] | None,
    typer.Option(
        "--custom-ops", metavar="LIB", help="Library of custom operators to register.", rich_help_panel=COMPARISON
    ),
]
Load = Annotated[
    list[Path] | None,
    typer.Option("--load", metavar="FILE.py", help="Python file with more passes.", rich_help_panel=PASSES),
]


def pairs(items: Iterable[str] | None, option: str, example: str) -> dict[str, str]:
    """`NAME=VALUE` items as a mapping.

    Raises:
        UsageError: an item has no `=`.
    """
    found: dict[str, str] = {}
    for item in items or ():
        name, separator, value = item.rpartition("=")
        if not separator or not name:
            raise UsageError(f"{option} wants {example}, not '{item}'")
        if name in found and found[name] != value:
            raise UsageError(f"{option} is given twice for '{name}'; decide on '{found[name]}' or '{value}'")
        found[name] = value
    return found


_TOO_LARGE = 1 << 63  # a dim is an int64


def sizes(items: Iterable[str] | None, option: str) -> dict[str, int]:
    """`NAME=SIZE` items.

    Raises:
        UsageError: a size is no number that is not negative.
    """
    example = f"{option} batch=8".removeprefix(option + " ")
    return {name: _integer(value, option, example) for name, value in pairs(items, option, example).items()}


def shapes(items: Iterable[str] | None, option: str, example: str = "x=1,3,224,224") -> dict[str, tuple[int, ...]]:
    """`INPUT=1,3,224,224` items; an empty list is a scalar.

    Raises:
        UsageError: a size is no number that is not negative.
    """
    return {
        name: tuple(_integer(size, option, example) for size in value.split(",") if size.strip())
        for name, value in pairs(items, option, example).items()
    }


def ranges(items: Iterable[str] | None) -> dict[str, tuple[float, float]]:
    """`INPUT=LOW:HIGH` items.

    Raises:
        UsageError: an end is no number, or they are the wrong way round.
    """
    found = {}
    for name, value in pairs(items, "--range", "x=0:255").items():
        low, separator, high = value.partition(":")
        try:
            ends = (float(low), float(high))
        except ValueError:
            separator = ""
        if not separator:
            raise UsageError(f"--range wants x=0:255, not '{name}={value}'")
        if not ends[0] <= ends[1]:
            raise UsageError(f"--range wants the low end first, as in x=0:255, not '{name}={value}'")
        found[name] = ends
    return found


def sweeps(items: Iterable[str] | None, settings: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """`NAME=1,8,32` items.

    Raises:
        UsageError: a size is no number that is not negative, or another option decides on the sizes already.
    """
    found = shapes(items, "--sweep", "batch=1,8,32")
    for name, chosen in found.items():
        if not chosen:
            raise UsageError(f"--sweep wants batch=1,8,32, and '{name}' has no size")
        if name in settings["dims"]:
            raise UsageError(f"--dim and --sweep both name '{name}'; leave one out")
    if found and settings["data"] is not None:
        raise UsageError("--data decides on the sizes of the inputs; leave it or --sweep out")
    return found


def names(text: str | None) -> tuple[str, ...] | None:
    """Names separated by commas; None where the option is not given.

    Raises:
        UsageError: the list is empty.
    """
    if text is None:
        return None
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise UsageError("a list of names is empty; leave the option out, or name at least one")
    return found


def value_names(text: str | None) -> tuple[str, ...] | None:
    """The names `--inputs` takes; data, which had that option once, is sent to its own.

    Raises:
        UsageError: it is a file or a function that gives data, or the list is empty.
    """
    if text is not None and (text.endswith((".npz", ".npy")) or ".py:" in text or any(Path(text).glob("*.pb"))):
        raise UsageError(f"--inputs names the values a model shall begin at; your own data is given by --data {text}")
    return names(text)


def feeds(
    provider: str | Iterable[str] | None,
    dim: Iterable[str] | None,
    shape: Iterable[str] | None,
    value_range: Iterable[str] | None,
    data: str | None,
    seed: int,
    custom_ops: Iterable[Path] | None,
    provider_option: Iterable[str] | None = None,
) -> dict[str, Any]:
    """Where and on what models are run, as `graphopt.verify` and `graphopt.benchmark` take it.

    Raises:
        UsageError: one of the options cannot be read.
    """
    found: dict[str, Any] = {
        "provider": providers(provider),
        "dims": sizes(dim, "--dim"),
        "shapes": shapes(shape, "--shape"),
        "ranges": ranges(value_range),
        "data": data,
        "seed": seed,
        "custom_ops": libraries(custom_ops),
    }
    if provider_option:
        found["provider_options"] = pairs(provider_option, "--provider-option", "use_tf32=0")
    return found


def providers(names: str | Iterable[str] | None) -> str | tuple[str, ...]:
    """The provider asked for, or several.

    Raises:
        UsageError: the runtime has none of that name in any build.
    """
    from graphopt.runtime.providers import AUTO, provider_names, short_name

    asked = [names] if isinstance(names, str) else [*(names or ())] or [AUTO]
    found = tuple(map(short_name, provider_names(asked)))
    return found[0] if len(found) == 1 else found


def one_provider(found: Mapping[str, Any], command: str) -> dict[str, Any]:
    """Options of a command that runs on one provider.

    Raises:
        UsageError: several are named.
    """
    if not isinstance(found["provider"], str):
        raise UsageError(
            f"graphopt {command} runs on one provider at a time; name one of {', '.join(found['provider'])}"
        )
    return dict(found)


def libraries(paths: Iterable[Path] | None) -> tuple[str, ...]:
    """Libraries of custom operators, each with its whole path: a loader looks for bare names elsewhere.

    Raises:
        UsageError: a file does not exist.
    """
    for path in paths or ():
        if not path.is_file():
            raise UsageError(f"there is no library '{path}'; check the path given to --custom-ops")
    return tuple(str(path.absolute()) for path in paths or ())


def _integer(text: str, option: str, example: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise UsageError(f"{option} wants {example}, and '{text}' is no size")
    if number >= _TOO_LARGE:
        raise UsageError(f"{option} wants {example}, and '{text}' is too large for a size")
    return number
