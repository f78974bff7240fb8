"""Small models with what Gemma 2 and StarCoder 2 have besides a Llama's parts: many small tensors, few big ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _Norm(nn.Module):
    """RMS norm in float32 with a weight that is added to one."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        h = x.float()
        h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)
        return (h * (1 + self.weight.float())).to(x.dtype)


def _turned(x: Tensor, angle: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    cos, sin = torch.cat((angle, angle), -1).cos().to(x.dtype), torch.cat((angle, angle), -1).sin().to(x.dtype)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class _Attention(nn.Module):
    """Attention with fewer heads of keys; ``cap`` keeps scores below it, as Gemma 2 does, else torch's own kernel."""

    def __init__(self, dim: int, heads: int, kv_heads: int, head: int, *, bias: bool, cap: float | None) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head, self.cap = heads, kv_heads, head, cap
        self.q, self.k = nn.Linear(dim, heads * head, bias=bias), nn.Linear(dim, kv_heads * head, bias=bias)
        self.v, self.o = nn.Linear(dim, kv_heads * head, bias=bias), nn.Linear(heads * head, dim, bias=bias)

    def forward(self, x: Tensor, angle: Tensor, mask: Tensor) -> Tensor:
        b, t, _ = x.shape
        counts = ((self.q, self.heads), (self.k, self.kv_heads), (self.v, self.kv_heads))
        q, k, v = (linear(x).view(b, t, heads, self.head).transpose(1, 2) for linear, heads in counts)
        q, k = _turned(q, angle), _turned(k, angle)
        k, v = (y.repeat_interleave(self.heads // self.kv_heads, dim=1) for y in (k, v))
        if self.cap is None:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            scores = torch.tanh(q @ k.transpose(-1, -2) * self.head**-0.5 / self.cap) * self.cap + mask
            y = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype) @ v
        projected: Tensor = self.o(y.transpose(1, 2).reshape(b, t, -1))
        return projected


class _Layer(nn.Module):
    """Gemma 2's layer, norms before and after both parts, or StarCoder 2's."""

    def __init__(self, dim: int, hidden: int, *, gemma: bool) -> None:
        super().__init__()
        self.gemma = gemma
        self.attention = _Attention(dim, 4, 2, dim // 4, bias=not gemma, cap=50.0 if gemma else None)
        norm = _Norm if gemma else nn.LayerNorm
        self.norms = nn.ModuleList(norm(dim) for _ in range(4 if gemma else 2))
        self.up, self.down = nn.Linear(dim, hidden, bias=not gemma), nn.Linear(hidden, dim, bias=not gemma)
        self.gate = nn.Linear(dim, hidden, bias=False) if gemma else None

    def forward(self, x: Tensor, angle: Tensor, mask: Tensor) -> Tensor:
        y = self.attention(self.norms[0](x), angle, mask)
        x = x + (self.norms[1](y) if self.gemma else y)
        h = self.norms[2 if self.gemma else 1](x)
        h = self.up(h) * F.gelu(self.gate(h), approximate="tanh") if self.gate is not None else F.gelu(self.up(h))
        y = self.down(h)
        mixed: Tensor = x + (self.norms[3](y) if self.gemma else y)
        return mixed


class SmallModel(nn.Module):
    """Three layers, a head with the embedding's weight; ``forward(ids)``: (batch, tokens) of int64 to logits."""

    def __init__(self, *, gemma: bool, dim: int = 256, hidden: int = 512, vocab: int = 1024, layers: int = 3) -> None:
        super().__init__()
        self.gemma, self.dim = gemma, dim
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(_Layer(dim, hidden, gemma=gemma) for _ in range(layers))
        self.norm = _Norm(dim) if gemma else nn.LayerNorm(dim)

    def forward(self, ids: Tensor) -> Tensor:
        """All logits; Gemma 2's are kept below 30."""
        t = torch.arange(ids.shape[1], device=ids.device, dtype=torch.float32)
        half = self.dim // 8
        angle = t[:, None] * 1e4 ** (-torch.arange(half, device=ids.device, dtype=torch.float32) / half)
        mask = torch.full((len(t), len(t)), float("-inf"), device=ids.device).triu(1)
        x = self.embed(ids)
        if self.gemma:
            x = x * torch.tensor(self.dim**0.5, dtype=x.dtype, device=x.device)
        for layer in self.layers:
            x = layer(x, angle, mask.to(x.dtype))
        logits = F.linear(self.norm(x), self.embed.weight)
        return torch.tanh(logits / 30.0) * 30.0 if self.gemma else logits
