"""A decoding loop as people write it: a static cache in buffers, one token at a time, each fed back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paramgraph_kit.bench.ways import Make, Ready, mark

Compiling = Callable[[Any], Any]
TOKENS = 24  # that one loop makes


class CachedBlock(nn.Module):
    """A Llama-like block for one token; keys and values of those before it lie in its buffers."""

    def __init__(self, dim: int, heads: int, hidden: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.gate, self.up = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)
        self.keys: Tensor
        self.values: Tensor
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, heads, length, dim // heads))

    def forward(self, x: Tensor, position: Tensor, seen: Tensor) -> Tensor:
        """``x``: (1, 1, dim); ``position``: (1,) of int64; ``seen``: (1, length), which entries of the cache count."""
        q, k, v = self.qkv(self.norm1(x)).view(1, 1, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        h = self.norm2(x)
        mixed: Tensor = self.down(F.silu(self.gate(h)) * self.up(h))
        return x + mixed


class Decoder(nn.Module):
    """Blocks between an embedding, with learnt positions, and a head."""

    def __init__(
        self, layers: int = 8, dim: int = 1024, heads: int = 16, hidden: int = 2816, vocab: int = 4096, length: int = 64
    ) -> None:
        super().__init__()
        self.length = length
        self.embed, self.places = nn.Embedding(vocab, dim), nn.Embedding(length, dim)
        self.layers = nn.ModuleList(CachedBlock(dim, heads, hidden, length) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(dim), nn.Linear(dim, vocab, bias=False)

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        """``token``: (1, 1), ``position``: (1,), both int64; returns logits, (1, 1, vocab)."""
        x = self.embed(token) + self.places(position)
        seen = torch.arange(self.length, device=token.device)[None] <= position
        for layer in self.layers:
            x = layer(x, position, seen)
        logits: Tensor = self.head(self.norm(x))
        return logits


def decode(step: Callable[[Tensor, Tensor], Tensor], first: Tensor, count: int = TOKENS) -> Tensor:
    """``count`` tokens after ``first``, (1, 1) of int64, the likeliest each time; returns (1, count)."""
    token, position, found = first, torch.zeros(1, dtype=torch.int64, device=first.device), []
    with torch.no_grad():
        for _ in range(count):
            token = step(token, position)[:, -1].argmax(-1, keepdim=True)
            position = position + 1
            found.append(token)
    return torch.cat(found, dim=1)


def decoding_ways(compilers: Mapping[str, Compiling], device: str, count: int = TOKENS, **size: int) -> dict[str, Make]:
    """A loop of ``count`` tokens each way; they are compared with those of the others."""

    def way(name: str, compiling: Compiling) -> Ready:
        torch.manual_seed(0)
        model = Decoder(**size).to(device, torch.bfloat16)
        first = torch.ones(1, 1, dtype=torch.int64, device=device)
        compiled = compiling(model)

        def step(token: Tensor, position: Tensor) -> Tensor:
            mark(name)
            logits: Tensor = compiled(token, position)
            return logits

        loop = partial(decode, step, first, count)
        return Ready(loop, tokens=lambda: loop()[0].tolist())

    return {name: partial(way, name, compiling) for name, compiling in compilers.items()}
