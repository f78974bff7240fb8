"""Small models that the FX backend is tried on, each with its inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class LlamaBlock(nn.Module):
    """Pre-norm attention with rotary positions, then a gated feed-forward."""

    rotation: Tensor

    def __init__(self, width: int = 32, heads: int = 4, length: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)
        half = width // heads // 2
        angle = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(half) / half)
        self.register_buffer("rotation", torch.stack((angle.cos(), angle.sin())))

    def rotate(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        cos, sin = self.rotation
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = self.rotate(q), self.rotate(k)
        score = (q @ k.transpose(-1, -2)) * (width // self.heads) ** -0.5
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        mixed = score.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        h = self.norm2(x)
        y: Tensor = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return y


class ResidualBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


class SmallResNet(nn.Module):
    """A stem, two residual blocks, pooling and a head, with running statistics in training."""

    def __init__(self, channels: int = 8, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, stride=2, padding=1, bias=False)
        self.blocks = nn.Sequential(ResidualBlock(channels), ResidualBlock(channels))
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(F.max_pool2d(self.blocks(F.relu(self.stem(x))), 2).mean((2, 3)))
        return y


class Cache(nn.Module):
    """Writes each call's rows into a buffer, as a key-value cache does."""

    kept: Tensor

    def __init__(self, length: int = 6, width: int = 4) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(length, width))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        self.kept.index_copy_(0, position, x.sin())
        return self.kept.sum(0) * x
