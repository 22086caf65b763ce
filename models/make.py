"""Make the models in this folder, check them, or make the big ones that the benchmarks use.

    python models/make.py              rewrite the committed models and the manifest (needs torch, onnx, onnxscript)
    python models/make.py --check      compare the files with the manifest; exit 1 if one differs
    python models/make.py --big DIR    write the big models into DIR (about 700 MB, needs torch)

Weights are random with fixed seeds and belong to nobody. The same versions of the exporter give the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import exports
from exports import SEED

HERE = Path(__file__).resolve().parent
MANIFEST = HERE / "manifest.toml"
LICENCE = "Apache-2.0"

Feeds = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one model is made: the file, what it is, the function that writes it, and numpy feeds it runs on."""

    file: str
    what: str
    write: Callable[[Path], None]
    feeds: Callable[[], Feeds]


# --- feeds


def text_feeds(vocabulary: int, types: bool = True) -> Feeds:
    """Make ids, a mask with one padded row, and token types, each `[2, 6]`."""
    import numpy as np

    feeds = {"input_ids": np.arange(12, dtype=np.int64).reshape(2, 6) * 7 % vocabulary}
    feeds["attention_mask"] = np.array([[1] * 6, [1] * 4 + [0] * 2], np.int64)
    if types:
        feeds["token_type_ids"] = np.array([[0] * 6, [0] * 3 + [1] * 3], np.int64)
    return feeds


def decoder_feeds() -> Feeds:
    """Make one step of three tokens after a cache of four."""
    import numpy as np

    random = np.random.RandomState(SEED)
    feeds: Feeds = {"input_ids": np.array([[3, 1, 4], [1, 5, 9]], np.int64)}
    feeds["attention_mask"] = np.array([[1] * 7, [0] * 2 + [1] * 5], np.int64)
    for index in range(2):
        for part in ("key", "value"):
            feeds[f"past_key_values.{index}.{part}"] = random.standard_normal((2, 2, 4, 6)).astype(np.float32)
    return feeds


def image_feeds() -> Feeds:
    """Make two images, channels first."""
    import numpy as np

    return {"image": np.random.RandomState(SEED).standard_normal((2, 3, 64, 64)).astype(np.float32)}


def channels_last_feeds() -> Feeds:
    """Make two images of bytes, channels last."""
    import numpy as np

    return {"image": np.random.RandomState(SEED).randint(0, 256, (2, 32, 32, 3)).astype(np.uint8)}


def voice_feeds() -> Feeds:
    """Make 800 samples of two voices at 8 kHz (the inner branch)."""
    import numpy as np

    random = np.random.RandomState(SEED)
    audio = random.standard_normal((2, 800)).astype(np.float32)
    state = random.standard_normal((2, 2, 16)).astype(np.float32)
    return {"audio": audio, "state": state, "sample_rate": np.array(8000, np.int64)}


SMALL = (
    Recipe(
        "resnet.onnx",
        "residual image classifier, BatchNormalization kept, a depthwise block, dynamic batch",
        exports.write_resnet,
        image_feeds,
    ),
    Recipe(
        "encoder.onnx",
        "BERT-like text encoder, 2 layers, dynamic batch and sequence",
        exports.write_encoder,
        lambda: text_feeds(60),
    ),
    Recipe(
        "decoder.onnx",
        "Llama-like language model, 2 layers, grouped heads, key/value cache in and out",
        exports.write_decoder,
        decoder_feeds,
    ),
    Recipe(
        "channels_last.onnx",
        "channels-last image classifier in the form TensorFlow converters write",
        exports.write_channels_last,
        channels_last_feeds,
    ),
    Recipe(
        "voice_detector.onnx",
        "scripted voice detector: nested If around convolutions, LSTM, carried state",
        exports.write_voice_detector,
        voice_feeds,
    ),
)
BIG = (
    Recipe(
        "gpt2.onnx",
        "GPT-2 small with random weights: 12 layers, width 768, 50,257 words",
        lambda path: exports.write_gpt(path, 12, 768, 12, 50257, 1024),
        lambda: text_feeds(50257, types=False),
    ),
    Recipe(
        "gpt2_thin.onnx",
        "the same graph with width 96",
        lambda path: exports.write_gpt(path, 12, 96, 4, 1000, 128),
        lambda: text_feeds(1000, types=False),
    ),
    Recipe(
        "encoder_deep.onnx",
        "the BERT-like encoder with 12 thin layers: about a thousand nodes",
        exports.write_deep_encoder,
        lambda: text_feeds(200),
    ),
)


# --- manifest, checks


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def count_nodes(graph: Any) -> int:
    """Count the nodes of a GraphProto and of the bodies inside it, Constant nodes left out."""
    return sum((node.op_type != "Constant") + sum(map(count_nodes, bodies(node))) for node in graph.node)


def bodies(node: Any) -> Iterator[Any]:
    """Yield the graphs in the attributes of a NodeProto."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def entry(recipe: Recipe, path: Path) -> dict[str, str | int]:
    """Describe a model file for the manifest."""
    import onnx

    model = onnx.load(path)
    source = getattr(recipe.write, "__name__", "")
    return {
        "file": recipe.file,
        "what": recipe.what,
        "source": f"models/exports.py, {source}()",
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "licence": LICENCE,
        "sha256": sha256(path),
        "bytes": path.stat().st_size,
        "nodes": count_nodes(model.graph),
        "opset": next(opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx")),
    }


def run(recipe: Recipe, path: Path) -> list[Any]:
    """Check a model with the ONNX checker and run it on ONNX Runtime's CPU provider; return its outputs.

    Raises:
        SystemExit: If an output holds a number that is not finite.
    """
    import numpy as np
    import onnx
    import onnxruntime

    onnx.checker.check_model(str(path))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    outputs: list[Any] = session.run(None, recipe.feeds())
    if not all(np.isfinite(output).all() for output in outputs):
        raise SystemExit(f"{path.name} gives numbers that are not finite: change its weights or its feeds")
    return outputs


def read_manifest() -> list[dict[str, Any]]:
    """Read the entries of the manifest."""
    with MANIFEST.open("rb") as file:
        models: list[dict[str, Any]] = tomllib.load(file)["model"]
    return models


def write_manifest(entries: list[dict[str, str | int]]) -> None:
    """Write the manifest, one table a model."""
    lines = ["# Written by make.py. Nodes: Constant nodes are not counted, those in bodies are.", ""]
    for table in entries:
        lines.append("[[model]]")
        lines += [
            f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}" for key, value in table.items()
        ]
        lines.append("")
    MANIFEST.write_text("\n".join(lines), encoding="utf-8")


def check() -> list[str]:
    """Compare the files with the manifest; return what is wrong, one line each."""
    wrong: list[str] = []
    for table in read_manifest():
        path = HERE / table["file"]
        if not path.exists():
            wrong.append(f"{path.name} is missing: run `python models/make.py`")
        elif sha256(path) != table["sha256"]:
            wrong.append(f"{path.name} is not the file in the manifest: restore it, or run `python models/make.py`")
    return wrong


def make(recipes: tuple[Recipe, ...], folder: Path) -> list[dict[str, str | int]]:
    """Write models into a folder, run each once, and describe them."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for recipe in recipes:
        path = folder / recipe.file
        recipe.write(path)
        run(recipe, path)
        entries.append(entry(recipe, path))
        print(f"{recipe.file}: {entries[-1]['nodes']} nodes, {int(entries[-1]['bytes']):,} bytes", flush=True)
    return entries


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--check", action="store_true", help="compare the files with the manifest")
    choice.add_argument("--big", type=Path, metavar="DIR", help="write the big models into DIR")
    options = parser.parse_args()
    if options.check:
        wrong = check()
        print("\n".join(wrong) or "all models are as the manifest says", file=sys.stderr if wrong else sys.stdout)
        return 1 if wrong else 0
    if options.big:
        make(BIG, options.big)
        return 0
    write_manifest(make(SMALL, HERE))
    return 0


if __name__ == "__main__":
    sys.exit(main())
