"""Memory that what a graph reads is made from, and that another stream fills again before that is done.

A landing buffer is read on the stream of the replay (``x.copy_(landing)``), and written on a stream of copies, which
has to wait for that read: the graph itself never sees the buffer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes as no_modes

from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.places import Place
from paramgraph_kit.doctor.restore.keeper import storage_key, storage_ref

if TYPE_CHECKING:
    from paramgraph_kit.doctor.observe.unordered import Order, Stamp

_MOST = 64  # reads that are known of what some memory holds, the latest; and tensors of an operation


class _Spot(NamedTuple):
    """The elements of a tensor within its memory."""

    key: int
    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    size: int  # of an element

    def meets(self, other: _Spot) -> bool:
        """Whether two have elements in common."""
        if self.key != other.key or 0 in (*self.shape, *other.shape):
            return False
        if self.first * self.size >= other._end() or other.first * other.size >= self._end():
            return False
        if self.size != other.size:
            return True
        first = min(self.first, other.first)
        with no_modes():  # columns of one buffer lie between one another
            seen = torch.zeros(max(self._end(), other._end()) // self.size - first, dtype=torch.bool, device="cpu")
            seen.as_strided(self.shape, self.strides, self.first - first).fill_(True)
            return bool(seen.as_strided(other.shape, other.strides, other.first - first).any())

    def _end(self) -> int:
        last = sum((n - 1) * by for n, by in zip(self.shape, self.strides, strict=True))
        return (self.first + last + 1) * self.size


class _Read(NamedTuple):
    at: Stamp
    place: Place
    storage: Any  # a weak reference, which keeps the key from being given to somebody else


_Reads = dict[tuple[_Spot, int], _Read]  # the latest, by what is read and on which stream


class RefilledEarly:
    """What the inputs of graphs are made from, outside of all captures."""

    def __init__(self) -> None:
        self._reads: dict[int, _Reads] = {}  # by the memory that came from there
        self._fed: dict[int, _Reads] = {}  # those of graphs' inputs, by the memory that was read
        self._inputs = set[int]()
        self._room = 1024

    def work(
        self,
        stamp: Stamp,
        given: Iterable[torch.Tensor],
        filled: Collection[int],
        result: Any,
        device: str,
        place: Place,
        order: Order,
        waits: Mapping[int, int],
    ) -> Iterator[tuple[Stamp, Place]]:
        """Something is put on a stream; yields where another may still read what it writes to, for a graph.

        ``filled``: ids of the tensors that are written; ``waits``: as for memory that is freed for others.
        """
        if not order.has_several():  # one stream has nothing to wait for
            return
        given = [tensor for tensor in given if tensor.device.type == device and storage_key(tensor)]
        made = [r for r in (result if isinstance(result, (list, tuple)) else (result,)) if is_a(r, torch.Tensor)]
        keys, stream = {*map(storage_key, given)}, stamp[0]
        for tensor in given if self._fed else ():
            if id(tensor) in filled and (known := self._fed.get(storage_key(tensor))):
                spot = _spot(tensor)
                for (read, other), each in [*known.items()]:
                    is_before = order.is_before(each.at, stream) or waits.get(other, 0) >= each.at[1]
                    if not is_before and read.meets(spot):
                        yield each.at, each.place
        into = [storage_key(tensor) for tensor in given if id(tensor) in filled]
        new = [key for r in made if r.device.type == device and (key := storage_key(r)) and key not in keys]
        self._inputs.difference_update(new)
        for key in new:
            self._reads.pop(key, None)
        reads = [tensor for tensor in given if id(tensor) not in filled]
        into = [*into, *new]
        if len(reads) == len(into):  # one by one, as _foreach_copy_() does
            for key, tensor in zip(into, reads, strict=True):
                self._note(key, [tensor], stamp, place)
        elif len(reads) + len(into) <= _MOST:
            for key in into:
                self._note(key, reads, stamp, place)

    def launched(self, inputs: Collection[int]) -> None:
        """A graph is replayed that reads this memory."""
        self._inputs.update(inputs)
        for key in [key for key in inputs if key in self._reads]:
            self._feed(self._reads[key])

    def _note(self, key: int, reads: list[torch.Tensor], stamp: Stamp, place: Place) -> None:
        known = self._reads.pop(key, {})
        for tensor in reads:
            if further := self._reads.get(storage_key(tensor)):
                for one, read in [*further.items()]:
                    known.pop(one, None)  # so that the latest come last
                    known[one] = read
        for tensor in reads:
            known.pop(one := (_spot(tensor), stamp[0]), None)
            known[one] = _Read(stamp, place, storage_ref(tensor.untyped_storage()))
        while len(known) > _MOST:
            del known[next(iter(known))]
        if not known:
            return
        self._reads[key] = known
        if key in self._inputs:
            self._feed(known)
        if len(self._reads) + len(self._fed) > self._room:
            self._reads, self._fed = _alive(self._reads), _alive(self._fed)
            self._room = max(1024, 2 * (len(self._reads) + len(self._fed)))

    def _feed(self, reads: _Reads) -> None:
        for one, read in [*reads.items()]:
            self._fed.setdefault(one[0].key, {})[one] = read


def _spot(tensor: torch.Tensor) -> _Spot:
    first, shape, strides = int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride()
    return _Spot(storage_key(tensor), first, shape, tuple(strides), tensor.element_size())


def _alive(known: dict[int, _Reads]) -> dict[int, _Reads]:
    """What is known of memory that is still there."""
    found = {key: {o: r for o, r in [*reads.items()] if not r.storage.expired()} for key, reads in [*known.items()]}
    return {key: reads for key, reads in found.items() if reads}
