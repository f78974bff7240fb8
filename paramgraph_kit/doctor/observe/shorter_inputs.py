"""A bucket that today's input fills: whether a shorter one reads what this one leaves is tried with one row less."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from operator import is_
from typing import Any

import torch

from paramgraph_kit.doctor.observe.held import attributes_of, is_a, is_graph
from paramgraph_kit.doctor.restore.keeper import storage_key

_MOST_WITHIN = 4  # tuples, lists and objects in one another
_WHOLE = (torch.int64, torch.int32, torch.int16)
_MOST_COUNTS = 1 << 20
_MOST_HELD = 64  # entries of an object


def with_one_less(value: Any, size: int, stays: Collection[int]) -> Any:
    """The same of one row less, where it has as many as a line fills; anything else as it is.

    Args:
        value: an argument of the step.
        size: how many rows a line fills.
        stays: memory that graphs read or write, which no input has.

    >>> with_one_less((torch.ones(4, 2), [1, 2, 3, 4], 4, "four", True), 4, ())[1:]
    ([1, 2, 3], 3, 'four', True)
    >>> with_one_less(batch := [[5.0], {"of": "four"}], 4, ()) is batch
    True
    """
    return _less(value, size, stays, _MOST_WITHIN)


def _less(value: Any, size: int, stays: Collection[int], within: int) -> Any:
    kind = type(value)
    if is_a(value, torch.Tensor):
        return _rows_less(value, size) if kind is torch.Tensor and storage_key(value) not in stays else value
    if kind is int:
        return value - 1 if value == size and value > 1 else value
    if is_a(value, (torch.nn.Module, torch.optim.Optimizer, type)) or is_graph(value) or not within:
        return value

    def less(each: Any) -> Any:
        return _less(each, size, stays, within - 1)

    if kind is dict:
        parts = [less(each) for each in value.values()]
        return value if _are_same(parts, value.values()) else dict(zip(value, parts, strict=True))
    is_named = issubclass(kind, tuple) and hasattr(kind, "_make")
    if kind is list or kind is tuple or is_named:
        parts = [less(each) for each in (value[:-1] if len(value) == size > 1 and not is_named else value)]
        return value if _are_same(parts, value) else kind._make(parts) if is_named else kind(parts)
    if kind.__module__ == "numpy" and hasattr(value, "ndim") and value.ndim:
        return value[:-1] if len(value) == size and len(value) > 1 else value
    return _with_fields(value, less) if hasattr(kind, "__dataclass_fields__") else value


def _are_same(parts: list[Any], known: Collection[Any]) -> bool:
    """Whether nothing of a container is another, so that no call with it says more."""
    return len(parts) == len(known) and all(map(is_, parts, known))


def _with_fields(value: Any, less: Callable[[Any], Any]) -> Any:
    """A batch that is a dataclass; one that holds a graph is the runner's."""
    held = attributes_of(value)
    if len(held) > _MOST_HELD or any(is_graph(each) for each in held.values()):
        return value
    moved = {name: less(each) for name, each in held.items()}
    if all(moved[name] is each for name, each in held.items()):
        return value
    made = copy.copy(value)
    for name, each in moved.items():
        object.__setattr__(made, name, each)
    return made


def _rows_less(tensor: torch.Tensor, size: int) -> torch.Tensor:
    at = next((at for at, of in enumerate(tensor.shape) if of == size > 1), None)
    counts = tensor.dtype in _WHOLE and tensor.numel() > 0 and tensor.numel() <= _MOST_COUNTS and tensor.max() == size
    if not tensor.is_leaf or (at is None and not counts):
        return tensor
    with torch.no_grad():
        part = tensor if at is None else tensor.narrow(at, 0, size - 1)
        part = part.clamp(max=size - 1) if counts else part.clone(memory_format=torch.contiguous_format)  # lengths
        part = part.pin_memory() if tensor.device.type == "cpu" and tensor.is_pinned() else part
    return part.requires_grad_(tensor.requires_grad)
