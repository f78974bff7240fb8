"""What operations draw of CUDA's generator.

Uniform and normal numbers, whole ones, Bernoulli's, exponential ones, what others make of these, dropout, permutations
and ``torch.multinomial`` are a GPU's, up to the last digits of a logarithm (an H200 drew what
``tests/data/h200_draws.json`` has), as are those of ``until.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import torch

from paramgraph_kit.driver.tensors import extent

from .kernels import Kernel
from .philox import BLOCK, HALF, WORDS, Array, Position, drawn, narrow, normal, pairs, uniform, words
from .rng import THREADS, Positioned, drawn_at
from .special import waiting_kernel
from .ties import topk

aten: Any = torch.ops.aten

_SAMPLERS = 128  # threads of a block that looks for multinomial's places
_SKEWED = 1 << 28  # ranges from here on take 64 bits


def put(target: torch.Tensor, numbers: Array) -> torch.Tensor:
    """Write numbers in the order in which a kernel goes through memory."""
    inner = in_memory(target)
    inner.copy_(torch.from_numpy(np.ascontiguousarray(numbers)).view(inner.shape))
    return target


def in_memory(target: torch.Tensor) -> torch.Tensor:
    """The tensor with its dimensions in the order of memory, the longest steps first."""
    steps = target.stride()
    return target.permute(sorted(range(target.dim()), key=lambda i: -steps[i]))


Draw = Callable[..., torch.Tensor]


def positioned(plain: Any) -> Callable[[Callable[..., torch.Tensor | None]], Draw]:
    """A function of a position in place of CPU's kernel, where it is known and there is something to draw.

    Where it returns None, CPU's numbers have to do.
    """

    def make(draw: Callable[..., torch.Tensor | None]) -> Draw:
        @wraps(draw)
        def call(tensor: torch.Tensor, *args: Any, generator: Any = None, **options: Any) -> torch.Tensor:
            found: torch.Tensor = plain(tensor, *args, generator=generator, **options)  # raises for what it refuses
            if tensor.is_meta or not isinstance(generator, Positioned) or not tensor.numel():
                return found
            mine = draw(generator.position, tensor, *args, **options)
            return found if mine is None else mine

        return call

    return make


@positioned(aten.uniform_.default)
def _uniform(position: Position, tensor: torch.Tensor, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
    """``aten::uniform_``: what came out as the upper bound becomes the lower one."""
    if tensor.is_complex():
        parts = torch.view_as_real(tensor)
        put(parts, uniform(position, parts.numel(), parts.dtype).astype(np.float64) * (high - low) + low)
        return tensor
    numbers = torch.from_numpy(uniform(position, tensor.numel(), tensor.dtype).astype(np.float64))
    found = numbers.mul_(high - low).add_(low).to(tensor.dtype)
    found[found == torch.tensor(high, dtype=tensor.dtype)] = low
    inner = in_memory(tensor)
    inner.copy_(found.view(inner.shape))
    return tensor


@positioned(aten.normal_.default)
def _normal(position: Position, tensor: torch.Tensor, mean: float = 0.0, std: float = 1.0) -> torch.Tensor:
    """``aten::normal_``."""
    if tensor.is_complex():
        parts = torch.view_as_real(tensor)
        put(parts, normal(position, parts.numel(), parts.dtype) * (std / math.sqrt(2)) + mean)
        return tensor
    return put(tensor, normal(position, tensor.numel(), tensor.dtype).astype(np.float64) * std + mean)


def _whole(position: Position, tensor: torch.Tensor, low: int, high: int) -> torch.Tensor:
    size = high - low
    if size >= _SKEWED:
        first, second = pairs(position, tensor.numel())
        return put(tensor, (((first << HALF) | second) % np.uint64(size)).astype(np.int64) + low)
    four, which = drawn(position, tensor.numel(), WORDS)
    return put(tensor, (np.choose(which, four) % np.uint64(size)).astype(np.int64) + low)


def _held(dtype: torch.dtype, low: int, high: int) -> tuple[int, int]:
    """Bounds of whole numbers that a type holds: torch moves those inward that it rounds outward."""
    if not dtype.is_floating_point:
        return low, high

    def step(bound: int) -> int:
        return 1 << max(abs(bound).bit_length() - 1 + int(math.log2(torch.finfo(dtype).eps)), 0)

    rounded = [int(torch.tensor(each, dtype=torch.float64).to(dtype)) for each in (low + 1, high - 1)]
    low = rounded[0] + step(low + 1) if rounded[0] < low else low
    high = rounded[1] - step(high - 1) if rounded[1] >= high else high
    return low, high


def _between(position: Position, tensor: torch.Tensor, low: int, high: int | None) -> torch.Tensor:
    """``aten::random_.from``; without an upper bound CPU's numbers have to do."""
    return tensor if high is None else _whole(position, tensor, *_held(tensor.dtype, low, high))


@positioned(aten.random_.to)
def _below(position: Position, tensor: torch.Tensor, high: int) -> torch.Tensor:
    """``aten::random_.to``."""
    return _whole(position, tensor, *_held(tensor.dtype, 0, high))


def real(dtype: torch.dtype) -> torch.dtype:
    """The type that a kernel draws in for one of a type."""
    return torch.float64 if dtype is torch.float64 else torch.float32


@positioned(aten.bernoulli_.float)
def _bernoulli(position: Position, tensor: torch.Tensor, p: float = 0.5) -> torch.Tensor:
    """``aten::bernoulli_.float``."""
    return put(tensor, uniform(position, tensor.numel(), real(tensor.dtype)) < p)


def _exponents(position: Position, count: int, dtype: torch.dtype) -> Array:
    numbers = uniform(position, count, real(dtype))
    least = np.finfo(numbers.dtype).eps / 2
    return -np.where(numbers >= 1 - least, -least, np.log(numbers))


@positioned(aten.exponential_.default)
def _exponential(position: Position, tensor: torch.Tensor, lambd: float = 1.0) -> torch.Tensor:
    """``aten::exponential_``."""
    return put(tensor, _exponents(position, tensor.numel(), tensor.dtype) / lambd)


@positioned(aten.multinomial.default)
def _multinomial(position: Position, tensor: torch.Tensor, num_samples: int, replacement: bool = False) -> torch.Tensor:
    """``aten::multinomial``, of one number or of different ones: a race of exponential ones."""
    race = tensor / torch.from_numpy(_exponents(position, tensor.numel(), tensor.dtype)).view(tensor.shape).to(tensor)
    if num_samples == 1:
        return race.argmax(-1, keepdim=True)
    return topk(race, num_samples)[1]


@positioned(aten.multinomial.default)
def _with_replacement(position: Position, tensor: torch.Tensor, count: int, replacement: bool = True) -> torch.Tensor:
    """``aten::multinomial`` of numbers that may come again: each thread looks for the sum that its number reaches."""
    rows = tensor.reshape(-1, tensor.size(-1)).float()
    sums = (rows / rows.sum(1, keepdim=True)).cumsum(1)
    per_row = -(-count // _SAMPLERS) * _SAMPLERS
    threads = np.arange(len(rows))[:, None] * per_row + np.arange(count)[None]
    numbers = narrow(words(position[0], threads, np.full_like(threads, position[1] // WORDS))[0])
    found = torch.searchsorted(sums.contiguous(), torch.from_numpy(numbers).contiguous())
    return found.clamp_(max=tensor.size(-1) - 1).view(*tensor.shape[:-1], count)


def _several(tensor: torch.Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None) -> Any:
    draw = _with_replacement if replacement and num_samples > 1 else _multinomial
    return draw(tensor, num_samples, replacement, generator=generator)


@positioned(aten.random_.default)
def _any_whole(position: Position, tensor: torch.Tensor) -> torch.Tensor:
    """``aten::random_`` without bounds: what a type holds exactly."""
    dtype = tensor.dtype
    if dtype.is_floating_point:
        most = round(2 / torch.finfo(dtype).eps) + 1
    else:
        most = 2 if dtype is torch.bool else torch.iinfo(dtype).max + 1
    if dtype in (torch.float64, torch.int64):
        first, second = pairs(position, tensor.numel())
        return put(tensor, (((first << HALF) | second) % np.uint64(most)).astype(np.int64))
    four, which = drawn(position, tensor.numel(), WORDS)
    return put(tensor, (np.choose(which, four) % np.uint64(most)).astype(np.int64))


@positioned(aten.geometric_.default)
def _geometric(position: Position, tensor: torch.Tensor, p: float) -> torch.Tensor:
    """``aten::geometric_``."""
    numbers = uniform(position, tensor.numel(), real(tensor.dtype))
    return put(tensor, np.ceil(np.log(numbers) / numbers.dtype.type(math.log1p(-p))))


@positioned(aten.log_normal_.default)
def _log_normal(position: Position, tensor: torch.Tensor, mean: float = 1.0, std: float = 2.0) -> torch.Tensor:
    """``aten::log_normal_``."""
    return put(tensor, np.exp(normal(position, tensor.numel(), tensor.dtype) * std + mean))


@positioned(aten.cauchy_.default)
def _cauchy(position: Position, tensor: torch.Tensor, median: float = 0.0, sigma: float = 1.0) -> torch.Tensor:
    """``aten::cauchy_``."""
    numbers = uniform(position, tensor.numel(), real(tensor.dtype))
    least = np.finfo(numbers.dtype).eps
    turns = np.clip(numbers, least, 1 - least) - numbers.dtype.type(0.5)
    return put(tensor, np.tan(numbers.dtype.type(math.pi) * turns) * sigma + median)


def _four_each(position: Position, count: int) -> Array:
    """Numbers of which each thread takes four that follow each other."""
    threads, which = np.divmod(np.arange(count), WORDS)
    return narrow(np.choose(which, words(position[0], threads, np.full(count, position[1] // WORDS))))


@positioned(aten.bernoulli_.Tensor)
def _bernoulli_of(position: Position, tensor: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """``aten::bernoulli_.Tensor``."""
    chances = in_memory(tensor.double().copy_(p.expand_as(tensor))).flatten().numpy()
    return put(tensor, _four_each(position, tensor.numel()) <= chances)


@positioned(aten.bernoulli.default)
def _bernoulli_like(position: Position, tensor: torch.Tensor) -> torch.Tensor:
    """``aten::bernoulli``."""
    chances = in_memory(tensor).double().flatten().numpy()
    return put(torch.empty_like(tensor), _four_each(position, tensor.numel()) <= chances)


@positioned(aten.rrelu_with_noise.default)
def _rrelu(
    position: Position,
    tensor: torch.Tensor,
    noise: torch.Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
) -> torch.Tensor:
    """``aten::rrelu_with_noise`` in training."""
    if not training:
        plain: torch.Tensor = aten.rrelu_with_noise.default(tensor, noise, lower, upper, training)
        return plain
    numbers = uniform(position, tensor.numel(), real(tensor.dtype)) * (upper - lower) + lower
    found = torch.from_numpy(numbers).view(tensor.shape).to(tensor.dtype)
    noise.copy_(torch.where(tensor <= 0, found, 1))
    return tensor * noise


def _permuted(position: Position, count: int) -> Array:
    """``torch.randperm``: places sorted by some bits of a number each; where these are the same, one thread turns."""
    bits = min(64, math.ceil(math.log2(count - (6 * count**2 + 1) / (math.log(0.9) * 12))))
    whole = torch.empty(count, dtype=torch.int32 if bits <= 32 else torch.int64)
    least = torch.iinfo(whole.dtype).min
    keys = _whole(position, whole, least, -least - 1).numpy().astype(np.uint64) & np.uint64((1 << bits) - 1)
    places = np.argsort(keys, kind="stable")
    keys = keys[places]
    begin = 0
    while begin < count:
        end = begin + 1
        while end < count and keys[end] == keys[begin]:
            end += 1
        for step, last in enumerate(range(end - begin - 1, 0, -1)):
            at = np.array([begin]), np.array([position[1] // WORDS + 1 + step // WORDS])
            other = begin + int(words(position[0], *at)[step % WORDS][0]) % (last + 1)
            places[[begin + last, other]] = places[[other, begin + last]]
        begin = end
    return places


def _permutation(count: int, *, generator: Any = None, out: torch.Tensor) -> torch.Tensor:
    """``aten::randperm.generator_out``."""
    plain: torch.Tensor = aten.randperm.generator_out(count, generator=generator, out=out)
    if out.is_meta or not isinstance(generator, Positioned) or count < 2:
        return plain
    return put(out, _permuted(generator.position, count))


def _normal_of(operation: Any) -> Draw:
    """``aten::normal`` with a mean or a deviation for each number."""

    def draw(mean: Any, std: Any = 1.0, *, generator: Any = None) -> torch.Tensor:
        plain: torch.Tensor = operation(mean, std, generator=generator)  # raises for what it does not take
        if plain.is_meta or not isinstance(generator, Positioned) or not plain.numel():
            return plain
        return put(plain, normal(generator.position, plain.numel(), plain.dtype)).mul_(std).add_(mean)

    return draw


def _dropped(position: Position, tensor: torch.Tensor, keep: float) -> torch.Tensor:
    """What dropout keeps. A thread takes as many numbers at once as can be read at once, where that leaves no rest."""
    count, item = tensor.numel(), tensor.element_size()
    dense = extent(tensor.shape, tensor.stride()) == count
    at_once = 8 if item < 4 else 4
    while at_once > 1 and (not dense or tensor.data_ptr() % (at_once * item) or count % at_once):
        at_once //= 2
    seed, start = position[0], position[1] // WORDS
    threads = min(THREADS, -(-count // BLOCK) * BLOCK)
    kept = torch.empty_like(tensor, dtype=torch.bool)
    if at_once == 1:
        four, which = drawn(position, count, WORDS)
        numbers = narrow(np.choose(which, four)) <= np.float32(keep)
        return kept.copy_(torch.from_numpy(numbers).view(kept.shape))
    groups, which = np.divmod(np.arange(count), at_once)
    rounds, thread = np.divmod(groups, threads)
    calls = -(-at_once // WORDS)
    four = words(seed, thread, start + rounds * calls + which // WORDS)
    return put(kept, narrow(np.choose(which % WORDS, four)) < np.float32(keep))


def _dropout(tensor: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """``aten::native_dropout``."""
    position = drawn_at()
    plain: tuple[torch.Tensor, torch.Tensor] = aten.native_dropout.default(tensor, p, train)
    if tensor.is_meta or position is None or not tensor.numel() or train is False or not 0 < p < 1:
        return plain
    kept = _dropped(position, tensor, 1 - p)
    wide = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
    return (wide * kept * (1 / (1 - p))).to(tensor.dtype), kept


def drawing_kernels() -> dict[str, Any]:
    """The operations that draw as CUDA's do, by name."""
    between = positioned(aten.random_.__getattr__("from"))(_between)
    return {
        "uniform_": Kernel(aten.uniform_.default, _uniform),
        "normal_": Kernel(aten.normal_.default, _normal),
        "random_.from": Kernel(aten.random_.__getattr__("from"), between),
        "random_.to": Kernel(aten.random_.to, _below),
        "bernoulli_.float": Kernel(aten.bernoulli_.float, _bernoulli),
        "exponential_": Kernel(aten.exponential_.default, _exponential),
        "multinomial": Kernel(aten.multinomial.default, _several),
        "random_": Kernel(aten.random_.default, _any_whole),
        "geometric_": Kernel(aten.geometric_.default, _geometric),
        "log_normal_": Kernel(aten.log_normal_.default, _log_normal),
        "cauchy_": Kernel(aten.cauchy_.default, _cauchy),
        "bernoulli_.Tensor": Kernel(aten.bernoulli_.Tensor, _bernoulli_of),
        "bernoulli": Kernel(aten.bernoulli.default, _bernoulli_like),
        "rrelu_with_noise": Kernel(aten.rrelu_with_noise.default, _rrelu),
        "randperm.generator_out": Kernel(aten.randperm.generator_out, _permutation),
        "normal.Tensor_float": Kernel(aten.normal.Tensor_float, _normal_of(aten.normal.Tensor_float)),
        **{
            f"normal.{op._overloadname}": waiting_kernel(op, _normal_of(op))  # whether any deviation is negative
            for op in (aten.normal.Tensor_Tensor, aten.normal.float_Tensor)
        },
        "native_dropout": Kernel(aten.native_dropout.default, _dropout),
    }
