"""Three small models of the families that the simulator must run: Llama-like, GPT-like, ResNet-like."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


class LlamaBlock(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = RMSNorm(dim), RMSNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.gate = nn.Linear(dim, 2 * dim, bias=False)
        self.up = nn.Linear(dim, 2 * dim, bias=False)
        self.down = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        h = self.norm2(x)
        out: Tensor = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return out


class Llama(nn.Module):
    def __init__(self, vocabulary: int = 32, dim: int = 16, heads: int = 2, layers: int = 2, tokens: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.blocks = nn.ModuleList(LlamaBlock(dim, heads) for _ in range(layers))
        self.norm = RMSNorm(dim)
        self.head = nn.Linear(dim, vocabulary, bias=False)
        half = dim // heads // 2
        angle = torch.arange(tokens)[:, None] / 100.0 ** (torch.arange(half) / half)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits: Tensor = self.head(self.norm(x))
        return logits


class GPT(nn.Module):
    def __init__(self, vocabulary: int = 32, dim: int = 16, heads: int = 2, tokens: int = 8, p: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.position = nn.Parameter(torch.zeros(tokens, dim))
        self.block = nn.TransformerEncoderLayer(
            dim, heads, 2 * dim, p, activation="gelu", batch_first=True, norm_first=True
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        n = ids.shape[1]
        mask = torch.triu(torch.full((n, n), float("-inf"), device=ids.device), 1)
        logits: Tensor = self.head(self.norm(self.block(self.embed(ids) + self.position, src_mask=mask)))
        return logits


class ResNet(nn.Module):
    def __init__(self, classes: int = 10, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn0 = nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn0(self.stem(x))), 2)
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        x = F.adaptive_avg_pool2d(F.relu(x + y), 1).flatten(1)
        logits: Tensor = self.head(x)
        return logits


def example(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A model on the CPU with an input and the targets of a cross entropy."""
    torch.manual_seed(0)
    if name == "resnet":
        return ResNet(), torch.randn(4, 3, 8, 8), torch.randint(10, (4,))
    model = Llama() if name == "llama" else GPT()
    ids = torch.randint(32, (2, 8))
    return model, ids, torch.randint(32, (2, 8))


def loss_of(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """Cross entropy over the last dimension."""
    logits = model(x)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1))
