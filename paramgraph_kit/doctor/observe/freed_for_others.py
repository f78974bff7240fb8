"""Memory that is freed while another stream than its own may still use it, and is taken again behind that.

The allocator gives a freed block to the next allocation on the stream that had it, and knows of no other stream's work
but of what ``record_stream`` tells it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.places import Place
from paramgraph_kit.doctor.restore.keeper import storage_key, storage_ref

if TYPE_CHECKING:
    from paramgraph_kit.doctor.observe.unordered import Order, Stamp


@dataclass(slots=True)
class _Block:
    """Memory that one stream has, and the latest work of others on it."""

    storage: Any  # a weak reference, which also keeps the key from being given to somebody else
    first: int
    size: int
    stream: int
    uses: dict[int, tuple[Stamp, Place]] = field(default_factory=dict)


class FreedForOthers:
    """The memory that was made while somebody looks, outside of all captures."""

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}  # only those of which another stream may have work to come

    def work(
        self,
        stamp: Stamp,
        given: Iterable[torch.Tensor],
        result: Any,
        device: str,
        place: Place,
        order: Order,
        waits: Mapping[int, int],
    ) -> Iterator[Place]:
        """Something is put on a stream; yields where other streams may still use what its new memory was before.

        ``waits``: how much of each other stream it waits for besides, once it does what is told already.
        """
        stream, keys = stamp[0], set[int]()

        def is_before(done: Stamp) -> bool:
            return order.is_before(done, stream) or waits.get(done[0], 0) >= done[1]

        for tensor in given:
            keys.add(key := storage_key(tensor))
            if (block := self._blocks.get(key)) is not None and block.stream != stream:
                block.uses[stream] = stamp, place
        for tensor in result if isinstance(result, (list, tuple)) else (result,):
            if not is_a(tensor, torch.Tensor) or tensor.device.type != device:
                continue
            if not (key := storage_key(tensor)) or key in keys or key in self._blocks:
                continue
            storage = tensor.untyped_storage()
            made = _Block(storage_ref(storage), storage.data_ptr(), storage.nbytes(), stream)
            for old in self._taken_by(made):
                late = (at for done, at in old.uses.values() if not is_before(done))
                yield from late if old.stream == stream else ()
            self._blocks[key] = made

    def recorded(self, tensor: torch.Tensor) -> None:
        """``record_stream`` tells the allocator of another stream: it keeps the memory until that is done with it."""
        self._blocks.pop(storage_key(tensor), None)

    def _taken_by(self, made: _Block) -> list[_Block]:
        """What is gone and lay where new memory lies; what is gone and nobody else has used goes, too."""
        gone = {key: each for key, each in self._blocks.items() if each.storage.expired()}
        end = made.first + made.size
        taken = {k for k, b in gone.items() if b.first < end and made.first < b.first + b.size}
        for key in (k for k, b in gone.items() if k in taken or not b.uses):
            del self._blocks[key]
        return [gone[key] for key in taken]
