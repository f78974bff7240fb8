"""Tensors that share memory, and that a trace takes for separate ones: refused once it would matter.

Tracing replaces writes by copies, and knows which tensors share memory by the views that lead from one to the other.
Two kinds of views say nothing of it: what ``unsafe_split`` and ``unsafe_chunk`` give, and ``as_strided`` where it
reaches out of its tensor. Neither matters until somebody writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from paramgraph_kit.driver.tensors import extent
from paramgraph_kit.driver.torch_names import torch_name

Tensor = torch.Tensor
_ATEN = torch.ops.aten
_STRIDED = (_ATEN.as_strided.default, _ATEN.as_strided_.default)
_PARTS = (_ATEN.unsafe_split.Tensor, _ATEN.unsafe_split_with_sizes.default)
_ELSEWHERE = "where it is written or has a gradient, a trace has another one: slice the input"
_SLICE = "a trace does not know that they share memory: slice the input"
_SPLIT = "a trace does not know that they share memory: use split or chunk"


class Apart:
    """What one trace takes for separate, and what has been written of it.

    >>> apart = Apart(inputs=())
    >>> apart.wrong(torch.ops.aten.mul.Tensor, (torch.ones(2), 2), {}, None) is None
    True
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self._inputs = set(_storages(inputs))
        self._reached: set[int] = set()  # storages of inputs of which a view reaches out of the input
        self._splits: list[tuple[int, set[int]]] = []  # a storage, and those of its parts: one in eager
        self._stale: set[int] = set()  # a write to what shares their memory did not reach them
        self._kept: list[Any] = []  # a storage's number stays its own while these live

    def wrong(
        self, function: torch._ops.OpOverload, args: Sequence[Any], named: Mapping[str, Any], result: Any
    ) -> tuple[str, str] | None:
        """What an operation did that the trace has otherwise, and what to do."""
        if function in _STRIDED and _storage(args[0]) in self._inputs:  # of any other tensor torch says so itself
            return self._strided(*args)
        if function in _PARTS:
            self._splits.append((_storage(args[0]), set(_storages(result))))
            self._kept += [args[0], *result]
        if function._schema.is_mutable:
            for argument, given in zip(function._schema.arguments, [*args, *[None] * len(named)], strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    written = set(_storages([named.get(argument.name, given)]))
                    if written & self._reached:
                        return "writes to an input of which an as_strided view reaches out", _SLICE
                    self._stale.update(each for storage in written for each in self._missed(storage))
        return self.stale([*args, *named.values()])

    def stale(self, used: Sequence[Any]) -> tuple[str, str] | None:
        """The same of what is used: what is returned, and what is the caller's, always are."""
        if self._stale and not self._stale.isdisjoint([*self._inputs, *_storages(used)]):
            return "uses a tensor after a write to a part of it that unsafe_split or unsafe_chunk gave", _SPLIT
        return None

    def _strided(self, x: Tensor, *layout: Any) -> tuple[str, str] | None:
        # A trace writes a copy of an input, and keeps no beginning of its storage.
        inner: Tensor = x.elem  # type: ignore[attr-defined]  # of a tensor of a trace
        if len(layout) > 2 and (x.requires_grad or torch_name("_functionalize_has_data_mutation")(inner)):
            return "counts from where the storage of an input begins", _ELSEWHERE
        if _reaches_out(x, *layout):
            self._reached.add(_storage(x))
        return None

    def _missed(self, storage: int, by: int | None = None) -> Iterator[int]:
        """The storages that a write to one does not reach: the parts of one split have nothing in common."""
        for number, (whole, parts) in enumerate(self._splits):
            if number != by and (storage == whole or storage in parts):
                for each in parts if storage == whole else (whole,):
                    yield each
                    yield from self._missed(each, number)


def _storage(x: Tensor) -> int:
    return int(Tensor.untyped_storage(x)._cdata)


def _storages(values: Iterable[Any]) -> Iterator[int]:
    for value in values:
        if isinstance(value, Tensor) and value.layout is torch.strided:
            yield _storage(value)
        elif isinstance(value, (list, tuple)):
            yield from _storages(value)


def _reaches_out(x: Tensor, size: Sequence[int], stride: Sequence[int], start: int | None = None) -> bool:
    """Whether a layout has elements that are none of the tensor's."""
    at = int(Tensor.storage_offset(x))
    own, asked = _span(x.shape, x.stride(), at), _span(size, stride, at if start is None else start)
    inside = len(own) == x.numel() and own.start <= asked.start and asked.stop <= own.stop
    return bool(asked) and not inside


def _span(size: Sequence[int], stride: Sequence[int], start: int) -> range:
    """The elements of a storage from the first to the last of a layout."""
    return range(start, start + extent(size, stride))
