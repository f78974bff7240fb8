"""The caller's own tensors that graphs read and later calls write over, as it is seen while a program runs."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from types import CodeType, FrameType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import elements_of, last_line, nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.callers_tensors import CAUSE, ENTRIES, NAMED, TITLE, WHOLE, arguments_of
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.places import frames_of_the_user
from paramgraph_kit.doctor.observe.rebound_states import ReboundStates
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.doctor.restore.keeper import storage_key, storage_ref
from paramgraph_kit.trace.model import Failure, Frame

_DEEP = 2  # lists in lists that a caller has
_MOST = 4096  # of their entries
_OVER = "{} is the caller's own tensor, and later calls write their own input over it"


@dataclass(frozen=True, slots=True)
class _Given:
    """A function that was given a tensor, and was running when a capture began."""

    code: CodeType
    name: str
    kind: type
    line: int

    def has(self, frame: FrameType, key: int) -> bool | None:
        """Whether a call of it that runs now is given the same memory; None where this is none."""
        return _has(frame.f_locals.get(self.name), key, 1) if frame.f_code is self.code else None

    def copied(self) -> str:
        """A copy of it, entry by entry where it is several."""
        form = NAMED if self.kind is dict else WHOLE if issubclass(self.kind, torch.Tensor) else ENTRIES
        return form.format(self.name)


@dataclass(slots=True)
class _Input:
    """Memory of the caller's."""

    storage: Any  # a weak reference, which also keeps the key from being given to somebody else
    given: list[_Given]  # innermost first
    read: bool = False  # a graph of those captures reads it
    over: bool = False  # a later call, which was given another tensor, has written to it
    beside: CodeType | None = None  # another function of the same class, or file, that has done so


class CallersInputs:
    """Those of one examination: what a call was given, and what another one, which is given more, writes to.

    What the caller writes there itself is its own business: it knows whose memory that is.
    """

    def __init__(self) -> None:
        self._known: dict[int, _Input] = {}
        self._told: dict[tuple[Frame | None, str], Failure] = {}
        self._over: dict[tuple[Frame | None, str], str] = {}
        self.states = ReboundStates()

    def begin(self) -> None:
        """A capture begins: what the functions that run now were given."""
        new = dict[int, _Input]()
        with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
            for frame in frames_of_the_user():
                names = arguments_of(frame.f_code)
                for name, value in [*frame.f_locals.items()]:
                    for tensor in _tensors(value, 1) if name in names else ():
                        if key := storage_key(tensor):
                            own = new.setdefault(key, _Input(storage_ref(tensor.untyped_storage()), []))
                            own.given.append(_Given(frame.f_code, name, type(value), frame.f_lineno))
        self._known = {**new, **self._known}

    def wrote(self, key: int) -> None:
        """An operation outside of all captures writes to this."""
        if (own := self._known.get(key)) is not None:
            again = _given_again(own, key)
            if again and own.over:
                self._tell(own)
            own.over = again is False
            here = _given_beside(own, key) if again is None else None
            if again is None and (here is None or not here[1]):
                own.beside = here[0] if here is not None else None

    def copied(self, tensors: list[torch.Tensor]) -> None:
        """A tensor is copied to itself, by the function that is looked at, which has kept it and copies more there."""
        self.states.copied(tensors)
        keys = {storage_key(each) for each in tensors}
        own = self._known.get(key := max(keys)) if len(keys) == 1 else None
        if own is not None and own.read:
            outer = [*frames_of_the_user()][-1:]
            if any(each.has(frame, key) for frame in outer for each in own.given):
                self._tell(own)
            elif own.beside is not None and (keeps := _keeper(own, key)) is not None:
                own.given.insert(0, keeps)
                self._tell(own)

    def read(self, keys: Iterable[int]) -> None:
        """An operation outside of all captures reads these."""
        keys = [*keys]
        self.states.read(keys)
        for key in keys:
            own = self._known.get(key)
            if own is not None and own.over:
                again = _given_again(own, key)
                if again or (again is None and _is_held_outside(own, key)):
                    self._tell(own)

    def launched(self, reads: Collection[int]) -> None:
        """A graph is replayed that reads this memory."""
        self.states.launched(reads)
        for key, own in self._known.items():
            if key in reads:
                own.read = True
                if own.over and _given_again(own, key):
                    self._tell(own)
                elif own.over:
                    self._note(own)

    def failures(self) -> Iterator[Failure]:
        """Lines that keep them, where the caller has another use for them."""
        yield from [*self._told.values(), *self.states.failures()]

    def notes(self) -> list[str]:
        """The same where none is seen."""
        return [note for (frame, _), note in self._over.items() if all(at != frame for at, _ in self._told)]

    def _tell(self, own: _Input) -> None:
        frame, line, copied, name = _where(own)
        failure = BY_ID["output-alias"].failure(_OVER.format(name), frame)
        fix = f"before  {line}\nafter   {copied}"
        self._told[frame, copied] = replace(failure, title=TITLE, cause=CAUSE, fix=fix)

    def _note(self, own: _Input) -> None:
        frame, _, copied, name = _where(own)
        at = frame.label() if frame is not None else "?"
        self._over[frame, copied] = f"{_OVER.format(name)} (at {at}): {copied}, if that caller reads it again"


def _given_again(own: _Input, key: int) -> bool | None:
    """Whether the innermost call that runs now, of the functions that were given some memory, is given it, too."""
    answers = (each.has(frame, key) for frame in frames_of_the_user() for each in own.given)
    return next((has for has in answers if has is not None), None)


def _given_beside(own: _Input, key: int) -> tuple[CodeType, bool] | None:
    """The innermost function beside those, of their class or file, that is given tensors; whether it has this memory.

    What a caller fills by itself is none of that: the same function is given the memory, and has written another there.
    """
    known = {(each.code.co_filename, _scope(each.code)) for each in own.given}
    for frame in frames_of_the_user():
        if (frame.f_code.co_filename, _scope(frame.f_code)) in known:
            held = [frame.f_locals.get(name) for name in arguments_of(frame.f_code)]
            if any(True for _ in _tensors(held, _DEEP)):
                return frame.f_code, _has(held, key, _DEEP)
    return None


def _keeper(own: _Input, key: int) -> _Given | None:
    """The function that has copied others there, and is given this memory now, by the name of that."""
    here = _given_beside(own, key)
    frame = next((f for f in frames_of_the_user() if f.f_code is own.beside), None)
    if here is None or here != (own.beside, True) or frame is None:
        return None
    given = ((name, frame.f_locals.get(name)) for name in sorted(arguments_of(frame.f_code)))
    names = ((name, type(value)) for name, value in given if _has(value, key, 1))
    return next((_Given(frame.f_code, *each, last_line(frame.f_code)) for each in names), None)


def _is_held_outside(own: _Input, key: int) -> bool:
    """Whether a function that runs now has a variable with this memory, and none that runs is of those who keep it."""
    frames, kept = [*frames_of_the_user()], {_scope(each.code) for each in own.given} - {""}
    held = any(_has([*frame.f_locals.values()], key, _DEEP) for frame in frames)
    return held and kept.isdisjoint(_scope(frame.f_code) for frame in frames)


def _scope(code: CodeType) -> str:
    return code.co_qualname.rpartition(".")[0]


def _where(own: _Input) -> tuple[Frame, str, str, str]:
    """The line that keeps it, as it is and as it keeps a copy, and what it calls it."""
    for each in own.given:
        copied, nodes = each.copied(), [*nodes_of(each.code)]
        for node in (n for n in nodes if isinstance(n, ast.Assign)):
            alone = not any(len([*elements_of(t)]) > 1 for t in node.targets)
            if not isinstance(node.value, ast.Name) or node.value.id != each.name or node.lineno > each.line:
                continue
            if not alone and issubclass(each.kind, (tuple, list)):
                return (
                    frame_at(each.code, node.lineno),
                    ast.unparse(node),
                    f"this line with `{copied}` for `{each.name}`",
                    each.name,
                )
            if alone:
                target = ast.unparse(node.targets[0])
                read = any(_reads(n, each.name) for n in nodes if isinstance(n, ast.With) and n.lineno == each.line)
                also = f"; in the capture `{target}` for `{each.name}`" if read else ""
                return frame_at(each.code, node.lineno), ast.unparse(node), f"{target} = {copied}{also}", target
    inner = own.given[0]
    frame = frame_at(inner.code, inner.line)
    return frame, frame.text, f"ahead of the capture, and of what keeps it: {inner.name} = {inner.copied()}", inner.name


def _reads(block: ast.With, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for part in block.body for n in ast.walk(part))


def _has(value: Any, key: int, deep: int) -> bool:
    return any(storage_key(each) == key for each in _tensors(value, deep))


def _tensors(value: Any, deep: int) -> Iterator[torch.Tensor]:
    """What a variable is, or the list, the tuple or the dictionary that it is has."""
    if is_a(value, torch.Tensor):
        yield value
    elif deep and type(value) in (list, tuple, dict):
        for each in islice(value.values() if type(value) is dict else value, _MOST):
            yield from _tensors(each, deep - 1)
