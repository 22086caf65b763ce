"""The functions that write the models: one a model, each with the options people export such a model with."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

SEED = 20240607


def export(build: Callable[[Any, Any], tuple[Any, tuple[Any, ...]]], path: Path, **options: Any) -> None:
    """Export a network with PyTorch's TorchScript exporter.

    Args:
        build: Gets torch and the module of networks; returns the network in evaluation mode and example arguments.
        path: The file to write.
        options: Passed to `torch.onnx.export`; `script` scripts the network first, `training` is a mode's name.

    Raises:
        SystemExit: If PyTorch or what its exporter needs is not installed.
    """
    try:
        import networks
        import torch
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"making {path.name} needs {error.name}, which is not installed here; "
            "run `pip install torch onnx onnxscript onnxruntime` (the CPU build of torch is enough) and try again"
        ) from error
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    network, arguments = build(torch, networks)
    network.eval()
    networks.perturb(network, SEED)
    if options.pop("script", False):
        network = torch.jit.script(network)
    if "training" in options:
        options["training"] = getattr(torch.onnx.TrainingMode, options["training"])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(network, arguments, str(path), dynamo=False, **options)


def write_resnet(path: Path) -> None:
    """Export the residual network with its BatchNormalization nodes kept."""

    def build(torch: Any, networks: Any) -> tuple[Any, tuple[Any, ...]]:
        return networks.ResNet(), (torch.randn(2, 3, 64, 64),)

    export(
        build,
        path,
        opset_version=17,
        training="PRESERVE",
        do_constant_folding=False,
        input_names=["image"],
        output_names=["logits"],
        dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
    )


def write_encoder(path: Path) -> None:
    """Export the text encoder with dynamic batch and sequence."""

    def build(torch: Any, networks: Any) -> tuple[Any, tuple[Any, ...]]:
        ones = torch.ones(2, 8, dtype=torch.int64)
        return networks.Encoder(), (torch.arange(16).reshape(2, 8), ones, ones * 0)

    axes = {0: "batch", 1: "sequence"}
    names = ["input_ids", "attention_mask", "token_type_ids"]
    export(
        build,
        path,
        opset_version=17,
        input_names=names,
        output_names=["last_hidden_state", "pooler_output"],
        dynamic_axes=dict.fromkeys([*names, "last_hidden_state"], axes) | {"pooler_output": {0: "batch"}},
    )


def write_decoder(path: Path) -> None:
    """Export the language model with its cache as inputs and outputs."""
    layers, past_length = 2, 5

    def build(torch: Any, networks: Any) -> tuple[Any, tuple[Any, ...]]:
        ids, mask = torch.arange(4).reshape(2, 2), torch.ones(2, past_length + 2, dtype=torch.int64)
        past = [torch.randn(2, 2, past_length, 6) for _ in range(2 * layers)]
        return networks.CachedDecoder(layers), (ids, mask, *past)

    cache = [f"{index}.{part}" for index in range(layers) for part in ("key", "value")]
    past, present = ([f"{prefix}.{name}" for name in cache] for prefix in ("past_key_values", "present"))
    axes = {"input_ids": {0: "batch", 1: "sequence"}, "logits": {0: "batch", 1: "sequence"}}
    axes["attention_mask"] = {0: "batch", 1: "past_sequence + sequence"}
    axes |= {name: {0: "batch", 2: "past_sequence"} for name in past}
    axes |= {name: {0: "batch", 2: "past_sequence + sequence"} for name in present}
    export(
        build,
        path,
        opset_version=18,
        input_names=["input_ids", "attention_mask", *past],
        output_names=["logits", *present],
        dynamic_axes=axes,
    )


def write_channels_last(path: Path) -> None:
    """Build the channels-last classifier."""
    import channels_last
    import onnx

    onnx.save(channels_last.build(SEED), path)


def write_voice_detector(path: Path) -> None:
    """Script and export the voice detector."""

    def build(torch: Any, networks: Any) -> tuple[Any, tuple[Any, ...]]:
        return networks.VoiceDetector(), (torch.randn(2, 640), torch.randn(2, 2, 16), torch.tensor(16000))

    export(
        build,
        path,
        script=True,
        opset_version=16,
        do_constant_folding=False,
        input_names=["audio", "state", "sample_rate"],
        output_names=["probability", "next_state"],
        dynamic_axes={
            "audio": {0: "batch", 1: "samples"},
            "state": {1: "batch"},
            "probability": {0: "batch"},
            "next_state": {1: "batch"},
        },
    )


def write_gpt(path: Path, layers: int, hidden: int, heads: int, vocabulary: int, positions: int) -> None:
    """Export a GPT-2 of the given size."""

    def build(torch: Any, networks: Any) -> tuple[Any, tuple[Any, ...]]:
        ones = torch.ones(2, 8, dtype=torch.int64)
        return networks.Gpt(layers, hidden, heads, vocabulary, positions), (ones, ones)

    axes = {0: "batch", 1: "sequence"}
    export(
        build,
        path,
        opset_version=17,
        input_names=["input_ids", "attention_mask"],
        output_names=["logits"],
        dynamic_axes=dict.fromkeys(("input_ids", "attention_mask", "logits"), axes),
    )


def write_deep_encoder(path: Path) -> None:
    """Export the text encoder with 12 thin layers: about a thousand nodes."""

    def build(torch: Any, networks: Any) -> tuple[Any, tuple[Any, ...]]:
        ones = torch.ones(2, 8, dtype=torch.int64)
        return networks.Encoder(layers=12, hidden=64, heads=4, vocabulary=200, wide=256), (ones, ones, ones * 0)

    names = ["input_ids", "attention_mask", "token_type_ids"]
    axes = {0: "batch", 1: "sequence"}
    export(
        build,
        path,
        opset_version=17,
        input_names=names,
        output_names=["last_hidden_state", "pooler_output"],
        dynamic_axes=dict.fromkeys(names, axes),
    )
