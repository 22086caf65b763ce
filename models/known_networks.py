"""Well-known architectures with random weights, exported by either of PyTorch's exporters with dynamic axes.

    python models/known_networks.py DIR [--only bert_base,gpt2] [--forms ts,dynamo] [--opset 17]

Needs torch, onnx, onnxscript, transformers (but for `unet_sd`) and torchvision (for `resnet50` and its like); it loads
nothing down. `NAME.ts.onnx` comes from the TorchScript exporter, `NAME.dynamo.onnx` from the torch.export one, both
from the same weights. A network that cannot be exported by the versions installed is reported and left out; the exit
code is 1 if none could.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

SEED = 20240607
Axes = Mapping[int, str]
TEXT: Axes = {0: "batch", 1: "sequence"}
FORMS = ("ts", "dynamo")


@dataclass(frozen=True, slots=True)
class Example:
    """A network and what to call it with.

    Attributes:
        call: Gets the network and the inputs; returns its output or several.
        inputs: Example arguments by name, in order.
        outputs: Names of the outputs.
        axes: Dynamic axes of inputs (and, for the TorchScript exporter, outputs), with their names.
    """

    network: Any
    call: Callable[..., Any]
    inputs: Mapping[str, Any]
    outputs: tuple[str, ...]
    axes: Mapping[str, Axes]


def torch_and_transformers() -> tuple[Any, Any]:
    """Import both.

    Raises:
        SystemExit: One of them is not installed.
    """
    try:
        return importlib.import_module("torch"), importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"exporting known architectures needs {error.name}, which is not installed here; "
            "run `pip install torch transformers onnx onnxscript` (the CPU build of torch is enough) and try again"
        ) from error


def ids(torch: Any, size: int = 8, vocabulary: int = 100) -> Any:
    """Make token numbers, `[2, size]`."""
    return torch.arange(2 * size).reshape(2, size) * 7 % vocabulary


# --- networks


def bert_base() -> Example:
    """BERT base: 12 layers, width 768."""
    torch, transformers = torch_and_transformers()
    network = transformers.BertModel(transformers.BertConfig(attn_implementation="eager"))
    tokens = ids(torch)
    return Example(
        network,
        lambda net, tokens, mask, types: net(tokens, mask, types, return_dict=False)[:2],
        {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "token_type_ids": tokens * 0},
        ("last_hidden_state", "pooler_output"),
        dict.fromkeys(("input_ids", "attention_mask", "token_type_ids", "last_hidden_state"), TEXT)
        | {"pooler_output": {0: "batch"}},
    )


def unmasked(make: Callable[[], Example]) -> Example:
    """A network called with the token numbers alone, so that nothing is padding."""
    example = make()
    (tokens, value), *others = example.inputs.items()
    kept = {tokens: value}
    axes = {name: axes for name, axes in example.axes.items() if name in (tokens, *example.outputs)}
    rest = [None] * len(others)
    return Example(example.network, lambda net, ids: example.call(net, ids, *rest), kept, example.outputs, axes)


def language_model(network: Any) -> Example:
    """A decoder of text without a cache, with dynamic batch and length."""
    torch, _ = torch_and_transformers()
    tokens = ids(torch)
    return Example(
        network,
        lambda net, tokens, mask: net(tokens, attention_mask=mask, use_cache=False).logits,
        {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)},
        ("logits",),
        dict.fromkeys(("input_ids", "attention_mask", "logits"), TEXT),
    )


def gpt2() -> Example:
    """GPT-2 small without a cache: 12 layers, width 768."""
    _, transformers = torch_and_transformers()
    config = transformers.GPT2Config(attn_implementation="eager", use_cache=False)
    return language_model(transformers.GPT2LMHeadModel(config))


def image_model(network: Any, size: tuple[int, int], outputs: tuple[str, ...] = ("logits",)) -> Example:
    """A network over images of one size, with dynamic batch."""
    torch, _ = torch_and_transformers()
    return Example(
        network,
        lambda net, image: tuple(getattr(net(image), name) for name in outputs),
        {"pixel_values": torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(SEED))},
        outputs,
        {key: {0: "batch"} for key in ("pixel_values", *outputs)},
    )


def vit_base() -> Example:
    """Vision transformer, base size: 12 layers, width 768, 224 x 224."""
    _, transformers = torch_and_transformers()
    config = transformers.ViTConfig(num_labels=1000, attn_implementation="eager")
    return image_model(transformers.ViTForImageClassification(config), (224, 224))


def vision_network(name: str) -> Example:
    """A convolutional network of torchvision's, 224 x 224."""
    torchvision = importlib.import_module("torchvision")
    torch, _ = torch_and_transformers()
    image = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(SEED))
    axes = {key: {0: "batch"} for key in ("pixel_values", "logits")}
    network = getattr(torchvision.models, name)(weights=None)
    return Example(network, lambda net, image: net(image), {"pixel_values": image}, ("logits",), axes)


def llama() -> Example:
    """Llama without a cache: 8 layers, width 1024, 16 heads."""
    _, transformers = torch_and_transformers()
    config = transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=16,
        use_cache=False,
        attn_implementation="eager",
    )
    return language_model(transformers.LlamaForCausalLM(config))


def swin_tiny() -> Example:
    """Swin transformer, tiny: windows of 7 x 7, shifted in every second layer, 224 x 224."""
    _, transformers = torch_and_transformers()
    config = transformers.SwinConfig(num_labels=1000, attn_implementation="eager")
    return image_model(transformers.SwinForImageClassification(config), (224, 224))


def segformer() -> Example:
    """SegFormer B0 with its decoder head, 128 x 128."""
    _, transformers = torch_and_transformers()
    config = transformers.SegformerConfig(num_labels=20, attn_implementation="eager")
    return image_model(transformers.SegformerForSemanticSegmentation(config), (128, 128))


def detr() -> Example:
    """DETR over a small residual network: 3 layers each side, width 128, 96 x 128."""
    _, transformers = torch_and_transformers()
    backbone = transformers.ResNetConfig(
        embedding_size=32, hidden_sizes=[32, 64, 128, 256], depths=[2, 2, 2, 2], out_features=["stage4"]
    )
    config = transformers.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone_config=backbone,
        backbone=None,
        num_queries=20,
        d_model=128,
        encoder_layers=3,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        num_labels=10,
        attn_implementation="eager",
    )
    return image_model(transformers.DetrForObjectDetection(config), (96, 128), ("logits", "pred_boxes"))


def deberta_v2() -> Example:
    """DeBERTa-v2 with its disentangled relative attention: 3 layers, width 128."""
    torch, transformers = torch_and_transformers()
    config = transformers.DebertaV2Config(
        vocab_size=1000,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=256,
        relative_attention=True,
        position_buckets=16,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        max_relative_positions=-1,
        position_biased_input=False,
    )
    tokens = ids(torch)
    return Example(
        transformers.DebertaV2ForSequenceClassification(config),
        lambda net, tokens, mask: net(tokens, attention_mask=mask).logits,
        {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)},
        ("logits",),
        dict.fromkeys(("input_ids", "attention_mask"), TEXT) | {"logits": {0: "batch"}},
    )


def llama_past() -> Example:
    """Llama with its cache as inputs and outputs: 4 layers, width 256, two key/value heads for eight."""
    torch, transformers = torch_and_transformers()
    layers, past = 4, 5
    config = transformers.LlamaConfig(
        vocab_size=1000,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=512,
        attn_implementation="eager",
    )

    def call(net: Any, tokens: Any, mask: Any, positions: Any, *cache: Any) -> tuple[Any, ...]:
        state = transformers.DynamicCache()
        for index in range(layers):
            state.update(cache[2 * index], cache[2 * index + 1], index)
        out = net(tokens, attention_mask=mask, position_ids=positions, past_key_values=state, use_cache=True)
        parts = [part for layer in out.past_key_values.layers for part in (layer.keys, layer.values)]
        return (out.logits, *parts)

    tokens = ids(torch, 3)
    names = [f"{index}.{part}" for index in range(layers) for part in ("key", "value")]
    inputs = {
        "input_ids": tokens,
        "attention_mask": torch.ones(2, past + 3, dtype=torch.int64),
        "position_ids": torch.arange(past, past + 3).expand(2, 3).contiguous(),
    } | {f"past.{name}": torch.randn(2, 2, past, 32) for name in names}
    axes: dict[str, Axes] = dict.fromkeys(("input_ids", "position_ids", "logits"), TEXT)
    axes["attention_mask"] = {0: "batch", 1: "past_sequence + sequence"}
    axes |= {f"past.{name}": {0: "batch", 2: "past_sequence"} for name in names}
    axes |= {f"present.{name}": {0: "batch", 2: "past_sequence + sequence"} for name in names}
    outputs = ("logits", *(f"present.{name}" for name in names))
    return Example(transformers.LlamaForCausalLM(config), call, inputs, outputs, axes)


def t5_config(transformers: Any) -> Any:
    """T5 small: 6 layers each side, width 512."""
    return transformers.T5Config(use_cache=False, num_decoder_layers=6, attn_implementation="eager")


def t5_encoder() -> Example:
    """The encoder of T5 small."""
    torch, transformers = torch_and_transformers()
    tokens = ids(torch)
    return Example(
        transformers.T5EncoderModel(t5_config(transformers)),
        lambda net, tokens, mask: net(tokens, attention_mask=mask).last_hidden_state,
        {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)},
        ("last_hidden_state",),
        dict.fromkeys(("input_ids", "attention_mask", "last_hidden_state"), TEXT),
    )


def t5_decoder() -> Example:
    """The decoder of T5 small with its head over words, without a cache."""
    torch, transformers = torch_and_transformers()

    def call(net: Any, tokens: Any, encoded: Any, mask: Any) -> Any:
        state = transformers.modeling_outputs.BaseModelOutput(last_hidden_state=encoded)
        return net(attention_mask=mask, decoder_input_ids=tokens, encoder_outputs=state, use_cache=False).logits

    encoder_axes = {0: "batch", 1: "encoder_sequence"}
    return Example(
        transformers.T5ForConditionalGeneration(t5_config(transformers)),
        call,
        {
            "decoder_input_ids": ids(torch, 6),
            "encoder_hidden_states": torch.randn(2, 8, 512),
            "encoder_attention_mask": torch.ones(2, 8, dtype=torch.int64),
        },
        ("logits",),
        dict.fromkeys(("decoder_input_ids", "logits"), TEXT)
        | dict.fromkeys(("encoder_hidden_states", "encoder_attention_mask"), encoder_axes),
    )


def unet_sd() -> Example:
    """The denoising network of `diffusion.py`."""
    torch = importlib.import_module("torch")
    diffusion = importlib.import_module("diffusion")
    return Example(
        diffusion.UNet(),
        lambda net, *inputs: net(*inputs),
        {
            "sample": torch.randn(2, 4, 16, 16),
            "timestep": torch.tensor([3, 7]),
            "encoder_hidden_states": torch.randn(2, 6, 48),
        },
        ("noise",),
        {"sample": {0: "batch"}, "timestep": {0: "batch"}, "encoder_hidden_states": TEXT, "noise": {0: "batch"}},
    )


UNMASKED = (bert_base, gpt2, llama)  # the decoders by the torch.export exporter only
NETWORKS: dict[str, Callable[[], Example]] = (
    {
        make.__name__: make
        for make in (
            bert_base,
            gpt2,
            vit_base,
            swin_tiny,
            deberta_v2,
            segformer,
            detr,
            unet_sd,
            llama,
            llama_past,
            t5_encoder,
            t5_decoder,
        )
    }
    | {f"{make.__name__}_unmasked": partial(unmasked, make) for make in UNMASKED}
    | {
        name: partial(vision_network, name)
        for name in ("resnet50", "mobilenet_v2", "efficientnet_b0", "convnext_tiny", "densenet121", "inception_v3")
    }
)


# --- export


def export(name: str, folder: Path, forms: Sequence[str] = ("ts",), opset: int = 17) -> Iterator[Path]:
    """Export one network in some forms, all from the same weights; yield the files.

    Args:
        name: A key of `NETWORKS`.
        folder: Where the files go.
        forms: Of `ts` and `dynamo`.
        opset: For the TorchScript exporter; the torch.export one starts at 18.
    """
    torch = importlib.import_module("torch")
    networks = importlib.import_module("networks")
    torch.manual_seed(SEED)
    example = NETWORKS[name]()
    example.network.eval()
    networks.perturb(example.network, SEED)
    for form in forms:
        path = folder / f"{name}.{form}.onnx"
        write(torch, example, path, form, opset)
        yield path


def write(torch: Any, example: Example, path: Path, form: str, opset: int) -> None:
    """Export an example with one of the two exporters."""

    class Wrapper(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        """Takes the inputs one after the other, gives the outputs as a tuple."""

        def __init__(self) -> None:
            super().__init__()
            self.network = example.network

        def forward(self, *inputs: Any) -> Any:
            return example.call(self.network, *inputs)

    options: dict[str, Any] = {"input_names": list(example.inputs), "output_names": list(example.outputs)}
    if form == "ts":
        options |= {
            "dynamo": False,
            "opset_version": opset,
            "dynamic_axes": {k: dict(v) for k, v in example.axes.items()},
        }
    else:
        dynamic = torch.export.Dim.DYNAMIC
        shapes = tuple(dict.fromkeys(example.axes.get(key, {}), dynamic) for key in example.inputs)
        options |= {"dynamo": True, "dynamic_shapes": {"inputs": shapes}, "external_data": False, "verbose": False}
        options["opset_version"] = max(opset, 18)
    for logger in ("torch.onnx", "torch", "onnxscript", "transformers"):
        logging.getLogger(logger).setLevel(logging.ERROR)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(Wrapper().eval(), tuple(example.inputs.values()), str(path), **options)


def export_all(folder: Path, names: Sequence[str], forms: Sequence[str], opset: int) -> list[Path]:
    """Export networks; say what was written, and what could not be and why."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in names:
        for form in forms:
            start = time.perf_counter()
            try:
                written += list(export(name, folder, [form], opset))
            except Exception as error:  # exporters and the library change: one network less is no reason to stop
                print(f"{name}.{form}: not exported: {type(error).__name__}: {str(error).strip()[:300]}", flush=True)
            else:
                size = written[-1].stat().st_size
                print(f"{written[-1].name}: {size:,} bytes in {time.perf_counter() - start:.1f} s", flush=True)
    return written


def main() -> int:
    """Export what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default=",".join(NETWORKS), help="networks, separated by commas; default: all")
    parser.add_argument("--forms", default="ts", help="ts, dynamo or both; default ts")
    parser.add_argument("--opset", type=int, default=17)
    options = parser.parse_args()
    names, forms = options.only.split(","), options.forms.split(",")
    if unknown := [name for name in names if name not in NETWORKS] + [form for form in forms if form not in FORMS]:
        parser.error(f"unknown: {', '.join(unknown)}; networks are {', '.join(NETWORKS)}, forms {', '.join(FORMS)}")
    return 0 if export_all(options.folder, names, forms, options.opset) else 1


if __name__ == "__main__":
    sys.exit(main())
