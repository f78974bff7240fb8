"""Models of the list that are small enough to be written again, with the sizes that their suites give them."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _chain(*sizes: int) -> nn.Sequential:
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    """Eight tables of a million rows, sums of 100 of each, pairwise products, and two networks (arXiv:1906.00091)."""

    def __init__(self, tables: int = 8, rows: int = 1_000_000, dim: int = 64) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, dim, mode="sum") for _ in range(tables))
        self.bottom = _chain(512, 512, dim)
        lower = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("pairs", lower[0] * (tables + 1) + lower[1])
        self.top = nn.Sequential(_chain(dim + lower.shape[1], 1024, 1024, 1024), nn.Linear(1024, 1), nn.Sigmoid())

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        """``dense``: (batch, 512); ``sparse``: (batch, tables, rows of one sum)."""
        assert isinstance(self.pairs, Tensor)
        x = self.bottom(dense)
        found = torch.stack([x, *(bag(sparse[:, k]) for k, bag in enumerate(self.bags))], 1)
        products = (found @ found.transpose(1, 2)).flatten(1)[:, self.pairs]
        clicked: Tensor = self.top(torch.cat((x, products), 1))
        return clicked


class Autoencoder(nn.Module):
    """NVIDIA's recommender: from all ratings of a user through 512, 512 and 1024 numbers to all ratings."""

    def __init__(self, items: int = 197951, hidden: tuple[int, ...] = (512, 512, 1024), drop: float = 0.8) -> None:
        super().__init__()
        self.items = items
        sizes = [items, *hidden]
        self.encoder = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.decoder = nn.ModuleList(nn.Linear(b, a) for a, b in reversed([*pairwise(sizes)]))
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (users, items)."""
        for layer in self.encoder:
            x = F.selu(layer(x))
        x = self.drop(x)
        for layer in self.decoder:
            x = F.selu(layer(x))
        return x


def discriminator(width: int = 64) -> nn.Module:
    """DCGAN's, of images of 64 x 64."""
    sizes = [width << k for k in range(4)]
    layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)]
    for a, b in pairwise(sizes):
        layers += [nn.Conv2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2, inplace=True)]
    return nn.Sequential(*layers, nn.Conv2d(sizes[-1], 1, 4, 1, 0, bias=False))


class _Attended(nn.Module):
    """Causal attention and a layer of two products, each normalized behind the sum."""

    def __init__(self, dim: int, heads: int, inner: int, drop: float) -> None:
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.up, self.down = nn.Linear(dim, inner), nn.Linear(inner, dim)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """``x``: (rows, words, dim)."""
        q, k, v = (each(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        weights = ((q * self.scale) @ k.transpose(2, 3) + mask).softmax(-1)
        x = self.norms[0](x + self.drop(self.out((weights @ v).transpose(1, 2).flatten(2))))
        found: Tensor = self.norms[1](x + self.drop(self.down(F.relu(self.up(x)))))
        return found


class SpeechDecoder(nn.Module):
    """Speech2Text2's decoder on its own, which has left transformers 5: d=256, 4 heads, tied words."""

    def __init__(self, layers: int = 6, words: int = 10_000, dim: int = 256, longest: int = 1024) -> None:
        super().__init__()
        self.words, self.scale = words, math.sqrt(dim)
        self.embedding = nn.Embedding(words, dim)
        angles = torch.arange(longest)[:, None] * torch.exp(
            torch.arange(dim // 2) * -(math.log(10_000) / (dim // 2 - 1))
        )
        self.register_buffer("places", torch.cat((angles.sin(), angles.cos()), 1))
        self.layers = nn.ModuleList(_Attended(dim, 4, 2048, 0.1) for _ in range(layers))
        self.drop = nn.Dropout(0.1)

    def forward(self, words: Tensor) -> Tensor:
        """``words``: (rows, words of a row)."""
        assert isinstance(self.places, Tensor)
        length = words.shape[1]
        x = self.drop(self.embedding(words) * self.scale + self.places[:length])
        mask = torch.full((length, length), -torch.inf, device=x.device).triu(1)
        for layer in self.layers:
            x = layer(x, mask)
        return F.linear(x, self.embedding.weight)
