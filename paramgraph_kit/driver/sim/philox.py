"""The very numbers of CUDA's generator: Philox 4x32 with ten rounds, as torch's kernels draw from it.

A kernel's threads each have a sequence of their own, of which one call gives four words; from 257 numbers on the same
formula spreads them over more blocks.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from .rng import THREADS

Array = np.ndarray[Any, np.dtype[Any]]
Position = tuple[int, int]  # seed and offset

_ROUNDS, BLOCK, WORDS = 10, 256, 4
_FACTORS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_STEPS = 0x9E3779B9, 0xBB67AE85
_LOW, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_WORD = 0xFFFFFFFF


def words(seed: int, sequences: Array, counters: Array) -> list[Array]:
    """The four words of each sequence at each counter, 32 bits each.

    >>> [int(word[0]) for word in words(0, np.zeros(1), np.zeros(1))]
    [1713891541, 3781805453, 3159862348, 2600524760]
    """
    counters, sequences = counters.astype(np.uint64), sequences.astype(np.uint64)
    found = [counters & _LOW, counters >> HALF, sequences & _LOW, sequences >> HALF]
    keys = [seed & _WORD, seed >> 32]
    for _ in range(_ROUNDS):
        one, other = found[0] * _FACTORS[0], found[2] * _FACTORS[1]
        found = [
            (other >> HALF) ^ found[1] ^ np.uint64(keys[0]),
            other & _LOW,
            (one >> HALF) ^ found[3] ^ np.uint64(keys[1]),
            one & _LOW,
        ]
        keys = [(key + step) & _WORD for key, step in zip(keys, _STEPS, strict=True)]
    return found


def drawn(position: Position, count: int, at_once: int) -> tuple[list[Array], Array]:
    """For each of a kernel's numbers the words that its thread has drawn, and which of ``at_once`` it is."""
    seed, offset = position
    threads = min(THREADS, -(-count // BLOCK) * BLOCK)
    places = np.arange(count)
    rounds, rest = np.divmod(places, threads * at_once)
    which, thread = np.divmod(rest, threads)
    return words(seed, thread, offset // WORDS + rounds), which


def pairs(position: Position, count: int) -> tuple[Array, Array]:
    """Two words for each number, where a thread makes two of its four."""
    four, which = drawn(position, count, 2)
    return np.where(which == 0, four[0], four[2]), np.where(which == 0, four[1], four[3])


def _wide(low: Array, high: Array, turns: float = 1.0) -> Array:
    """Numbers of 53 bits between 0 and ``turns``."""
    bits = low ^ (high << np.uint64(21))
    found: Array = bits.astype(np.float64) * (turns * 2.0**-53) + turns * 2.0**-54
    return found


def narrow(word: Array, turns: float = 1.0) -> Array:
    """Numbers of 24 bits above 0, up to ``turns``."""
    unit = np.float32(turns * 2.0**-32)
    found: Array = word.astype(np.float32) * unit + unit / np.float32(2)
    return found


def uniform(position: Position, count: int, dtype: torch.dtype) -> Array:
    """Numbers above 0, up to 1.

    >>> [round(float(x), 4) for x in uniform((0, 0), 3, torch.float32)]
    [0.399, 0.5167, 0.0249]
    """
    if dtype is torch.float64:
        return _wide(*pairs(position, count))
    four, which = drawn(position, count, WORDS)
    return narrow(np.choose(which, four))


def normal(position: Position, count: int, dtype: torch.dtype) -> Array:
    """Numbers around 0, of deviation 1: Box and Muller's.

    >>> [round(float(x), 4) for x in normal((0, 0), 3, torch.float32)]
    [-0.9247, -0.4253, -2.6438]
    """
    if dtype is torch.float64:
        four, which = drawn(position, count, 2)
        radius, angle = np.sqrt(-2 * np.log(_wide(four[0], four[1]))), _wide(four[2], four[3], 2.0) * np.pi
        wide: Array = radius * np.where(which == 0, np.sin(angle), np.cos(angle))
        return wide
    four, which = drawn(position, count, WORDS)
    first, second = np.where(which < 2, four[0], four[2]), np.where(which < 2, four[1], four[3])
    size, angle = np.sqrt(np.float32(-2) * np.log(narrow(first))), narrow(second, 2 * math.pi)
    found: Array = size * np.where(which % 2 == 0, np.sin(angle), np.cos(angle))
    return found
