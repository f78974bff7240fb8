"""The very numbers of CUDA's generator: Philox 4x32 with ten rounds, as torch's kernels draw from it.

A kernel's threads each have a sequence of their own, of which one call gives four words; from 257 numbers on the same
formula spreads them over more blocks. Uniform and normal numbers, whole ones, Bernoulli's, exponential ones and what
``torch.multinomial`` without replacement makes of these are a GPU's, up to the last digits of a logarithm (an H200
drew what ``tests/data/h200_draws.json`` has); other distributions are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import torch

from .kernels import Kernel
from .rng import THREADS, Positioned
from .ties import topk

aten: Any = torch.ops.aten
Array = np.ndarray[Any, np.dtype[Any]]
Position = tuple[int, int]  # seed and offset

_ROUNDS, _BLOCK, _WORDS = 10, 256, 4
_FACTORS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_STEPS = 0x9E3779B9, 0xBB67AE85
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_WORD = 0xFFFFFFFF
_SKEWED = 1 << 28  # ranges from here on take 64 bits


def words(seed: int, sequences: Array, counters: Array) -> list[Array]:
    """The four words of each sequence at each counter, 32 bits each.

    >>> [int(word[0]) for word in words(0, np.zeros(1), np.zeros(1))]
    [1713891541, 3781805453, 3159862348, 2600524760]
    """
    counters, sequences = counters.astype(np.uint64), sequences.astype(np.uint64)
    found = [counters & _LOW, counters >> _HALF, sequences & _LOW, sequences >> _HALF]
    keys = [seed & _WORD, seed >> 32]
    for _ in range(_ROUNDS):
        one, other = found[0] * _FACTORS[0], found[2] * _FACTORS[1]
        found = [
            (other >> _HALF) ^ found[1] ^ np.uint64(keys[0]),
            other & _LOW,
            (one >> _HALF) ^ found[3] ^ np.uint64(keys[1]),
            one & _LOW,
        ]
        keys = [(key + step) & _WORD for key, step in zip(keys, _STEPS, strict=True)]
    return found


def _drawn(position: Position, count: int, at_once: int) -> tuple[list[Array], Array]:
    """For each of a kernel's numbers the words that its thread has drawn, and which of ``at_once`` it is."""
    seed, offset = position
    threads = min(THREADS, -(-count // _BLOCK) * _BLOCK)
    places = np.arange(count)
    rounds, rest = np.divmod(places, threads * at_once)
    which, thread = np.divmod(rest, threads)
    return words(seed, thread, offset // _WORDS + rounds), which


def _pairs(position: Position, count: int) -> tuple[Array, Array]:
    """Two words for each number, where a thread makes two of its four."""
    four, which = _drawn(position, count, 2)
    return np.where(which == 0, four[0], four[2]), np.where(which == 0, four[1], four[3])


def _wide(low: Array, high: Array, turns: float = 1.0) -> Array:
    """Numbers of 53 bits between 0 and ``turns``."""
    bits = low ^ (high << np.uint64(21))
    found: Array = bits.astype(np.float64) * (turns * 2.0**-53) + turns * 2.0**-54
    return found


def _narrow(word: Array, turns: float = 1.0) -> Array:
    unit = np.float32(turns * 2.0**-32)
    found: Array = word.astype(np.float32) * unit + unit / np.float32(2)
    return found


def uniform(position: Position, count: int, dtype: torch.dtype) -> Array:
    """Numbers above 0, up to 1.

    >>> [round(float(x), 4) for x in uniform((0, 0), 3, torch.float32)]
    [0.399, 0.5167, 0.0249]
    """
    if dtype is torch.float64:
        return _wide(*_pairs(position, count))
    four, which = _drawn(position, count, _WORDS)
    return _narrow(np.choose(which, four))


def normal(position: Position, count: int, dtype: torch.dtype) -> Array:
    """Numbers around 0, of deviation 1: Box and Muller's.

    >>> [round(float(x), 4) for x in normal((0, 0), 3, torch.float32)]
    [-0.9247, -0.4253, -2.6438]
    """
    if dtype is torch.float64:
        four, which = _drawn(position, count, 2)
        radius, angle = np.sqrt(-2 * np.log(_wide(four[0], four[1]))), _wide(four[2], four[3], 2.0) * np.pi
        wide: Array = radius * np.where(which == 0, np.sin(angle), np.cos(angle))
        return wide
    four, which = _drawn(position, count, _WORDS)
    first, second = np.where(which < 2, four[0], four[2]), np.where(which < 2, four[1], four[3])
    size, angle = np.sqrt(np.float32(-2) * np.log(_narrow(first))), _narrow(second, 2 * math.pi)
    found: Array = size * np.where(which % 2 == 0, np.sin(angle), np.cos(angle))
    return found


def _put(target: torch.Tensor, numbers: Array) -> torch.Tensor:
    """Write numbers in the order in which a kernel goes through memory."""
    inner = _in_memory(target)
    inner.copy_(torch.from_numpy(np.ascontiguousarray(numbers)).view(inner.shape))
    return target


def _in_memory(target: torch.Tensor) -> torch.Tensor:
    """The tensor with its dimensions in the order of memory, the longest steps first."""
    steps = target.stride()
    return target.permute(sorted(range(target.dim()), key=lambda i: -steps[i]))


Draw = Callable[..., torch.Tensor]


def _positioned(plain: Any) -> Callable[[Draw], Draw]:
    """A function of a position in place of CPU's kernel, where it is known and there is something to draw."""

    def make(draw: Draw) -> Draw:
        @wraps(draw)
        def call(tensor: torch.Tensor, *args: Any, generator: Any = None, **options: Any) -> torch.Tensor:
            if tensor.is_meta or not isinstance(generator, Positioned) or not tensor.numel():
                found: torch.Tensor = plain(tensor, *args, generator=generator, **options)
                return found
            position = generator.position
            plain(tensor, *args, generator=generator, **options)  # raises for what it does not take
            return draw(position, tensor, *args, **options)

        return call

    return make


@_positioned(aten.uniform_.default)
def _uniform(position: Position, tensor: torch.Tensor, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
    """``aten::uniform_``: what came out as the upper bound becomes the lower one."""
    numbers = torch.from_numpy(uniform(position, tensor.numel(), tensor.dtype).astype(np.float64))
    narrow = numbers.mul_(high - low).add_(low).to(tensor.dtype)
    narrow[narrow == torch.tensor(high, dtype=tensor.dtype)] = low
    inner = _in_memory(tensor)
    inner.copy_(narrow.view(inner.shape))
    return tensor


@_positioned(aten.normal_.default)
def _normal(position: Position, tensor: torch.Tensor, mean: float = 0.0, std: float = 1.0) -> torch.Tensor:
    """``aten::normal_``."""
    if tensor.is_complex():
        parts = torch.view_as_real(tensor)
        _put(parts, normal(position, parts.numel(), parts.dtype) * (std / math.sqrt(2)) + mean)
        return tensor
    return _put(tensor, normal(position, tensor.numel(), tensor.dtype).astype(np.float64) * std + mean)


def _whole(position: Position, tensor: torch.Tensor, low: int, high: int) -> torch.Tensor:
    size = high - low
    if size >= _SKEWED:
        first, second = _pairs(position, tensor.numel())
        return _put(tensor, (((first << _HALF) | second) % np.uint64(size)).astype(np.int64) + low)
    four, which = _drawn(position, tensor.numel(), _WORDS)
    return _put(tensor, (np.choose(which, four) % np.uint64(size)).astype(np.int64) + low)


def _between(position: Position, tensor: torch.Tensor, low: int, high: int | None) -> torch.Tensor:
    """``aten::random_.from``; without an upper bound CPU's numbers have to do."""
    return tensor if high is None else _whole(position, tensor, low, high)


@_positioned(aten.random_.to)
def _below(position: Position, tensor: torch.Tensor, high: int) -> torch.Tensor:
    """``aten::random_.to``."""
    return _whole(position, tensor, 0, high)


def _real(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


@_positioned(aten.bernoulli_.float)
def _bernoulli(position: Position, tensor: torch.Tensor, p: float = 0.5) -> torch.Tensor:
    """``aten::bernoulli_.float``."""
    return _put(tensor, uniform(position, tensor.numel(), _real(tensor.dtype)) < p)


def _exponents(position: Position, count: int, dtype: torch.dtype) -> Array:
    numbers = uniform(position, count, _real(dtype))
    least = np.finfo(numbers.dtype).eps / 2
    return -np.where(numbers >= 1 - least, -least, np.log(numbers))


@_positioned(aten.exponential_.default)
def _exponential(position: Position, tensor: torch.Tensor, lambd: float = 1.0) -> torch.Tensor:
    """``aten::exponential_``."""
    return _put(tensor, _exponents(position, tensor.numel(), tensor.dtype) / lambd)


@_positioned(aten.multinomial.default)
def _multinomial(position: Position, tensor: torch.Tensor, num_samples: int, replacement: bool = False) -> torch.Tensor:
    """``aten::multinomial``, of one number or of different ones: a race of exponential ones."""
    race = tensor / torch.from_numpy(_exponents(position, tensor.numel(), tensor.dtype)).view(tensor.shape).to(tensor)
    if num_samples == 1:
        return race.argmax(-1, keepdim=True)
    return topk(race, num_samples)[1]


def _several(tensor: torch.Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None) -> Any:
    """The same; with replacement CUDA has another way, of which nothing is known here."""
    draw = aten.multinomial.default if replacement and num_samples > 1 else _multinomial
    return draw(tensor, num_samples, replacement, generator=generator)


def drawing_kernels() -> dict[str, Kernel]:
    """The operations that draw as CUDA's do, by name."""
    between = _positioned(aten.random_.__getattr__("from"))(_between)
    return {
        "uniform_": Kernel(aten.uniform_.default, _uniform),
        "normal_": Kernel(aten.normal_.default, _normal),
        "random_.from": Kernel(aten.random_.__getattr__("from"), between),
        "random_.to": Kernel(aten.random_.to, _below),
        "bernoulli_.float": Kernel(aten.bernoulli_.float, _bernoulli),
        "exponential_": Kernel(aten.exponential_.default, _exponential),
        "multinomial": Kernel(aten.multinomial.default, _several),
    }
