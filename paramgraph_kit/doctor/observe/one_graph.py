"""One graph of a program's, as its capture was seen: what it reads from outside, and what it makes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import islice
from threading import get_ident
from types import CodeType
from typing import Any

import torch

from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.places import Place, frames_of_the_user
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.driver.files import is_library
from paramgraph_kit.driver.lines import frame_of_line
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.trace.model import Frame

_DEEP = 4  # functions around a capture


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory that a graph writes."""

    storage: Any  # a weak reference
    first: int
    size: int


def called_here() -> dict[int, str]:
    """Memory of tensors, and what variables of the user's function that runs now call that."""
    frame = next(frames_of_the_user(), None)
    held = frame.f_locals.items() if frame is not None else ()
    return {key: name for name, value in held if is_a(value, torch.Tensor) and (key := storage_key(value))}


def given_here() -> dict[tuple[CodeType, str], int]:
    """Memory of the tensors that the innermost functions of the user's that run now were given."""
    found = {}
    for frame in islice(frames_of_the_user(), _DEEP):
        code = frame.f_code
        for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            value = frame.f_locals.get(name)
            if is_a(value, torch.Tensor) and (key := storage_key(value)):
                found[code, name] = key
    return found


def held_here() -> dict[CodeType, dict[str, int]]:
    """Memory of tensors, by what variables of the innermost functions of the user's that run now have it."""
    found = {}
    for frame in islice(frames_of_the_user(), _DEEP):
        held = frame.f_locals.items() if frame.f_code.co_name != "<module>" else ()
        found[frame.f_code] = {n: key for n, v in held if is_a(v, torch.Tensor) and (key := storage_key(v))}
    return found


@dataclass(slots=True)
class OneGraph:
    """One graph, as its capture was seen."""

    graph: object  # whose id stays its own so
    reads: dict[int, tuple[Any, Place, int]] = field(default_factory=dict)  # memory from outside of the capture
    touched: list[int] = field(default_factory=list)  # of one captured before: addresses of that memory
    ends: dict[int, int] = field(default_factory=dict)  # by memory, up to where it is read, in bytes
    made: set[int] = field(default_factory=set)
    of_others: set[int] = field(default_factory=set)  # of what it reads, what other graphs make: in their pools
    memory: dict[int, Memory] = field(default_factory=dict)  # of what is made
    hosts: dict[int, tuple[Any, bool]] = field(default_factory=dict)  # host memory that it copies, and if to there
    filled: frozenset[int] = frozenset()  # of one captured before: memory from outside that its lines copy to
    called: dict[int, str] = field(default_factory=called_here)  # memory, and variables where it is captured
    given: dict[tuple[CodeType, str], int] = field(default_factory=given_here)  # memory, by who was given it then
    held: dict[CodeType, dict[str, int]] = field(default_factory=held_here)  # the same of all their variables
    begun: CodeType | None = None  # the function of the user's in which its capture began
    pool: list[tuple[int, int]] = field(default_factory=list)  # where it lies, if nobody has seen what is made
    before: bool = False  # it was captured before anybody looked
    pooled: list[tuple[int, int, int, bool]] = field(default_factory=list)  # and what it touches in pools, as told
    freed: list[tuple[int, Frame | None]] = field(default_factory=list)  # what it reads and nobody keeps, if so
    loses: bool = False  # and memory is gone that autograd alone touches: gradients that were there at its capture
    by_torch: bool = False  # for make_graphed_callables, which keeps what is read, and copies what is made
    replayed: bool = False  # since its capture
    launched: bool = False  # while somebody looks
    order: int = 0  # how many replays of all graphs there were at its latest one
    last: Place | None = None  # where that was
    at: int = 0  # how much had been written at its latest replay
    empty: bool = False  # its capture holds nothing, as the device says
    fed: set[int] = field(default_factory=set)  # of one captured before: what is written of the memory that it touches
    spoiled: Place | None = None  # where another graph was replayed that writes to what this one has made

    def lose(self, freed: Iterable[tuple[int, tuple[str, int] | None]]) -> None:
        """This memory, which it touches, is gone; with the line that does, and none in autograd's own threads."""
        for at, place in freed:
            self.loses |= place is None
            if place is not None and not is_library(place[0]):
                self.freed.append((at, frame_of_line(*place)))

    def inputs(self) -> set[int]:
        """Memory from outside that it reads, as far as it is known."""
        return {*self.reads, *self.fed}

    def sources(self) -> set[int]:
        """Memory that it was seen to read, also pinned memory of the host's."""
        return {*self.reads, *(key for key, (_, fills) in self.hosts.items() if not fills)}

    def wrote(self, tensor: torch.Tensor, key: int) -> None:
        """Something outside of all captures writes to a tensor, which only the device knows that it touches."""
        if self.touched and tensor.untyped_storage().data_ptr() in self.touched:
            self.fed.add(key)

    def writes(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is memory that it has made."""
        if not (key := storage_key(tensor)) or key in self.memory or not self.pool or tensor.device.type == "cpu":
            return key in self.memory
        address = tensor.untyped_storage().data_ptr()
        return any(first <= address < first + size for first, size in self.pool)

    def makes(self) -> dict[int, tuple[int, int]]:
        """Memory of its pool that it makes, as addresses and sizes, also what nobody has any more."""
        seen = {key: (each.first, each.size) for key, each in self.memory.items()}
        return {which: (at, size) for which, at, size, made in self.pooled if made} or seen

    def takes(self) -> set[int]:
        """What it reads there of what others make."""
        return {which for which, _, _, made in self.pooled if not made} or self.of_others

    def holds(self, written: Collection[Memory]) -> bool:
        """Whether something that this one has made, and that is still there, lies in what another one writes."""
        alive = [m for m in self.memory.values() if not m.storage.expired()]
        return any(m.first < w.first + w.size and w.first < m.first + m.size for m in alive for w in written)


class OpenCaptures:
    """Those that are under way, each in a thread."""

    def __init__(self) -> None:
        self._of: dict[int, OneGraph] = {}

    def begin(self, one: OneGraph) -> None:
        """A capture begins in this thread."""
        self._of[get_ident()] = one

    def ended(self, graph: object) -> None:
        """That of a graph has ended."""
        self._of = {thread: one for thread, one in self._of.items() if one.graph is not graph}

    def here(self) -> OneGraph | None:
        """What this thread captures; autograd's threads have none of their own."""
        return self._of.get(get_ident(), next(iter(self._of.values()), None))

    def __contains__(self, one: OneGraph) -> bool:
        return any(each is one for each in self._of.values())


def among(keys: Collection[int]) -> Callable[[torch.Tensor], bool]:
    """Whether a tensor, and no parameter, is one of some memory."""
    return lambda tensor: storage_key(tensor) in keys and not is_a(tensor, torch.nn.Parameter)


def bytes_of(reference: Any) -> torch.Tensor | None:
    """What memory holds now that a weak reference knows, as long as somebody keeps it."""
    storage = None if reference.expired() else torch_name("_new_with_weak_ptr")(reference.cdata)
    return None if storage is None else torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
