"""Tensors that a step reads, and exchanges for others: a graph reads the first of them for ever.

Replays may look right all the same: of ``self.high = torch.where(new > self.high, new, self.high)`` as long as no new
one is higher. So may what several steps keep of a graph's memory, as long as each has the same numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from random import SystemRandom
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from paramgraph_kit.doctor.restore.holder import Holder
from paramgraph_kit.doctor.restore.keeper import HostRandom, storage_key
from paramgraph_kit.rewrite.proving.results import flat_tensors


class ExchangedError(RuntimeError):
    """A step reads a tensor in whose place it leaves another one, keeps what the next launch writes, or draws.

    ``paths`` are those of all such tensors.
    """

    paths: tuple[str, ...] = ()


class Held:
    """What variables and attributes of the user's hold now, by the memory of each tensor."""

    def __init__(self, holders: Iterable[Holder]) -> None:
        self._holders = [
            holder for holder in holders if not holder.of_torch and holder.kind not in ("class", "generator")
        ]
        self._tensors = self._now()
        self._keys = {at: storage_key(tensor) for at, tensor in self._tensors.items()}

    def check_still(self, step: Held, read: Collection[int]) -> None:
        """Called behind a launch of what was captured when this was made, with the memory that an earlier step read.

        Raises:
            ExchangedError: another tensor is where one of these was, which something around a launch has put there.
        """
        places = [(at, tensor) for at, tensor in self._now().items() if step._keys.get(at, 0) in read]
        self._raise([at[0] for at, tensor in places if self._keys.get(at, 0) not in (0, storage_key(tensor))])

    def check(self, read: Collection[int]) -> None:
        """Called behind the step, with the memory that it has read.

        Raises:
            ExchangedError: some of that was held when this was made, and another tensor is there now.
        """
        now = ((at, self._keys.get(at, 0), tensor) for at, tensor in self._now().items())
        paths = [at[0] for at, old, tensor in now if old and old in read and storage_key(tensor) != old]
        self._raise(paths)

    @staticmethod
    def _raise(paths: Iterable[str]) -> None:
        if names := (*dict.fromkeys(paths),):
            error = ExchangedError(f"`{names[0]}` is another tensor behind each step, and a graph reads the first one")
            error.paths = names
            raise error

    def _now(self) -> dict[tuple[str, int, Any], torch.Tensor]:
        found: dict[tuple[str, int, Any], torch.Tensor] = {}
        for number, holder in enumerate(self._holders):
            value = holder.read()
            for name, each in value.items() if isinstance(value, dict) else [("", value)]:
                path = f"{holder.name}.{name}" if holder.kind in ("attributes", "slots") else holder.name
                # Lists and tuples, too: a step may put others into one, or another one in its place.
                parts = list(each) if isinstance(each, (deque, list, tuple)) else [each]
                found |= {(path, number, (name, at)): t for at, t in enumerate(parts) if isinstance(t, torch.Tensor)}
        return found


class HostDraws:
    """What generators of the host will draw next: what a captured line draws decides alike in each replay."""

    def __init__(self, holders: Iterable[Holder] = ()) -> None:
        self._random = HostRandom()
        own = (holder for holder in holders if holder.kind in ("generator", "iterator"))
        # The system's generator has no state that could tell.
        self._own = [(each, each.read()) for each in own if not isinstance(each.target, SystemRandom)]

    def check(self) -> None:
        """Called behind a capture.

        Raises:
            ExchangedError: something was drawn since this was made; six steps may agree by chance all the same.
        """
        moved = [holder.name for holder, then in self._own if holder.read() != then]
        if moved or self._random.host_moved():
            by = f" from `{moved[0]}`" if moved else ""
            raise ExchangedError(f"lines that are captured draw on the host{by}, and no replay draws")


_OF_A_MODULE = ("_parameters", "_buffers", "_modules")
Alike = dict[int, tuple[str, list[int]]]


def alike(holders: Iterable[Holder]) -> Alike:
    """By the holder's number: its name, and of each value that it has the first one with the same memory."""
    found: Alike = {}
    for number, holder in enumerate(holders):
        if holder.of_torch or holder.kind in ("class", "generator"):
            continue
        value = holder.read()
        plain = dict(value) if isinstance(value, dict) else list(value) if isinstance(value, (deque, set)) else value
        places: dict[Any, int] = {}
        leaves = enumerate(tree_leaves(plain))
        found[number] = holder.name, [places.setdefault(_memory(each) or at, at) for at, each in leaves]
    return found


def lists_of(value: Any) -> list[Any]:
    """The lists and dictionaries among what something holds, of which a step may put another in the place of each."""
    entries = [*value.values()] if isinstance(value, dict) else []
    return [each for each in (value, *entries) if type(each) in (dict, list)]


def modules_of(value: Any) -> Iterator[dict[str, Any]]:
    """The same of modules, as what has their attributes; of a module's own attributes what has its parts."""
    entries = value if isinstance(value, dict) else {"": value}
    yield from (vars(each) for each in entries.values() if isinstance(each, torch.nn.Module))
    if entries.keys() >= {*_OF_A_MODULE}:
        yield from (entries[name] for name in _OF_A_MODULE)


def parts_of(values: Iterable[Any]) -> set[int]:
    """What tensors, lists, dictionaries and modules some values hold, as numbers that each has for itself."""
    return {id(part) for value in values for part in (*flat_tensors(value), *lists_of(value), *modules_of(value))}


def check_alike(eager: Alike, now: Alike) -> None:
    """Called behind some launches.

    Raises:
        ExchangedError: what several steps keep is one piece of memory, and was not without a graph.
    """
    for number in eager.keys() & now.keys():
        name, (then, these) = now[number][0], (eager[number][1], now[number][1])
        pairs = enumerate(these) if len(then) == len(these) else ()
        if any(at != first and then[at] != then[first] for at, first in pairs):
            raise ExchangedError(
                f"`{name}` keeps memory that each launch writes again, of several steps the last one's"
            )


def _memory(value: Any) -> tuple[Any, ...] | None:
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or not value.numel():
        return None
    key = storage_key(value)
    return (key, value.storage_offset(), *value.shape, *value.stride()) if key else None
