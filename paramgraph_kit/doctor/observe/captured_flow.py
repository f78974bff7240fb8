"""In which order the operations of captures read and write memory, and what is written between their replays."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import torch

from paramgraph_kit.doctor.observe.captured_values import Use
from paramgraph_kit.doctor.observe.copied_over import CopiedOver
from paramgraph_kit.doctor.observe.given_objects import GivenObjects
from paramgraph_kit.doctor.observe.learning import learning
from paramgraph_kit.doctor.observe.places import Place, line_of
from paramgraph_kit.doctor.observe.refusals import Operation
from paramgraph_kit.doctor.observe.warmed_up import WrittenAhead, is_moving
from paramgraph_kit.doctor.observe.written_parts import WrittenParts
from paramgraph_kit.doctor.restore.keeper import Keeper, storage_key, storage_ref
from paramgraph_kit.driver.files import is_library
from paramgraph_kit.trace.model import Failure

_OVERWRITES = ("zero_", "fill_", "copy_", "normal_", "uniform_", "random_", "bernoulli_", "set_")
_MAY_ZERO = ("zero_", "fill_", "copy_", "mul_")
_CLIPS = "/torch/nn/utils/clip_grad"  # which multiplies gradients, and clears none
_MOST = 1000  # of what is written between two replays


@dataclass(slots=True)
class _Order:
    """What one capture does, in its order, with each memory."""

    made: dict[int, Place] = field(default_factory=dict)  # where memory of its own is made first
    read: set[int] = field(default_factory=set)  # which of that is read before it is written over
    met: set[int] = field(default_factory=set)  # memory that it has read, or written
    states: dict[int, Any] = field(default_factory=dict)  # weak references to what it writes
    reads: set[int] = field(default_factory=set)  # memory that it reads, at any time
    asked: set[int] = field(default_factory=set)  # memory of before that it reads ahead of all that it writes there
    stepped: set[int] = field(default_factory=set)  # memory of before that it adds to, or scales, where it lies
    carried: set[int] = field(default_factory=set)  # of its own, read first and written behind that
    added: set[int] = field(default_factory=set)  # gradients of before, to which its backward pass adds
    written: set[int] = field(default_factory=set)
    cleared: set[int] = field(default_factory=set)  # memory of before that it writes over, and has not read
    parts: set[int] = field(default_factory=set)  # of that, what it has begun with a part of
    in_parts: WrittenParts = field(default_factory=WrittenParts)  # and whether it goes on from the rest
    wiped: set[int] = field(default_factory=set)  # memory of before that it leaves written over, and added to no more
    codes: dict[CodeType, None] = field(default_factory=dict)  # the user's functions that have run for it
    around: set[CodeType] = field(default_factory=set)  # those that were running when it began
    since: set[int] = field(default_factory=set)  # memory written elsewhere since its latest replay
    zeroed: set[int] = field(default_factory=set)  # and that which may be cleared there
    replays: int = 0
    given: GivenObjects = field(default_factory=GivenObjects)
    over: CopiedOver = field(default_factory=CopiedOver)
    sums: bool = False  # weights have been moved between two replays, and the gradients were not cleared
    weights: dict[int, int] = field(default_factory=dict)  # the memory of weights, by that of their gradients
    held: list[Any] = field(default_factory=list)  # weak references that keep a key of such gradients theirs


class CapturedFlow:
    """The order of all captures that somebody has seen."""

    def __init__(self) -> None:
        self._known: dict[int, _Order] = {}
        self.ahead: WrittenAhead | None = None  # of the call that runs now

    def begin(self, graph: object) -> None:
        """A capture begins here."""
        own = self._known[id(graph)] = _Order()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            own.around.add(frame.f_code)
            frame = frame.f_back
        if self.ahead is not None:
            self.ahead.begin(graph, own.written, own.met, own.added, own.asked, own.stepped, own.reads, own.codes)

    def ended(self, graph: object) -> None:
        """Its capture has ended well: whose gradients it adds to is known now, and they may be None at a replay."""
        if (own := self._known.get(id(graph))) is not None and own.added:
            for weight, grad in weights_of(own.added):
                own.weights[storage_key(grad)] = storage_key(weight)
                own.held.append(storage_ref(grad.untyped_storage()))

    def adopt(self, graph: object, met: set[int]) -> None:
        """A capture of before, which is known to read, or to write, this memory."""
        self._known[id(graph)] = _Order(met=met)

    def saw(
        self, graph: object, op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, at: Place
    ) -> None:
        """An operation was captured; views are none."""
        own = self._known.setdefault(id(graph), _Order())
        own.codes |= dict.fromkeys(code for code, _ in at.stack if not is_library(code.co_filename))
        own.given.look(own.around, at)
        written, read = written_and_read(op, args, kwargs)
        whole = op.name.removeprefix("_foreach_") in _OVERWRITES or "out" in op.written_names
        for key in read | written:
            if key not in own.met and key not in own.made and key in written and at.in_backward and op.name == "add_":
                own.added.add(key)
            if key not in own.met and key not in own.made and whole and key in written:
                own.cleared.add(key)
                given = [t for t in tensors_of((args, [*kwargs.values()])) if storage_key(t) == key]
                own.parts |= {key} if all(t.nbytes < t.untyped_storage().nbytes() for t in given) else set()
                if op.name == "copy_" and key not in own.parts and not read & own.made.keys() and len(read) == 1:
                    own.over.captures(key, next(iter(read)), at)
            if key in own.made and key not in own.met and not (whole and key in written):
                own.read.add(key)
        given = [t for t in tensors_of((args, [*kwargs.values()])) if storage_key(t) not in own.made]
        goes_on = read | written if is_moving(op.name) else read
        own.in_parts.reads(t for t in given if storage_key(t) in goes_on)
        own.in_parts.writes((t for t in given if storage_key(t) in written), written - own.met, over=whole)
        own.wiped = own.wiped | (written - own.made.keys()) if whole else own.wiped - written
        own.carried |= written & own.read
        own.asked |= (read - own.written - own.made.keys()) | own.in_parts.goes_on
        own.stepped |= written - own.written - own.made.keys() if is_moving(op.name) else set()
        own.reads |= read
        own.met |= read | written
        own.written |= written
        for tensor in (t for t in tensors_of((args, [*kwargs.values()])) if storage_key(t) in written):
            own.states.setdefault(storage_key(tensor), weakref.ref(tensor if tensor._base is None else tensor._base))
        for tensor in tensors_of((result,)):
            if (key := storage_key(tensor)) not in written | read:
                own.made.setdefault(key, at)

    def wrote(self, op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any], at: Place) -> None:
        """An operation runs outside of all captures, which perhaps writes to something."""
        if not self._known or (not any(own.over.inside for own in self._known.values()) and not op.written):
            return
        written, read = written_and_read(op, args, kwargs)
        target = next(iter(written), 0) if op.name == "copy_" and len(read) == 1 else 0
        for own in (each for each in self._known.values() if each.over.inside):
            own.over.runs(read, target, next(iter(read), 0), at)
        if not op.written:
            return
        zeroes = op.name.removeprefix("_foreach_") in _MAY_ZERO and not any(_CLIPS in file for file in at.files)
        for own in self._known.values():
            if len(own.since) < _MOST:
                own.since |= written
            own.zeroed |= written if zeroes else set()

    def launched(self, graph: object) -> None:
        """A graph is replayed."""
        if (now := self._known.get(id(graph))) is None:
            return
        if self.ahead is not None:
            self.ahead.replayed(graph, now.written)
        left = now.added - now.zeroed
        if now.replays and left and not now.sums:
            moved = now.since | now.written
            now.sums = any(now.weights.get(key) in moved for key in left)
        now.replays += 1
        now.over.launched(now.since)
        now.since, now.zeroed = set(), {*now.wiped}
        for own in self._known.values():
            if own is not now:
                own.since |= now.written
                own.zeroed |= now.cleared | now.wiped | now.made.keys()

    def sums_up(self, graph: object) -> bool:
        """Whether replays of a graph add to gradients that were used already, and that nobody has cleared."""
        own = self._known.get(id(graph))
        return own is not None and own.sums

    def keep(self, graph: object, keeper: Keeper | None) -> None:
        """A graph is replayed next: what it writes of memory that was there before is put back as all else is."""
        own = self._known.get(id(graph), _Order())
        for tensor in (t for key, ref in own.states.items() if key not in own.made and (t := ref()) is not None):
            if keeper is not None:
                keeper.keep(tensor)

    def written(self, graph: object) -> set[int]:
        """Memory that a graph writes."""
        own = self._known.get(id(graph))
        return own.written if own is not None else set()

    def filled(self, graph: object) -> set[int]:
        """Memory of before that a graph writes, without gradients to which it adds."""
        own = self._known.get(id(graph), _Order())
        return own.written - own.made.keys() - own.added

    def overwritten(self, graph: object) -> set[int]:
        """Memory of before that a graph writes over as a whole, and does not read as others have left it."""
        own = self._known.get(id(graph), _Order())
        return own.cleared - own.parts

    def moved(self, graph: object) -> set[int]:
        """Memory of before that a graph goes on from, and leaves otherwise."""
        own = self._known.get(id(graph), _Order())
        return own.written - own.made.keys() - (own.cleared - own.in_parts.goes_on) - own.added

    def codes(self, graph: object, where: CodeType) -> list[CodeType]:
        """The functions whose lines are in a graph: that in which its capture stands, and those called from there."""
        own = self._known.get(id(graph), _Order())
        return [code for code in own.codes if code is where or code not in own.around]

    def learned(self, graph: object, where: CodeType) -> tuple[list[CodeType], Collection[int], set[int], set[int]]:
        """The functions of a graph, the memory that it has made, the gradients of before to which it has added.

        And the memory of before that it reads as others have left it.
        """
        own = self._known.get(id(graph), _Order())
        return self.codes(graph, where), own.made.keys(), own.added, own.asked

    def is_begun_elsewhere(self, graph: object) -> bool:
        """Whether another graph makes all gradients that a graph adds to: its replays begin the sum."""
        own = self._known.get(id(graph), _Order())
        others = [each for each in self._known.values() if each is not own]
        return bool(own.added) and all(any(key in other.made for other in others) for key in own.added)

    def is_fed(self, graph: object) -> bool:
        """Whether something was written since its latest replay that a graph reads, or writes."""
        own = self._known.get(id(graph), _Order())
        return not own.since.isdisjoint(own.met)

    def copied_over(self, given: Iterable[torch.Tensor]) -> list[Failure]:
        """Copies to what graphs copy to themselves, each once; ``given``: the arguments of the function."""
        keys = {storage_key(tensor) for tensor in given}
        found = (f for own in self._known.values() for f in own.over.failures(keys))
        return [*dict.fromkeys(found)]

    def uses(self, graph: object) -> list[Use]:
        """What the functions that have run for a graph read of the objects that they were given."""
        own = self._known.get(id(graph))
        return own.given.uses() if own is not None else []

    def made_at(self, graph: object, code: CodeType, lines: Collection[int]) -> Iterator[tuple[int, bool]]:
        """Memory that a graph makes by these lines and reads first, each with whether it writes there behind that."""
        own = self._known.get(id(graph), _Order())
        for key, at in own.made.items():
            if any(each is code and line_of(each, spot) in lines for each, spot in at.stack) and key in own.read:
                yield key, key in own.carried


def written_and_read(op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[set[int], set[int]]:
    """Memory that an operation writes, and what it is given beside that."""
    given = [*((i in op.written, arg) for i, arg in enumerate(args))]
    given += [(name in op.written_names, arg) for name, arg in kwargs.items()]
    written = {storage_key(t) for is_written, arg in given if is_written for t in tensors_of((arg,))}
    read = {storage_key(t) for is_written, arg in given if not is_written for t in tensors_of((arg,))}
    return written - {0}, read - {0} - written


def weights_of(gradients: Collection[int]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The tensors that have these gradients, each with its own: whoever holds them."""
    for each in learning():
        if each.grad is not None and storage_key(each.grad) in gradients:
            yield each, each.grad


def tensors_of(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among the arguments of an operation, also those in lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_of(value)
