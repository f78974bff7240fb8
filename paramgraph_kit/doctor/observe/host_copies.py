"""Pinned memory that the host writes, or reads, while a copy that nobody has waited for may still be under way."""

from __future__ import annotations

import ast
import re
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes as no_modes

from paramgraph_kit.doctor.explain.syntax import every, last_name, nodes_of, tree_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.array_lines import ArrayLines, arrays_in, lies
from paramgraph_kit.doctor.observe.held import results_in
from paramgraph_kit.doctor.observe.places import Place, line_of
from paramgraph_kit.doctor.observe.refusals import Operation
from paramgraph_kit.doctor.restore.keeper import storage_key, storage_ref
from paramgraph_kit.trace.model import Failure, Frame

if TYPE_CHECKING:
    from paramgraph_kit.doctor.observe.unordered import Order, Stamp

_TITLE = "Pinned memory is used while a copy of it may be under way"
_CAUSE = "A copy with non_blocking=True is done when the GPU comes to it, and the host goes on before that."
_MAKES = re.compile(r"[\w.]*\bStream\(.*\)")
_OF_STREAMS = ("current_stream", "Stream", "CUDAGraph")
_FLAG = 2  # where copy_() has non_blocking


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """The latest copy of some host memory, alone or in a graph that is replayed."""

    storage: Any  # a weak reference, which also keeps the key from being given to somebody else
    stamp: Stamp
    place: Place
    fills: bool  # it writes to the host
    by: str

    @property
    def memory(self) -> int:
        """What names it."""
        return int(self.storage.cdata)

    def named(self) -> str:
        """What a message calls it."""
        return f"the {self.by} of line {line_of(*self.place.user) if self.place.user is not None else '?'}"


@dataclass(slots=True)
class HostCopies:
    """Those of one call."""

    problems: list[Failure] = field(default_factory=list)
    late: list[tuple[Place, _UnderWay]] = field(default_factory=list)  # what a call writes under one of before
    unread: list[tuple[torch.Tensor, _UnderWay]] = field(default_factory=list)  # results that one may still fill
    handed: list[tuple[Place, _UnderWay, bool]] = field(default_factory=list)  # arrays given back; an event tells
    left: list[_UnderWay] = field(default_factory=list)  # which fill what is no result, and nobody has waited for
    _of: dict[int, _UnderWay] = field(default_factory=dict)  # by memory
    _before: dict[int, _UnderWay] = field(default_factory=dict)  # those of the call before
    _arrays: dict[int, tuple[Any, int, Place]] = field(default_factory=dict)  # numpy's looks at such memory, weakly
    _lines: ArrayLines | None = None
    _filled: dict[int, tuple[Any, int]] = field(default_factory=dict)  # by memory: how many copies have filled it
    _last: list[_UnderWay] = field(default_factory=list)  # those of the call before that nobody had waited for

    def __bool__(self) -> bool:
        return bool(self._of or self._before)

    def follows(self, order: Order, place_of: Callable[[Any], Place]) -> None:
        """Of a call that begins also lines are looked at that use such memory through an array of numpy's."""

        def under_way() -> dict[int, range]:
            known = {**self._before, **self._of}
            return {key: lies(each.storage) for key, each in known.items() if not order.is_done(each.stamp)}

        def used(key: int, writes: bool, place: Place) -> None:
            known = self._of.get(key)
            now = known or self._before.get(key)
            if now is not None and not order.is_done(now.stamp):
                self._through_array(key, known, writes, place)

        self._lines = ArrayLines(place_of, under_way, used)

    def watch(self) -> None:
        """Look at lines from here on, if there is such memory."""
        if self._lines is not None and self:
            self._lines.watch()

    def _through_array(self, key: int, known: _UnderWay | None, writes: bool, place: Place) -> None:
        """A line has read, or filled, such memory through an array."""
        look = next((at for _, of, at in self._arrays.values() if of == key), place)
        if known is None and writes:
            self._note(place, self._before.pop(key), writes)
        elif known is not None and (writes or known.fills):
            del self._of[key]
            self._arrays = {at: each for at, each in self._arrays.items() if each[1] != key}
            self._tell(look, known, writes)

    def saw(
        self,
        op: Operation,
        tensors: list[torch.Tensor],
        filled: Collection[int],
        waits: bool,
        order: Order,
        stream: int,
        place: Place,
    ) -> None:
        """An operation outside of all captures; ``waits``: the host, for it."""
        hosts = [t for t in tensors if t.device.type == "cpu"]
        if len(hosts) == len(tensors):
            if self:
                self.used(hosts, filled, order, place)
        elif op.name in ("copy_", "_to_copy") and not waits:
            for tensor in (t for t in hosts if t.numel() and t.is_pinned()):
                fills = id(tensor) in filled or (op.name == "_to_copy" and tensor is not tensors[0])  # what it makes
                self._began(tensor, fills, order.latest(stream), place, "copy")

    def launched(self, hosts: Mapping[int, tuple[Any, bool]], stamp: Stamp, place: Place) -> None:
        """A graph is replayed that copies this memory of the host; each with whether it writes there."""
        for key, (storage, fills) in hosts.items():
            if not storage.expired():
                self._of[key] = _UnderWay(storage, stamp, place, fills, "replay")
        self.watch()

    def returned(self, result: Any, order: Order) -> None:
        """A call has ended: whether its caller waits ahead of the next one, its own lines tell, or nobody knows."""
        fills = {key: each for key, each in self._of.items() if each.fills and not each.storage.expired()}
        fills = {key: each for key, each in fills.items() if not order.is_done(each.stamp)}
        given = [(t, key) for t in results_in(result) if (key := self._key(t)) in fills] if fills else []
        self.unread = [(t, fills[key]) for t, key in given]
        arrays = {key for at in arrays_in(result) for key in fills if at in lies(fills[key].storage)} if fills else ()
        places = {key: place for _, key, place in self._arrays.values()}
        pairs = [(places.get(key, fills[key].place), fills[key]) for key in arrays]
        self.handed = [(place, each, order.is_recorded(each.stamp)) for place, each in pairs]
        waited = {each.place.user for each in self._last if order.is_awaited(each.stamp)}  # by the next call
        rest = {*fills} - {key for _, key in given} - {*arrays}
        self.left = [fills[key] for key in rest if fills[key].place.user not in waited]
        self._last = [*fills.values()]
        self._before = {key: each for key, each in self._of.items() if not each.fills}
        self._of.clear()
        self._arrays.clear()

    def _key(self, tensor: torch.Tensor) -> int:
        """What names the memory of a tensor: also of one that is made of an array, whose storage is its own."""
        key = storage_key(tensor)
        known = {**self._before, **self._of}
        if not key or key in known or tensor.device.type != "cpu":
            return key
        at = tensor.data_ptr()
        return next((of for of, each in known.items() if at in lies(each.storage)), key)

    def ends(self) -> None:
        """A call has ended, or was broken off: lines are looked at no more."""
        if self._lines is not None:
            self._lines.end()

    def shared(self, tensor: torch.Tensor, array: Any, order: Order, place: Place) -> None:
        """Numpy gets a look at memory of the host's, and reads it out of sight: at the latest when the look is gone.

        One that lives on may wait until the copy is done.
        """
        key = storage_key(tensor)
        known = self._of.get(key) or self._before.get(key)
        tell = self._tell if key in self._of else self._note
        if known is None or order.is_done(known.stamp):
            return
        then, flat = _bytes_of(tensor).clone(), tensor.detach()  # which keeps the memory, as the array does

        def gone(reference: Any) -> None:
            if self._arrays.pop(id(reference), None) is None or order.is_done(known.stamp):
                return
            with no_modes():
                is_written = not torch.equal(then, _bytes_of(flat))
            if known.fills or is_written:
                tell(place, known, is_written)

        reference = weakref.ref(array, gone)
        self._arrays[id(reference)] = reference, key, place

    def _began(self, tensor: torch.Tensor, fills: bool, stamp: Stamp, place: Place, by: str) -> None:
        self._of[storage_key(tensor)] = _UnderWay(storage_ref(tensor.untyped_storage()), stamp, place, fills, by)
        if fills:
            storage, count = self._filled.get(key := storage_key(tensor), (storage_ref(tensor.untyped_storage()), 0))
            self._filled[key] = (storage, count + 1)
        self.watch()

    def fills(self, tensor: torch.Tensor) -> bool:
        """Whether copies have filled memory of the host's again and again: what is kept there is the latest."""
        return self.times(tensor) > 1

    def times(self, tensor: torch.Tensor) -> int:
        """How many copies have filled memory of the host's."""
        key = storage_key(tensor) if self._filled and tensor.device.type == "cpu" else 0
        return self._filled.get(key, (None, 0))[1]

    def used(self, hosts: list[torch.Tensor], filled: Collection[int], order: Order, place: Place) -> None:
        """The host reads some of its memory, or writes it."""
        for tensor in hosts:
            known = self._of.get(key := self._key(tensor))
            writes = id(tensor) in filled
            earlier = self._before.pop(key, None) if writes and known is None else None
            if earlier is not None and not earlier.storage.expired() and not order.is_done(earlier.stamp):
                self._note(place, earlier, writes)
            if known is None or not (writes or known.fills):
                continue
            del self._of[key]
            if not known.storage.expired() and not order.is_done(known.stamp):
                self._tell(place, known, writes)

    def _note(self, place: Place, known: _UnderWay, writes: bool) -> None:
        """The host writes what a copy of the call before may still read."""
        at = place.frame()
        if writes and at is not None and all(each.frame() != at for each, _ in self.late):
            self.late.append((place, known))

    def _tell(self, place: Place, known: _UnderWay, writes: bool) -> None:
        self.problems.append(told(known, place.frame(), _waited(place, known), writes=writes))


def told(known: _UnderWay, frame: Frame | None, waited: str, *, writes: bool) -> Failure:
    """What is told of a line that uses memory under a copy; ``waited``: what waits for that."""
    does = "it writes to" if writes else "it reads"
    said = f"{does} pinned memory that {known.named()} may still {'write' if known.fills else 'read'}"
    failure = BY_ID["work-elsewhere"].failure(f"{said}: nothing waits for it", frame)
    words = with_name(f"ahead of this line: {waited}", waited.removesuffix(".synchronize()"))
    fix = f"before  {frame.text if frame else ''}\nafter   {words}"
    return replace(failure, title=_TITLE, cause=_CAUSE, fix=fix)


def told_late(place: Place, known: _UnderWay) -> Failure:
    """The same of a line that writes to what a copy of the call before may still read."""
    return told(known, place.frame(), _waited(place, known), writes=True)


def told_handed(place: Place, known: _UnderWay) -> Failure:
    """The same of a line that hands an array of such memory out, which its caller reads without any wait."""
    if place is not known.place:
        said = f"it hands out an array of pinned memory that {known.named()} may still write: nothing waits for it"
        return replace(told_late(place, known), message=said)
    failure = told_late(place, known)
    said = "it may still write pinned memory of which the step hands an array out: nothing waits for it"
    return replace(failure, message=said, fix=failure.fix.replace("ahead of this line", "behind this line"))


def noted_late(place: Place, known: _UnderWay) -> str:
    """The same as a note, where nobody knows whether the caller waits."""
    frame = place.frame()
    said = f"{frame.label() if frame else '?'} writes to pinned memory that {known.named()} may still read, of the call"
    return f"{said} before: who waits for nothing between two calls needs `{_waited(place, known)}` ahead of it"


def _waited(place: Place, known: _UnderWay) -> str:
    """What waits at a place for a copy."""
    stream = next(streams_at(known.place), current := current_at(place))
    if stream != current and place.user and known.place.user and place.user[0] is not known.place.user[0]:
        stream = current.rpartition(".")[0]  # whose names mean nothing here
    return f"{stream}.synchronize()"


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def copied_hosts(op: str, given: list[torch.Tensor]) -> Iterable[tuple[int, Any, bool]]:
    """Host memory that a captured copy names: by its key, with whether it is written."""
    if op in ("copy_", "_to_copy") and any(t.device.type != "cpu" for t in given):
        for number, tensor in enumerate(given):
            if tensor.device.type == "cpu" and tensor.numel():
                yield storage_key(tensor), storage_ref(tensor.untyped_storage()), op == "copy_" and number == 0


def blocks(op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the host waits for a copy."""
    return not kwargs.get("non_blocking", args[_FLAG] if op.name == "copy_" and len(args) > _FLAG else False)


def with_name(words: str, *streams: str) -> str:
    """Words for a line, where a stream that its ``with`` makes, and nobody can name, gets a name first."""
    made = next((each for each in streams if _MAKES.fullmatch(each)), "")
    named = f"`side = {made}` once, ahead of all of this, and `with torch.cuda.stream(side):` in place of `{made}`"
    return f"{named}; {words.replace(made, 'side')}" if made else words


def current_at(place: Place) -> str:
    """The stream that is current, as the file of a line calls what has the streams: ``pgk.cuda.current_stream()``."""
    tree = tree_of(place.user[0].co_filename) if place.user is not None else None
    nodes = [n for n in every(tree) if isinstance(n, ast.Attribute)] if tree is not None else []
    owners = (ast.unparse(n.value) for name in _OF_STREAMS for n in nodes if n.attr == name)
    plain = (each for each in owners if all(part.isidentifier() for part in each.split(".")))
    return f"{next(plain, 'torch.cuda')}.current_stream()"


def streams_at(place: Place) -> Iterator[str]:
    """What a line's work is put on, as the ``with`` around it says; the innermost first."""
    user = place.user
    line = line_of(*user) if user is not None else 0
    around = [n for n in nodes_of(user[0]) if isinstance(n, ast.With)] if user is not None else []
    for block in reversed([n for n in around if n.lineno <= line <= (n.end_lineno or 0)]):
        for call in (item.context_expr for item in block.items):
            if isinstance(call, ast.Call) and last_name(call.func) == "stream" and call.args:
                yield ast.unparse(call.args[0])
