"""Distributions whose threads draw until a number fits, one word after the other: Poisson's, binomial, gamma numbers.

They are a GPU's (compared with an H200), but for those of Poisson and binomial ones of large means.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .draws import in_memory, positioned, put, real
from .kernels import Kernel
from .philox import WORDS, Array, Position, narrow, words
from .rng import Positioned

aten: Any = torch.ops.aten

_LARGE_MEAN, _MANY_HITS = 64, 10  # from here on Poisson's and binomial numbers are drawn in other ways
_BINARY, _BITS = 128, (1 << 24) - 1  # threads of a block that draws binomial numbers, and the bits that it takes


def _one_by_one(position: Position, threads: Array) -> Callable[[Array], Array]:
    """Takes the next word of the threads that are chosen among these, each time that it is called."""
    taken = np.zeros(int(threads.max()) + 1, dtype=np.int64)

    def take(chosen: Array) -> Array:
        mine = threads[chosen]
        calls, which = np.divmod(taken[mine], WORDS)
        taken[mine] += 1
        found: Array = np.choose(which, words(position[0], mine, position[1] // WORDS + calls))
        return found

    return take


@positioned(aten.poisson.default)
def _poisson(position: Position, tensor: torch.Tensor) -> torch.Tensor | None:
    """``aten::poisson``: numbers are multiplied until they are small; large means have other ways."""
    means = in_memory(tensor).float().flatten().numpy()
    if means.max() >= _LARGE_MEAN:
        return None
    take, left = _one_by_one(position, np.arange(means.size)), np.arange(means.size)
    product, counts = np.exp(means), np.full(means.size, -1)
    while left.size:
        counts[left] += 1
        product[left] *= narrow(take(left))
        left = left[product[left] > 1]
    return put(torch.empty_like(tensor), counts)


@positioned(aten.binomial.default)
def _binomial(position: Position, tensor: torch.Tensor, prob: torch.Tensor) -> torch.Tensor | None:
    """``aten::binomial``: a thread has four numbers, one after the other, and jumps from success to success."""
    counts, chances = (each.float().expand_as(tensor).flatten().numpy() for each in (tensor, prob))
    rare = np.where(chances > 0.5, 1 - chances, chances)
    if (counts * rare).max() >= _MANY_HITS:
        return None
    blocks, rest = np.divmod(np.arange(counts.size), _BINARY * WORDS)
    rounds, thread = np.divmod(rest, _BINARY)
    take, hits = _one_by_one(position, blocks * _BINARY + thread), np.zeros(counts.size)
    for each in range(WORDS):
        left, reached = np.flatnonzero((rounds == each) & (rare > 0) & (counts > 0)), np.zeros(counts.size, np.float32)
        while left.size:
            drawn_ = (take(left) & np.uint64(_BITS)).astype(np.float32) / np.float32(_BITS + 1)
            with np.errstate(divide="ignore"):
                reached[left] += np.ceil(np.log(drawn_) / np.log1p(-rare[left]))
            left = left[reached[left] <= counts[left]]
            hits[left] += 1
    found = np.where(chances > 0.5, counts - hits, hits)
    return torch.from_numpy(found).view(tensor.shape).to(tensor.dtype)


def _normals(take: Callable[[Array], Array], count: int) -> Callable[[Array], Array]:
    """The same of normal numbers: each thread keeps the second one of two for its next call."""
    kept = np.full(count, np.nan, np.float32)

    def draw(chosen: Array) -> Array:
        found = kept[chosen]
        kept[chosen] = np.nan
        new = np.isnan(found)
        if (fresh := chosen[new]).size:
            size, angle = np.sqrt(np.float32(-2) * np.log(narrow(take(fresh)))), narrow(take(fresh), 2 * math.pi)
            found[new], kept[fresh] = size * np.sin(angle), size * np.cos(angle)
        return found

    return draw


def _gammas(position: Position, shapes: Array) -> Array:
    """Gamma numbers after Marsaglia and Tsang, as ``sample_gamma`` of torch's has it."""
    everyone, one = np.arange(shapes.size), shapes.dtype.type(1)
    take = _one_by_one(position, everyone)
    normals, scale, found = _normals(take, shapes.size), np.ones_like(shapes), np.where(np.isnan(shapes), shapes, 0)
    left, few = everyone[shapes > 0], everyone[(shapes > 0) & (shapes < 1)]
    if few.size:
        scale[few] = (one - narrow(take(few))) ** (one / shapes[few])
    d = np.where(shapes < 1, shapes + one, shapes) - shapes.dtype.type(1 / 3)
    x, y = np.zeros_like(shapes), np.zeros_like(shapes)
    while left.size:
        again = left
        while again.size:
            x[again] = normals(again)
            y[again] = one + x[again] / np.sqrt(9 * d[again])
            again = again[y[again] <= 0]
        v, square, rest = y[left] ** 3, x[left] ** 2, one - narrow(take(left))
        with np.errstate(divide="ignore", invalid="ignore"):
            fits = (rest < 1 - 0.0331 * square**2) | (np.log(rest) < square / 2 + d[left] * (1 - v + np.log(v)))
        found[left[fits]] = (scale[left] * d[left] * v)[fits]
        left = left[~fits]
    return found


@positioned(aten._standard_gamma.default)
def _standard_gamma(position: Position, tensor: torch.Tensor) -> torch.Tensor:
    """``aten::_standard_gamma``."""
    shapes = in_memory(tensor).to(real(tensor.dtype)).flatten().numpy()
    least = float(torch.finfo(tensor.dtype).tiny)
    return put(torch.empty_like(tensor), np.maximum(_gammas(position, shapes), least))


@positioned(aten._sample_dirichlet.default)
def _dirichlet(position: Position, tensor: torch.Tensor) -> torch.Tensor:
    """``aten::_sample_dirichlet``."""
    found = _standard_gamma(tensor, generator=_at(position))
    limits = torch.finfo(tensor.dtype)
    return (found / found.sum(-1, keepdim=True)).clamp_(limits.tiny, 1 - limits.eps)


def _at(position: Position) -> Positioned:
    made = Positioned(device="cpu")
    made.position = position
    return made


def until_kernels() -> dict[str, Kernel]:
    """All of these, by name."""
    return {
        "_standard_gamma": Kernel(aten._standard_gamma.default, _standard_gamma),
        "_sample_dirichlet": Kernel(aten._sample_dirichlet.default, _dirichlet),
        "poisson": Kernel(aten.poisson.default, _poisson),
        "binomial": Kernel(aten.binomial.default, _binomial),
    }
