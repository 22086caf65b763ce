"""Ask the installed ONNX Runtime which kernels a provider has, and add them to the tables of graphopt's targets.

    python benchmarks/make_kernel_table.py [cpu|cuda] [--folder graphopt/targets/kernels]

Run it with every version of the runtime that a target shall know; each adds an entry of its minor version.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from graphopt.runtime.kernels import kernels_of
from graphopt.runtime.session import full_provider_name, runtime, starts

_FOLDER = Path(__file__).resolve().parents[1] / "graphopt" / "targets" / "kernels"


def main() -> None:
    """Ask, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("provider", nargs="?", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--folder", type=Path, default=_FOLDER)
    arguments = parser.parse_args()
    provider = full_provider_name(arguments.provider)
    if not starts(provider):
        raise SystemExit(f"{provider} does not start here; see graphopt doctor")
    path = arguments.folder / f"{arguments.provider}.json"
    document = json.loads(path.read_text()) if path.exists() else {"provider": provider, "versions": {}}
    version = ".".join(runtime().__version__.split(".")[:2])
    document["versions"][version] = kernels_of(provider)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    path.write_text(_text(document))
    print(f"{path}: {len(document['versions'][version])} operators of ONNX Runtime {version}")


def _text(document: dict[str, object]) -> str:
    """JSON with a line for each operator, so that two versions can be compared by eye."""
    versions = document["versions"]
    assert isinstance(versions, dict)
    blocks = []
    for version, operators in sorted(versions.items(), key=lambda item: [int(part) for part in item[0].split(".")]):
        lines = [f"      {json.dumps(key)}: {json.dumps(dtypes)}" for key, dtypes in sorted(operators.items())]
        blocks.append(f"    {json.dumps(version)}: {{\n" + ",\n".join(lines) + "\n    }")
    head = f'{{\n  "provider": {json.dumps(document["provider"])},\n  "versions": {{\n'
    return head + ",\n".join(blocks) + "\n  }\n}\n"


if __name__ == "__main__":
    main()
