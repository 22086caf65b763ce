"""Small PyTorch networks with random weights, exported by `make.py` the way people export theirs.

Importing this module needs PyTorch; `make.py` does it only when it really builds something. Every network is written
the way hand-written model code is: sizes read from tensors, masks built in the forward pass, views and permutes around
the attention. That is what leaves the shape arithmetic in an export that an optimizer has to remove.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

# --- a residual network


class BasicBlock(nn.Module):  # type: ignore[misc, unused-ignore]
    """Two 3x3 convolutions with BatchNormalization and a shortcut."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            conv = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(channels_out))

    def forward(self, x: Tensor) -> Tensor:
        """Map `[batch, channels_in, h, w]` to `[batch, channels_out, h / stride, w / stride]`."""
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class InvertedResidual(nn.Module):  # type: ignore[misc, unused-ignore]
    """Expand, depthwise convolution, project; here for the grouped convolution with BatchNormalization and the Clip."""

    def __init__(self, channels: int, expansion: int) -> None:
        super().__init__()
        wide = channels * expansion
        self.expand = nn.Sequential(nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6())
        depthwise = nn.Conv2d(wide, wide, 3, 1, 1, groups=wide)
        self.depthwise = nn.Sequential(depthwise, nn.BatchNorm2d(wide), nn.ReLU6())
        self.project = nn.Sequential(nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape `[batch, channels, h, w]`."""
        return x + self.project(self.depthwise(self.expand(x)))


class ResNet(nn.Module):  # type: ignore[misc, unused-ignore]
    """An image classifier of the ResNet family."""

    def __init__(self, widths: tuple[int, ...] = (4, 8, 12), classes: int = 10) -> None:
        super().__init__()
        first = nn.Conv2d(3, widths[0], 7, 2, 3, bias=False)
        self.stem = nn.Sequential(first, nn.BatchNorm2d(widths[0]), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        blocks: list[nn.Module] = [BasicBlock(widths[0], widths[0], 1)]
        for narrow, wide in itertools.pairwise(widths):
            blocks += [BasicBlock(narrow, wide, 2), InvertedResidual(wide, 2)]
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.2)
        self.classifier = nn.Linear(widths[-1], classes)

    def forward(self, image: Tensor) -> Tensor:
        """Map an image `[batch, 3, h, w]` to logits `[batch, classes]`."""
        features = self.pool(self.blocks(self.stem(image)))
        return self.classifier(self.dropout(features.view(features.size(0), -1)))


# --- an encoder


class EncoderLayer(nn.Module):  # type: ignore[misc, unused-ignore]
    """One transformer encoder layer, normalized after each half, with a GELU."""

    def __init__(self, hidden: int, heads: int, wide: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.output = nn.Linear(hidden, hidden)
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.up, self.down = nn.Linear(hidden, wide), nn.Linear(wide, hidden)
        self.dropout = nn.Dropout(0.1)

    def split(self, x: Tensor) -> Tensor:
        """Turn `[batch, sequence, hidden]` into `[batch, heads, sequence, head_size]`."""
        return x.view(x.size(0), x.size(1), self.heads, x.size(2) // self.heads).permute(0, 2, 1, 3)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """Map `x` `[batch, sequence, hidden]` to the same shape; `bias` `[batch, 1, 1, sequence]` masks keys."""
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = query.matmul(key.transpose(-1, -2)) / math.sqrt(query.size(-1))
        mixed = self.dropout(torch.softmax(scores + bias, dim=-1)).matmul(value).permute(0, 2, 1, 3).contiguous()
        mixed = mixed.view(mixed.size(0), mixed.size(1), x.size(2))
        x = self.norm1(x + self.dropout(self.output(mixed)))
        return self.norm2(x + self.dropout(self.down(nn.functional.gelu(self.up(x)))))


class Encoder(nn.Module):  # type: ignore[misc, unused-ignore]
    """A text encoder of the BERT family."""

    def __init__(self, layers: int = 2, hidden: int = 16, heads: int = 2, vocabulary: int = 60, wide: int = 24) -> None:
        super().__init__()
        self.words, self.types = nn.Embedding(vocabulary, hidden), nn.Embedding(2, hidden)
        self.positions = nn.Embedding(64, hidden)
        self.register_buffer("position_ids", torch.arange(64).unsqueeze(0))
        self.norm = nn.LayerNorm(hidden)
        self.layers = nn.ModuleList([EncoderLayer(hidden, heads, wide) for _ in range(layers)])
        self.pooler = nn.Linear(hidden, hidden)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Map three `[batch, sequence]` id tensors to `[batch, sequence, hidden]` and a pooled `[batch, hidden]`."""
        positions = self.position_ids[:, : input_ids.size(1)]
        x = self.norm(self.words(input_ids) + self.types(token_type_ids) + self.positions(positions))
        mask = attention_mask[:, None, None, :].to(x.dtype)
        bias = (1.0 - mask) * torch.finfo(torch.float32).min
        for layer in self.layers:
            x = layer(x, bias)
        return x, torch.tanh(self.pooler(x[:, 0]))


# --- a decoder with a key and value cache


class RmsNorm(nn.Module):  # type: ignore[misc, unused-ignore]
    """Root-mean-square normalization over the last axis, in basic operators."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape of `x`."""
        wide = x.to(torch.float32)
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary position embedding to `[batch, heads, sequence, head_size]`."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


class CachedLayer(nn.Module):  # type: ignore[misc, unused-ignore]
    """One decoder layer of the Llama family: grouped key/value heads, rotary positions, a gated feed-forward part."""

    def __init__(self, hidden: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, hidden // heads
        self.norm1, self.norm2 = RmsNorm(hidden), RmsNorm(hidden)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key, self.value = (nn.Linear(hidden, groups * self.size, bias=False) for _ in range(2))
        self.output = nn.Linear(hidden, hidden, bias=False)
        wide = 4 * hidden // 3
        self.gate, self.up = (nn.Linear(hidden, wide, bias=False) for _ in range(2))
        self.down = nn.Linear(wide, hidden, bias=False)

    def repeat(self, x: Tensor) -> Tensor:
        """Repeat each key/value head for the query heads that share it."""
        batch, groups, length, size = x.shape
        times = self.heads // self.groups
        return x[:, :, None].expand(batch, groups, times, length, size).reshape(batch, groups * times, length, size)

    def forward(
        self, x: Tensor, mask: Tensor, cos: Tensor, sin: Tensor, past_key: Tensor, past_value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Map `x` to the same shape and the cache `[batch, groups, past, size]` to one longer by the sequence."""
        batch, length, _ = x.shape
        y = self.norm1(x)
        query = self.query(y).view(batch, length, self.heads, self.size).transpose(1, 2)
        key = self.key(y).view(batch, length, self.groups, self.size).transpose(1, 2)
        value = self.value(y).view(batch, length, self.groups, self.size).transpose(1, 2)
        key = torch.cat((past_key, rotate(key, cos, sin)), dim=2)
        value = torch.cat((past_value, value), dim=2)
        scores = rotate(query, cos, sin).matmul(self.repeat(key).transpose(2, 3)) / math.sqrt(self.size)
        mixed = torch.softmax(scores + mask, dim=-1).matmul(self.repeat(value))
        x = x + self.output(mixed.transpose(1, 2).contiguous().reshape(batch, length, -1))
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y)), key, value


class CachedDecoder(nn.Module):  # type: ignore[misc, unused-ignore]
    """A language model of the Llama family that reads and returns its key and value cache."""

    def __init__(
        self, layers: int = 2, hidden: int = 24, heads: int = 4, groups: int = 2, vocabulary: int = 40
    ) -> None:
        super().__init__()
        self.size = hidden // heads
        self.words = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList([CachedLayer(hidden, heads, groups) for _ in range(layers)])
        self.norm = RmsNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        self.register_buffer("frequencies", 10000.0 ** (-torch.arange(0, self.size, 2).float() / self.size))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        """Map ids `[batch, sequence]`, a mask `[batch, past + sequence]` and the cache to logits and a longer cache."""
        length, total = input_ids.size(1), attention_mask.size(1)
        x = self.words(input_ids)
        positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)[:, total - length :]
        angles = positions[:, None, :, None].float() * self.frequencies[None, None, None, :]
        angles = torch.cat((angles, angles), dim=-1)
        lowest = torch.finfo(torch.float32).min
        causal = torch.full((length, total), lowest).triu(diagonal=1 + total - length)
        mask = causal[None, None] + (1.0 - attention_mask[:, None, None, :].float()) * lowest
        mask = mask.clamp(min=lowest)
        present: list[Tensor] = []
        for index, layer in enumerate(self.layers):
            x, key, value = layer(x, mask, angles.cos(), angles.sin(), past[2 * index], past[2 * index + 1])
            present += [key, value]
        return (self.head(self.norm(x)), *present)


# --- a recurrent network with branches (scripted)


class VoiceDetector(nn.Module):  # type: ignore[misc, unused-ignore]
    """A streaming voice detector whose front end depends on the sample rate: `If` around convolutions, an LSTM."""

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.wide = nn.Conv1d(1, 8, 64, stride=32, padding=16)
        self.narrow = nn.Conv1d(1, 8, 32, stride=16, padding=8)
        self.norm = nn.BatchNorm1d(8)
        self.lstm = nn.LSTM(8, hidden, batch_first=True)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(hidden, 1)

    def forward(self, audio: Tensor, state: Tensor, sample_rate: Tensor) -> tuple[Tensor, Tensor]:
        """Map audio `[batch, samples]` and a state `[2, batch, hidden]` to probabilities `[batch]` and a new state."""
        level = audio.detach().abs().mean(dim=1, keepdim=True).add(1e-3)
        x = (audio / level).unsqueeze(1)
        if bool(sample_rate == 16000):
            y = torch.relu(self.wide(x)).detach()
        else:
            y = torch.relu(self.narrow(x))
            if bool(sample_rate == 8000):
                y = y * level.unsqueeze(1)
            else:
                y = torch.sigmoid(y).detach()
        y = self.dropout(self.norm(y)).transpose(1, 2)
        if bool(level.max() > 100.0):
            y = y.clamp(-3.0, 3.0)
        out, (hidden, cell) = self.lstm(y, (state[0:1], state[1:2]))
        probability = torch.sigmoid(self.head(self.dropout(out).mean(dim=1))).squeeze(1)
        return probability, torch.cat((hidden, cell), dim=0).detach()


# --- the big one: GPT-2


class GptLayer(nn.Module):  # type: ignore[misc, unused-ignore]
    """One GPT-2 layer: merged query/key/value projection, causal mask from a buffer, tanh GELU in basic operators."""

    def __init__(self, hidden: int, heads: int, positions: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.merged, self.output = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.register_buffer("causal", torch.tril(torch.ones(positions, positions, dtype=torch.bool))[None, None])

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """Map `[batch, sequence, hidden]` to the same shape."""
        hidden = x.shape[-1]
        query, key, value = (
            part.view(part.size(0), part.size(1), self.heads, part.size(2) // self.heads).permute(0, 2, 1, 3)
            for part in self.merged(self.norm1(x)).split(hidden, dim=2)
        )
        scores = query.matmul(key.transpose(-1, -2)) / torch.tensor(value.size(-1) ** 0.5)
        causal = self.causal[:, :, key.size(-2) - query.size(-2) : key.size(-2), : key.size(-2)]
        scores = torch.where(causal, scores, torch.tensor(torch.finfo(torch.float32).min)) + bias
        mixed = torch.softmax(scores, dim=-1).matmul(value).permute(0, 2, 1, 3).contiguous()
        x = x + self.output(mixed.view(mixed.size(0), mixed.size(1), hidden))
        y = self.up(self.norm2(x))
        y = 0.5 * y * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (y + 0.044715 * torch.pow(y, 3.0))))
        return x + self.down(y)


class Gpt(nn.Module):  # type: ignore[misc, unused-ignore]
    """A language model of the GPT-2 family without a cache; the output matrix is the embedding matrix."""

    def __init__(self, layers: int, hidden: int, heads: int, vocabulary: int, positions: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, hidden), nn.Embedding(positions, hidden)
        self.layers = nn.ModuleList([GptLayer(hidden, heads, positions) for _ in range(layers)])
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        self.head.weight = self.words.weight

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Map ids and a mask, both `[batch, sequence]`, to logits `[batch, sequence, vocabulary]`."""
        shape = input_ids.size()
        ids = input_ids.view(-1, shape[-1])
        positions = torch.arange(0, shape[-1], dtype=torch.long).unsqueeze(0)
        x = self.words(ids) + self.positions(positions)
        bias = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(torch.float32).min
        for layer in self.layers:
            x = layer(x, bias)
        return self.head(self.norm(x).view(shape[0], shape[1], x.size(-1)))


# --- weights


def perturb(module: nn.Module, seed: int) -> nn.Module:
    """Move every constant-initialized parameter and statistic off its initial value, so that a wrong fold shows.

    A BatchNormalization that was never trained has mean 0, variance 1, scale 1, bias 0: dropping it by mistake would
    change next to nothing.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.numel() > 1 and bool((parameter == parameter.flatten()[0]).all()):
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.copy_(0.2 * torch.randn(buffer.shape, generator=generator))
            if name.endswith("running_var"):
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))
    return module
