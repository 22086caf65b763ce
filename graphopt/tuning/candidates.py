"""What may be set: the options of the runtime worth trying, those with most promise first.

A block holds settings that only mean something together, or in place of each other: all of them are tried against the
same rival, and the fastest that holds is taken. Whether a setting is right is never decided here. Left out are only
those whose faults no measurement can find: `do_copy_in_default_stream=0` has races by its own documentation. Name it
(`--try`) to have it tried all the same.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphopt.errors import UsageError
from graphopt.recipes import MODEL, SESSION_ATTRIBUTES
from graphopt.runtime.session import CPU, CUDA

Change = Mapping[str, str]

_ATTENTION = (
    "Attention",
    "com.microsoft::Attention",
    "com.microsoft::MultiHeadAttention",
    "com.microsoft::GroupQueryAttention",
    "com.microsoft::PackedAttention",
    "com.microsoft::PackedMultiHeadAttention",
)
_CONVOLUTIONS = ("Conv", "ConvTranspose", "com.microsoft::FusedConv", "com.microsoft::NhwcConv")
_NORMALIZATIONS = ("com.microsoft::SkipLayerNormalization", "com.microsoft::SkipSimplifiedLayerNormalization")
_GELUS = ("Gelu", "Erf", "com.microsoft::Gelu", "com.microsoft::BiasGelu", "com.microsoft::FastGelu")


@dataclass(frozen=True, slots=True)
class Block:
    """Settings that are decided on together.

    Attributes:
        name: What they are about.
        changes: Each is tried on top of the best settings so far.
    """

    name: str
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Machine:
    """What candidates depend on besides the model.

    Attributes:
        cores: Logical cores this process may use.
        physical: Physical cores the runtime counts on: how many threads it makes by default.
        arm: The processor is an ARM of 64 bits.
    """

    cores: int = 1
    physical: int = 1
    arm: bool = False

    @staticmethod
    def here(cores: int) -> Machine:
        """This machine."""
        return Machine(cores, physical_cores() or cores, platform.machine().lower() in ("aarch64", "arm64"))


def physical_cores() -> int:
    """Physical cores of the machine; 0 where nothing tells."""
    seen = set()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            socket = ""
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() == "physical id":
                    socket = value.strip()
                elif key.strip() == "core id":
                    seen.add((socket, value.strip()))
    except OSError:
        return 0
    return len(seen)


def blocks(
    provider: str,
    operators: Mapping[str, int],
    machine: Machine,
    *,
    models: Sequence[str] = (),
    wanted: Sequence[Change] = (),
    has_conv1d: bool = False,
) -> list[Block]:
    """All that is worth trying on a provider for a model with these operators.

    Args:
        provider: The runtime's name of it.
        operators: Operator type -> nodes of it.
        machine: Where it runs.
        models: Names of rewritten models that may stand for the original.
        wanted: Settings the user asks to have tried; they come first.
        has_conv1d: Some convolution has one spatial dim.
    """
    found = [Block("asked for", (change,)) for change in wanted]
    if models:
        found.append(Block("model", tuple({MODEL: name} for name in models)))
    found += _cuda(operators, has_conv1d) if provider == CUDA else _cpu(machine) if provider == CPU else []
    if any(name in operators for name in _GELUS):
        found.append(Block("approximations", ({"optimization.enable_gelu_approximation": "1"},)))
    if provider not in (CPU, CUDA):
        found.append(_LEVELS)
    return found


def closer(provider: str) -> list[Block]:
    """What brings results closer to the unoptimized original, for those to whom the runtime's defaults are too far."""
    found = []
    if provider == CUDA:
        found.append(Block("precision", ({"use_tf32": "0"},)))
    found.append(
        Block(
            "precision",
            tuple(
                {**({"use_tf32": "0"} if provider == CUDA else {}), "graph_optimization_level": level}
                for level in ("ORT_ENABLE_EXTENDED", "ORT_ENABLE_BASIC", "ORT_DISABLE_ALL")
            ),
        )
    )
    return found


_LEVELS = Block(
    "optimization level",
    ({"graph_optimization_level": "ORT_ENABLE_EXTENDED"}, {"graph_optimization_level": "ORT_ENABLE_BASIC"}),
)


def _cuda(operators: Mapping[str, int], has_conv1d: bool) -> list[Block]:
    has_convolutions = any(name in operators for name in _CONVOLUTIONS)
    found = []
    if has_convolutions:
        # Each alone and both: what the one does depends on the other.
        both = {"prefer_nhwc": "1", "fuse_conv_bias": "1"}
        found.append(Block("convolutions", (both, {"prefer_nhwc": "1"}, {"fuse_conv_bias": "1"})))
    found.append(Block("CUDA graph", ({"enable_cuda_graph": "1"},)))
    if any(name in operators for name in _ATTENTION):
        # Flash, memory-efficient, cuDNN's, and none: bits of the option.
        found.append(Block("attention", tuple({"sdpa_kernel": bits} for bits in ("8", "1", "2", "16"))))
    if has_convolutions:
        found.append(
            Block(
                "convolution search",
                ({"cudnn_conv_algo_search": "HEURISTIC"}, {"cudnn_conv_algo_search": "DEFAULT"}),
            )
        )
        if has_conv1d:
            found.append(Block("one-dimensional convolutions", ({"cudnn_conv1d_pad_to_nc1d": "1"},)))
    found.append(_LEVELS)
    found.append(Block("streams", ({"use_ep_level_unified_stream": "1"},)))
    if has_convolutions:
        found.append(Block("workspace", ({"cudnn_conv_use_max_workspace": "0"},)))
    found.append(
        Block(
            "memory",
            (
                {"arena_extend_strategy": "kSameAsRequested"},
                {"session.use_device_allocator_for_initializers": "1"},
                {"enable_mem_pattern": "0"},
            ),
        )
    )
    if any(name in operators for name in _NORMALIZATIONS):
        found.append(Block("normalizations", ({"enable_skip_layer_norm_strict_mode": "1"},)))
    found.append(Block("precision", ({"use_tf32": "0"},)))
    return found


def _cpu(machine: Machine) -> list[Block]:
    threads = dict.fromkeys(
        count for count in (1, machine.physical // 2, machine.physical, machine.cores) if 1 <= count <= machine.cores
    )
    threads.pop(machine.physical, None) if machine.physical <= machine.cores else None  # that is the default
    found = []
    if threads:
        found.append(Block("threads", tuple({"intra_op_num_threads": str(count)} for count in threads)))
    if machine.cores > 1:
        found.append(Block("spinning", ({"session.intra_op.allow_spinning": "0"},)))
    found.append(_LEVELS)
    if machine.cores > 1:
        sides = dict.fromkeys((2, min(4, machine.cores)))
        found.append(
            Block(
                "parallel branches",
                tuple({"execution_mode": "ORT_PARALLEL", "inter_op_num_threads": str(count)} for count in sides),
            )
        )
        found.append(Block("blocks of work", ({"session.dynamic_block_base": "4"},)))
    found.append(Block("memory", ({"enable_mem_pattern": "0"}, {"enable_cpu_mem_arena": "0"})))
    found.append(Block("denormal numbers", ({"session.set_denormal_as_zero": "1"},)))
    found.append(Block("weights", ({"session.disable_prepacking": "1"},)))
    if machine.arm:
        found.append(Block("bfloat16 products", ({"mlas.enable_gemm_fastmath_arm64_bfloat16": "1"},)))
    return found


def parse_change(text: str) -> dict[str, str]:
    """Settings as they are typed: `prefer_nhwc=1,fuse_conv_bias=1`.

    Raises:
        UsageError: A part is not NAME=VALUE.
    """
    found: dict[str, str] = {}
    for part in text.split(","):
        name, separator, value = part.strip().partition("=")
        if not separator or not name.strip() or not value.strip():
            raise UsageError(f"--try wants settings like prefer_nhwc=1,fuse_conv_bias=1, not '{text}'")
        name, value = name.strip(), value.strip()
        if name == MODEL:
            raise UsageError("--try names settings of the runtime; rewritten models are tried with --target")
        if SESSION_ATTRIBUTES.get(name) in (int, bool) and not value.isdecimal():
            raise UsageError(f"{name} takes a number, not '{value}'; write {name}=1")
        found[name] = value
    return found
