"""One ungraphed call of a step, watched: what its Python code changes, which tensors it writes, what it draws."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from paramgraph_kit.backend.asked import LARGE
from paramgraph_kit.backend.plain import same
from paramgraph_kit.backend.world import BY_NAME, Questions, is_measure
from paramgraph_kit.doctor.restore.keeper import RandomState
from paramgraph_kit.driver.api import Driver
from paramgraph_kit.driver.files import is_library_code
from paramgraph_kit.driver.host_random import state_of
from paramgraph_kit.driver.native.objects import Kinds
from paramgraph_kit.driver.profiling import collector, set_profile
from paramgraph_kit.driver.tensors import has_memory
from paramgraph_kit.step.entry import let_go, take_up
from paramgraph_kit.step.holders import EMPTY, Holder
from paramgraph_kit.step.moves import lying, moves
from paramgraph_kit.step.names import Names
from paramgraph_kit.step.reach import Reach
from paramgraph_kit.step.streams import Streams
from paramgraph_kit.trace.model import Reason

SMALL = 4096  # bytes: a host tensor that is compared by value


@dataclass(frozen=True, slots=True)
class Look:
    """What a graph depends on in a tensor besides its values."""

    address: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool


def look(tensor: torch.Tensor) -> Look:
    """Today's."""
    return Look(
        tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, bool(tensor.requires_grad)
    )


@dataclass(slots=True)
class Snapshot:
    """What all places held and where all tensors lay at one moment."""

    reach: Reach
    contents: list[dict[Any, Any]]
    looks: dict[int, Look]
    versions: dict[int, int]
    host: dict[int, Any]  # small host tensors and arrays, by value
    kinds: Kinds  # of the objects

    def put_back(self) -> None:
        """Let all places hold what they held."""
        for holder, contents in zip(self.reach.holders, self.contents, strict=True):
            now = holder.read()
            # What a set holds is a new tuple each time; filled again, it might have another order.
            if not _unchanged(now, contents) and not (holder.kind == "set" and same(now, contents)):
                holder.write(contents)


@dataclass(frozen=True, slots=True)
class Change:
    """A place that held something else before."""

    holder: Holder
    key: Any
    before: Any
    after: Any

    @property
    def place(self) -> str:
        """As the code names it."""
        return self.holder.place(self.key)


@dataclass(slots=True)
class Observation:
    """One watched call."""

    result: Any
    before: Snapshot
    after: Snapshot
    changes: list[Change]  # what the user's code may see of them
    written: list[torch.Tensor]  # tensors that were there before and were written
    host_written: list[str]  # names of such on the host
    moved: list[str]  # names of tensors that lie elsewhere or look otherwise
    rekinded: bool  # an object has another class or dictionary
    unseen: list[tuple[str, str]]  # what the code may read and nobody can look into: its name, and what it is
    asked: Reason | None  # what was asked of the world outside
    unforeseen: set[str]  # globals that nobody knew of before the call, so that a guard would not have them
    drew_on_host: bool
    advanced: list[str]  # iterators that were there before, and that the code names
    aside: bool  # something may have run on a stream that no capture has
    random_increment: int
    names: Names  # what the code that has run names
    within: set[tuple[str, int, str]]  # the holders that it can have got to
    near: set[int]  # and the tensors, arrays and objects, by id
    deferred: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)


def snapshot(roots: Sequence[tuple[str, Any]], given: Sequence[tuple[str, Any]], names: Names) -> Snapshot:
    """Look at everything that the roots and the arguments lead to."""
    reach = Reach(roots, given, names)
    tensors = [tensor for _, tensor in reach.tensors.values()]
    strided = [t for t in tensors if t.layout == torch.strided and has_memory(t)]
    host: dict[int, Any] = {id(t): value_of(t) for t in strided if t.device.type == "cpu"}
    host |= {id(array): value_of(array) for _, array in reach.arrays}
    return Snapshot(
        reach,
        [holder.read() for holder in reach.holders],
        {id(t): look(t) for t in strided},
        {id(t): t._version for t in tensors if not t.is_inference()},
        host,
        Kinds(reach.objects),
    )


def value_of(what: Any) -> Any:
    """The bytes of a small host tensor or array, and what else tells that it was written."""
    if isinstance(what, torch.Tensor):
        plain = what.detach()
        known = what.data_ptr(), None if what.is_inference() else what._version
        small = plain.numel() * plain.element_size() <= SMALL
        return (*known, plain.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if small else b"")
    look = what.shape, what.strides, what.dtype.str
    return (*look, what.tobytes() if what.nbytes <= LARGE and not what.dtype.hasobject else b"")


def observe(
    driver: Driver,
    call: Callable[[], Any],
    roots: Sequence[tuple[str, Any]],
    given: Sequence[tuple[str, Any]],
    names: Names,
) -> Observation:
    """Call it once, ungraphed; ``given`` are its arguments."""
    before = snapshot(roots, given, names)
    drawing = [(generator, state_of(generator)) for _, generator in before.reach.generators]
    random, position = RandomState(), driver.random_position()
    streams, freed = Streams(driver), let_go(before.reach, before.contents)
    lay = lying(before.reach, driver.device, given)
    questions = Questions(lambda frame: not is_library_code(frame.f_code, frame.f_globals))
    with (
        deferring(before.reach.schedulers, run=True) as deferred,
        streams.watched(),
        watching(names, streams, questions),
        here(),
    ):
        result = call()
    for gone in take_up(before.reach, freed):
        before.looks.pop(gone, None)
        before.versions.pop(gone, None)
    after = snapshot(roots, given, names)
    narrow = Reach(roots, given, names, narrow=True)
    within = narrow.keys
    hidden = _of_schedulers(before.reach, deferred)
    moved = [Change(*move) for move in moves(before.reach, lay)]
    cells = {id(change.holder.target) for change in moved}
    return Observation(
        result,
        before,
        after,
        [c for c in changes(before, after, names, within) if id(c.holder.target) not in hidden] + moved,
        [t for n, t, _ in _written(before, after) if t.device == driver.device],
        [n for n, t, _ in _written(before, after) if t.device != driver.device] + _arrays_written(before, after),
        [name for key, (name, t) in before.reach.tensors.items() if key not in cells and _moved(t, before)],
        not before.kinds.same(),
        narrow.unseen,
        questions.reason,
        {key for kind, _, key in within - before.reach.keys if kind == "global" and not key.startswith("__")},
        random.host_moved() or any(state_of(generator) != then for generator, then in drawing),
        _advanced(before.reach, narrow),
        streams.aside,
        driver.random_position() - position,
        names.copy(),
        within,
        {*narrow.tensors, *(id(array) for _, array in narrow.arrays), *map(id, narrow.objects)},
        deferred,
    )


def _advanced(before: Reach, narrow: Reach) -> list[str]:
    there = {id(iterator) for _, iterator in before.iterators}
    return [f"{name}, a {type(iterator).__name__}" for name, iterator in narrow.iterators if id(iterator) in there]


def changes(before: Snapshot, after: Snapshot, names: Names, within: set[tuple[str, int, str]]) -> list[Change]:
    """Places that are still reached and hold something else."""
    held = {(h.kind, id(h.target), h.key): c for h, c in zip(after.reach.holders, after.contents, strict=True)}
    holders = zip(before.reach.holders, before.contents, strict=True)
    known = {id(h.target): c for h, c in holders if h.whole and h.kind in ("dict", "sequence", "set")}
    found: list[Change] = []
    for holder, then in zip(before.reach.holders, before.contents, strict=True):
        place = holder.kind, id(holder.target), holder.key
        contents = held.get(place)
        if contents is None or place not in within or _unchanged(contents, then):
            continue
        for key in {**then, **contents}:
            was, now_is = then.get(key, EMPTY), contents.get(key, EMPTY)
            noted = holder.kind == "attributes" and isinstance(key, str) and key.startswith("_dynamo_")
            if names.counts(holder, key) and not noted and not _same_as_then(was, now_is, known):
                found.append(Change(holder, key, was, now_is))
    return found


def _same_as_then(was: Any, now: Any, known: dict[int, dict[Any, Any]]) -> bool:
    """``same``, where a container counts with what it held before the call."""
    if was is now:
        return True
    if id(was) not in known or type(was) is not type(now):
        return same(was, now)
    then, today = known[id(was)], Holder.of(now, "").read()
    if getattr(was, "default_factory", None) is not getattr(now, "default_factory", None):
        return False
    return then.keys() == today.keys() and all(_same_as_then(then[key], today[key], known) for key in then)


@contextmanager
def watching(names: Names, streams: Streams, questions: Questions) -> Iterator[None]:
    """Note what runs on this thread, on which streams, and what it asks."""
    add, met, look_at = names.add, names.met, streams.look
    before, module = sys.getprofile(), torch.fx.GraphModule
    with collector() as collects:

        def hook(frame: types.FrameType, event: str, argument: object) -> None:
            if collects.runs:
                return
            if event == "call":
                code = frame.f_code
                add(code, frame.f_globals)
                # Else Dynamo may compile this as well; and who reads variables before their cells are there may crash.
                if not (names.compiled or code.co_freevars or code.co_cellvars):
                    met(code, frame.f_locals)
                if code.co_filename.startswith("<eval_with_key>") and isinstance(
                    me := frame.f_locals.get("self"), module
                ):
                    names.add_module(code, me)
                if code is BY_NAME:
                    names.modules.add(str(frame.f_locals.get("name")))
                elif is_measure(code):
                    questions.measured(frame)
            elif event == "c_call":
                questions.look(frame, argument)
            if event in ("call", "c_call"):
                look_at(event, argument)

        sys.setprofile(hook)
        try:
            yield
        finally:
            set_profile(before)


@contextmanager
def here() -> Iterator[None]:
    """Backward passes run on the thread that asks for them, where they are seen."""
    with torch.autograd.set_multithreading_enabled(False):
        yield


_busy = threading.local()


@contextmanager
def busy() -> Iterator[None]:
    """While this thread observes or captures a step; steps that it calls are part of it."""
    before = is_busy()
    _busy.now = True
    try:
        yield
    finally:
        _busy.now = before


def is_busy() -> bool:
    """Whether that is so."""
    return getattr(_busy, "now", False)


Deferred = list[tuple[Any, tuple[Any, ...], dict[str, Any]]]


@contextmanager
def deferring(
    schedulers: Sequence[tuple[str, Any]], *, run: bool, note: Callable[[], None] = lambda: None
) -> Iterator[Deferred]:
    """Note calls of the schedulers' ``step``, which compute on the host and write the rate; make them if ``run``."""
    calls: Deferred = []

    def instead(scheduler: Any) -> Callable[..., Any]:
        real = scheduler.step

        def step(*args: Any, **kwargs: Any) -> Any:
            note()
            calls.append((scheduler, args, kwargs))
            if not run:
                return None
            hook = sys.getprofile()
            sys.setprofile(None)
            try:
                return real(*args, **kwargs)
            finally:
                set_profile(hook)

        return step

    own = [(s, s.__dict__.get("step")) for _, s in schedulers]
    for scheduler, _ in own:
        scheduler.__dict__["step"] = instead(scheduler)
    try:
        yield calls
    finally:
        for scheduler, before in own:
            if before is None:
                del scheduler.__dict__["step"]
            else:
                scheduler.__dict__["step"] = before


def _of_schedulers(reach: Reach, deferred: Deferred) -> set[int]:
    """Ids of what belongs to schedulers that were called."""
    found: set[int] = set()
    for scheduler, _, _ in deferred:
        found.add(id(scheduler.__dict__))
        found |= {id(part) for part in scheduler.__dict__.values() if isinstance(part, (list, dict))}
    return found


def _unchanged(now: dict[Any, Any], then: dict[Any, Any]) -> bool:
    return (
        len(now) == len(then)
        and all(a is b for a, b in zip(now, then, strict=True))
        and all(a is b for a, b in zip(now.values(), then.values(), strict=True))
    )


def _written(before: Snapshot, after: Snapshot) -> list[tuple[str, torch.Tensor, None]]:
    return [
        (name, tensor, None)
        for key, (name, tensor) in before.reach.tensors.items()
        if key in before.versions and tensor._version != before.versions[key]
    ]


def _arrays_written(before: Snapshot, after: Snapshot) -> list[str]:
    return [name for name, array in before.reach.arrays if value_of(array) != before.host[id(array)]]


def _moved(tensor: torch.Tensor, before: Snapshot) -> bool:
    then = before.looks.get(id(tensor))
    return then is not None and then != look(tensor)
