"""Memory that an operation reads and writes at once: refused before anything is launched, as torch does."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from paramgraph_kit.driver.tensors import extent

from .not_known import not_known
from .whole import convert

WARP = 32  # numbers that are written at once
READS_FIRST = frozenset({"cumprod", "cumsum", "logcumsumexp"})  # no iterator of torch's on the device: it does not look
MOST_NUMBERS = 1 << 20  # that are worth a look

_REFUSED = (
    "unsupported operation: {} to a single memory location. Please clone() the tensor before performing the operation."
)


def check_overlap(target: torch.Tensor, sources: Sequence[torch.Tensor]) -> None:
    """Raise RuntimeError as TensorIterator does, where what is written to overlaps itself or a part of what is read."""
    if not target.numel():
        return
    if any(size > 1 and not stride for size, stride in zip(target.shape, target.stride(), strict=True)):
        raise RuntimeError(_REFUSED.format("more than one element of the written-to tensor refers"))
    place = _place(target)
    for source in sources:
        other = _place(source)
        apart = place[1] <= other[0] or other[1] <= place[0]
        same = (place, target.stride()) == (other, source.stride())
        if not (apart or same) and source.numel() and all(_plain(each) for each in (target, source)):
            raise RuntimeError(_REFUSED.format("some elements of the input tensor and the written-to tensor refer"))


def check_apart(target: torch.Tensor, source: torch.Tensor) -> None:
    """Raise RuntimeError as torch does before it writes by indices, where some of what is read is written to."""
    place, other = _place(target), _place(source)
    meet = place[0] < other[1] and other[0] < place[1]
    if meet and target.numel() and source.numel() and all(_plain(each) for each in (target, source)):
        raise RuntimeError(_REFUSED.format("some elements of the input tensor and the written-to tensor refer"))


def in_one_place(target: torch.Tensor, operands: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Stand-ins on the CPU, by what they stand for, whose places overlap as these do; none where nothing meets it.

    Each operation has its own rule of what may overlap, which its CPU kernel knows, and no meta kernel asks.

    >>> x = torch.arange(4.0)
    >>> sorted(t.tolist() for t in in_one_place(x[:2], [x[:2], x[1:]]).values()), in_one_place(x[:2], [x[:2], x[2:]])
    ([[0.0, 0.0], [0.0, 0.0, 0.0]], {})
    """
    begin, end = _reach(target)
    meets = [each for each in operands if (place := _reach(each))[0] < end and begin < place[1]]
    if len(meets) < 2 or sum(each.numel() for each in operands) > MOST_NUMBERS:
        return {}
    memory: dict[int, torch.UntypedStorage] = {}
    found: dict[int, torch.Tensor] = {}
    for each in operands:
        held = each.untyped_storage()
        if (start := held.data_ptr()) not in memory:
            memory[start] = torch.zeros(held.nbytes(), dtype=torch.uint8).untyped_storage()
        found[id(each)] = each.new_empty(0, device="cpu")
        found[id(each)].set_(memory[start], each.storage_offset(), each.shape, each.stride())
    return found


def read_before(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """What a copy reads where it writes some of the same memory: each of a GPU's threads reads before any writes.

    >>> x = torch.arange(4.0)
    >>> read_before(x[1:], x[:-1]).data_ptr() == x.data_ptr(), read_before(x[2:], x[:2]).data_ptr() == x.data_ptr()
    (False, True)
    """
    (begin, end), (first, last) = _reach(target), _reach(source)
    return source if last <= begin or end <= first else source.clone()


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether some of its numbers lie in one place, as far as strides tell; steps of 0 are refused elsewhere.

    >>> x = torch.zeros(9)
    >>> overlaps_itself(x.unfold(0, 3, 1)), overlaps_itself(x[::2]), overlaps_itself(x.view(3, 3).T)
    (True, False, False)
    """
    if tensor.is_contiguous():
        return False
    reach = 0
    for step, size in sorted(
        (step, size) for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1
    ):
        if step <= reach:
            return step > 0
        reach += step * (size - 1)
    return False


def written_over(target: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Write numbers to what overlaps itself; of what one warp writes at once the first stays in each place."""
    target.copy_(numbers)
    if not ((target != numbers) & (numbers == numbers)).any():
        return target
    if numbers.numel() > WARP:
        not_known("which write stays of several to one place: what is written to overlaps itself")
        return target
    for place in reversed([*itertools.product(*map(range, target.shape))]):
        target[place] = numbers[place]
    return target


def copied_within(target: torch.Tensor, source: torch.Tensor) -> None:
    """A copy on the device, to whatever lies there."""
    if overlaps_itself(target):
        written_over(target, source.expand(target.shape).to(target.dtype))
    else:
        convert(target, source)


def _plain(tensor: torch.Tensor) -> Any:
    return torch.ops.aten.is_non_overlapping_and_dense(tensor)


def _reach(tensor: torch.Tensor) -> tuple[int, int]:
    """From which address to which its numbers lie, with what is between them."""
    begin = tensor.data_ptr()
    return begin, begin + extent(tensor.shape, tensor.stride()) * tensor.dtype.itemsize


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    begin = tensor.data_ptr()
    return begin, begin + tensor.nbytes
