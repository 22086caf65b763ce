"""A small denoising U-Net with time embedding, self-attention and cross-attention, in plain PyTorch.

Written the way such networks are: spatial sizes read from tensors, images flattened to sequences and back around every
attention, group normalization and SiLU before each convolution.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class TimeEmbedding(nn.Module):  # type: ignore[misc, unused-ignore]
    """Sines and cosines of a step number, then two linear layers: `[batch]` to `[batch, width]`."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.half = channels // 2
        self.layers = nn.Sequential(nn.Linear(channels, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, step: Tensor) -> Tensor:
        """Embed the step numbers."""
        exponents = -math.log(10000.0) * torch.arange(self.half, dtype=torch.float32, device=step.device) / self.half
        angles = step[:, None].float() * torch.exp(exponents)[None, :]
        embedded: Tensor = self.layers(torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1))
        return embedded


class ResidualBlock(nn.Module):  # type: ignore[misc, unused-ignore]
    """Two convolutions with the time embedding added between them."""

    def __init__(self, channels_in: int, channels_out: int, width: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, channels_in), nn.Conv2d(channels_in, channels_out, 3, padding=1)
        self.time = nn.Linear(width, channels_out)
        self.norm2, self.conv2 = nn.GroupNorm(8, channels_out), nn.Conv2d(channels_out, channels_out, 3, padding=1)
        self.shortcut = nn.Conv2d(channels_in, channels_out, 1) if channels_in != channels_out else nn.Identity()

    def forward(self, image: Tensor, time: Tensor) -> Tensor:
        """Transform `[batch, channels_in, height, width]`."""
        hidden = self.conv1(functional.silu(self.norm1(image)))
        hidden = hidden + self.time(functional.silu(time))[:, :, None, None]
        hidden = self.conv2(functional.silu(self.norm2(hidden)))
        result: Tensor = self.shortcut(image) + hidden
        return result


class Attention(nn.Module):  # type: ignore[misc, unused-ignore]
    """Attention over a context, or over the sequence itself."""

    def __init__(self, channels: int, context: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(channels, channels, bias=False)
        self.key, self.value = (nn.Linear(context, channels, bias=False) for _ in range(2))
        self.out = nn.Linear(channels, channels)

    def split(self, sequence: Tensor) -> Tensor:
        """Turn `[batch, length, channels]` into `[batch, heads, length, channels / heads]`."""
        batch, length, channels = sequence.shape
        return sequence.view(batch, length, self.heads, channels // self.heads).transpose(1, 2)

    def forward(self, sequence: Tensor, context: Tensor | None = None) -> Tensor:
        """Attend; sequences are `[batch, length, channels]`."""
        source = sequence if context is None else context
        query, key, value = (
            self.split(self.query(sequence)),
            self.split(self.key(source)),
            self.split(self.value(source)),
        )
        weights = torch.softmax(query @ key.transpose(-1, -2) / math.sqrt(query.size(-1)), dim=-1)
        mixed = (weights @ value).transpose(1, 2)
        mixed = mixed.reshape(mixed.size(0), mixed.size(1), -1)
        result: Tensor = self.out(mixed)
        return result


class SpatialTransformer(nn.Module):  # type: ignore[misc, unused-ignore]
    """Self-attention, cross-attention and a gated feed-forward layer over the positions of an image."""

    def __init__(self, channels: int, context: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, channels)
        self.enter, self.leave = nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, channels, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(3))
        self.own, self.cross = Attention(channels, channels, heads), Attention(channels, context, heads)
        self.gated, self.out = nn.Linear(channels, 8 * channels), nn.Linear(4 * channels, channels)

    def forward(self, image: Tensor, context: Tensor) -> Tensor:
        """Transform `[batch, channels, height, width]`."""
        batch, channels, height, width = image.shape
        hidden = self.enter(self.norm(image)).permute(0, 2, 3, 1).reshape(batch, height * width, channels)
        hidden = hidden + self.own(self.norms[0](hidden))
        hidden = hidden + self.cross(self.norms[1](hidden), context)
        value, gate = self.gated(self.norms[2](hidden)).chunk(2, dim=-1)
        hidden = hidden + self.out(value * functional.gelu(gate))
        hidden = hidden.reshape(batch, height, width, channels).permute(0, 3, 1, 2)
        result: Tensor = image + self.leave(hidden)
        return result


class UNet(nn.Module):  # type: ignore[misc, unused-ignore]
    """Two levels down, a middle, two levels up with skip connections."""

    def __init__(self, channels: int = 32, context: int = 48, heads: int = 4) -> None:
        super().__init__()
        width = 4 * channels
        sizes = [channels, 2 * channels]
        self.time = TimeEmbedding(channels, width)
        self.enter = nn.Conv2d(4, channels, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        previous, skips = channels, [channels]
        for size in sizes:
            for _ in range(2):
                self.down.append(
                    nn.ModuleList([ResidualBlock(previous, size, width), SpatialTransformer(size, context, heads)])
                )
                previous = size
                skips.append(size)
            self.down.append(nn.ModuleList([nn.Conv2d(size, size, 3, stride=2, padding=1)]))
            skips.append(size)
        self.middle1, self.middle2 = (ResidualBlock(previous, previous, width) for _ in range(2))
        self.middle = SpatialTransformer(previous, context, heads)
        for size in reversed(sizes):
            for index in range(3):
                block = ResidualBlock(previous + skips.pop(), size, width)
                last = index == 2
                more = [nn.Conv2d(size, size, 3, padding=1)] if last else []
                self.up.append(nn.ModuleList([block, SpatialTransformer(size, context, heads), *more]))
                previous = size
        self.last = ResidualBlock(previous + skips.pop(), channels, width)
        self.norm, self.leave = nn.GroupNorm(8, channels), nn.Conv2d(channels, 4, 3, padding=1)

    def forward(self, sample: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        """Predict the noise in `[batch, 4, height, width]`; height and width are multiples of 4."""
        time = self.time(timestep)
        hidden = self.enter(sample)
        skips = [hidden]
        for block in self.down:
            if len(block) == 1:
                hidden = block[0](hidden)
            else:
                hidden = block[1](block[0](hidden, time), context)
            skips.append(hidden)
        hidden = self.middle2(self.middle(self.middle1(hidden, time), context), time)
        for block in self.up:
            skip = skips.pop()
            if hidden.shape[-1] != skip.shape[-1]:
                hidden = functional.interpolate(hidden, size=skip.shape[-2:], mode="nearest")
            hidden = block[1](block[0](torch.cat([hidden, skip], dim=1), time), context)
            if len(block) == 3:
                hidden = block[2](hidden)
        skip = skips.pop()
        hidden = self.last(torch.cat([hidden, skip], dim=1), time)
        result: Tensor = self.leave(functional.silu(self.norm(hidden)))
        return result
