"""Where a program holds what its graphs read: entries of tables, and attributes, that are given another tensor.

``self.inputs[size] = padded`` ahead of ``self.graphs[size].replay()`` gives the table another tensor, and the graph
reads the one of its capture. Found by memory: a place that held what a graph reads, and holds something else at a
replay, while nothing was written to what it reads.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import CodeType, FrameType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.handed_on import is_handed_on
from paramgraph_kit.doctor.observe.held import attributes_of, is_a
from paramgraph_kit.doctor.observe.held_lines import IN_ROW, Chain, Kind, Running, as_large, given_at
from paramgraph_kit.doctor.observe.lies import is_copied_from
from paramgraph_kit.doctor.observe.places import Place, frames_of_the_user
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.doctor.restore.keeper import storage_key, storage_ref
from paramgraph_kit.driver.files import is_library
from paramgraph_kit.driver.work import worked_s
from paramgraph_kit.trace.model import Failure

_MOST_ENTRIES, _MOST_PLACES = 256, 4096
_MOST_LOOKS = 16  # behind a capture, ahead of the first replay
_MOST_S = 2.0  # that looking at replays may take in all
_DEEP = 2  # objects in objects, and tables in tables
_OF_MODULES = ("_parameters", "_buffers", "_modules")  # which are told by their own names
_ALIKE = ("stale-input", "parameter-rebound")
Key = tuple[int, Chain]  # what has it, by its id, and the way from there


@dataclass(frozen=True, slots=True)
class _Held:
    """A tensor that a place has: where it lies, and how."""

    key: int
    ref: Any  # a weak reference, which also keeps the key from being given to somebody else
    address: int
    kind: Kind
    chains: list[Chain]  # by what names and keys it is reached


@dataclass(frozen=True, slots=True)
class _Moved:
    """A place that has another tensor at a replay than the one which the graph reads."""

    chains: list[Chain]
    place: Place  # the replay
    then: Kind
    now: Kind
    in_part: bool  # it is of another size, or several graphs read it, of which some may read a part
    running: Running  # the functions that ran then, and at which lines

    def lines(self, ran: Collection[CodeType]) -> tuple[Chain, list[tuple[CodeType, Any, str]]]:
        """The one line that gives the place another tensor, by the name that it has there; none where several may."""
        for chain in self.chains:
            if len(found := [*given_at(chain, self.running, ran)]) == 1:
                return chain, found
        return self.chains[0], []


class HeldInputs:
    """Those of the graphs of one examination."""

    def __init__(self) -> None:
        self._ahead: dict[Key, _Held] = {}  # places, as they were ahead of the first call
        self._then: dict[tuple[int, Key], _Held] = {}  # by the graph and the place
        self._readers: dict[int, set[int]] = {}  # by memory, the graphs that read it from such a place
        self._written: set[tuple[int, int]] = set()  # graphs, and memory that they read and that was written since
        self._moved: dict[Key, _Moved] = {}
        self._looks, self._spent_s = 0, 0.0
        self.gone: set[int] = set()  # addresses of what such places held

    def begin(self, graph: object) -> None:
        """The capture of a graph begins: what was noted of it is of another."""
        number, self._looks = id(graph), 0
        self._then = {at: held for at, held in self._then.items() if at[0] != number}
        self._written = {at for at in self._written if at[0] != number}

    def note(self, graphs: Mapping[int, Collection[int]], device: str) -> None:
        """Look where it is held what graphs read that were not replayed yet; ``graphs``: memory that each reads."""
        self._looks += 1
        if self._looks <= _MOST_LOOKS and graphs:
            with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
                places = _places(device, ())
                for number, read in graphs.items():
                    self._note(number, ((key, held) for key, held in places.items() if held.key in read))

    def note_ahead(self, device: str, roots: Iterable[Any]) -> None:
        """Look the same up ahead of the first call, for graphs that were captured before anybody looked."""
        with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
            self._ahead = _places(device, roots)

    def adopt(self, number: int, touched: Collection[int]) -> None:
        """A graph that was captured before anybody looked; ``touched``: the addresses that it reads."""
        self._note(number, ((key, held) for key, held in self._ahead.items() if held.address in touched))

    def wrote(self, key: int) -> None:
        """Something is written to memory."""
        self._written |= {(number, key) for number in self._readers.get(key, ())}

    def launched(self, graph: object, read: Collection[int] | None, device: str, place: Place) -> None:
        """A graph is replayed; ``read``: memory that it reads, None where that is not known."""
        number, begun = id(graph), worked_s()
        if self._spent_s > _MOST_S or (read is None and all(of != number for of, _ in self._then)):
            return
        places, frames = _places(device, ()), [*frames_of_the_user()]
        for (of, key), then in self._then.items():
            now = places.get(key) if of == number else None
            if now is None or now.key == then.key:
                continue
            if {*now.chains}.isdisjoint(then.chains) and any(_has_moved(chain, key, places) for chain in then.chains):
                continue  # a list that has gone leaves its id to the next, by another name
            if now.key not in self._readers and (number, then.key) not in self._written:
                running = tuple((frame.f_code, frame.f_lineno) for frame in frames)
                in_part = now.kind.shape != then.kind.shape or len(self._readers.get(then.key, ())) > 1
                moved = _Moved(now.chains, place, then.kind, now.kind, in_part, running)
                self._moved.setdefault(key, moved)
                self.gone.add(then.address)
        if read is not None:
            self._note(number, ((key, held) for key, held in places.items() if held.key in read))
        self._spent_s += worked_s() - begun

    def _note(self, number: int, held: Iterable[tuple[Key, _Held]]) -> None:
        for key, each in held:
            self._then.setdefault((number, key), each)
            self._readers.setdefault(each.key, set()).add(number)

    def failures(self, ran: Collection[CodeType], known: Iterable[Failure] = ()) -> Iterator[Failure]:
        """The lines that give these places another tensor; the replay where nobody knows which does.

        ``ran``: functions that have; ``known``: what is told already, by the names of attributes.
        """
        told = set[tuple[str, int]]()
        alike = [f for f in known if f.code in _ALIKE]
        said = {word for f in alike for word in re.findall(r"\.(\w+)", f.message)}
        for moved in self._moved.values():
            paths = [_written(chain) for chain in moved.chains]
            if moved.chains[0][-1] in said or any(f.frame and p in f.frame.text for f in alike for p in paths):
                continue
            if any(is_handed_on(code, str(moved.chains[0][-1])) for code, _ in moved.running):
                continue
            chain, lines = moved.lines(ran)
            path = _written(chain)
            text = f"{path} has other memory from here on, and the graph reads that of its capture"
            for code, node, words in lines:
                if (at := (code.co_filename, node.lineno)) not in told:
                    told.add(at)
                    fix = f"before  {ast.unparse(node)}\nafter   {as_large(moved, path, words)}"
                    yield replace(BY_ID["stale-input"].failure(text, frame_at(code, node.lineno)), fix=fix)
            frame = moved.place.frame()
            if not lines and frame is not None and (at := (frame.file, frame.line)) not in told:
                told.add(at)
                text = f"{path} has other memory by now, and the graph reads that of its capture"
                written = as_large(moved, path, f"{path}.copy_(new)")
                fix = f"before  {path} = new\nafter   {written}, ahead of {frame.text}"
                yield replace(BY_ID["stale-input"].failure(text, frame), fix=fix)


def _has_moved(chain: Chain, key: Key, places: Mapping[Key, _Held]) -> bool:
    """Whether what was a place's name is that of another one now."""
    return any(chain in held.chains for other, held in places.items() if other != key)


def _places(device: str, roots: Iterable[Any]) -> dict[Key, _Held]:
    """Where tensors of a device are held that functions which run now can name."""
    found: dict[Key, _Held] = {}
    seen: set[int] = set()
    spaces = {}
    for frame in frames_of_the_user():
        spaces[id(frame.f_globals)] = frame.f_globals
        _in_names(_locals(frame), device, found, seen)
    for space in (*spaces.values(), *roots):
        _in_names(space, device, found, seen)
    return found


def _locals(frame: FrameType) -> dict[str, Any]:
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # a file, whose names are looked at as such
        return {}
    held = frame.f_locals
    names = dict(held)
    if sys.version_info < (3, 13):
        held.clear()  # a copy, which would keep what the function lets go
    return names


def _in_names(names: Mapping[str, Any], device: str, found: dict[Key, _Held], seen: set[int]) -> None:
    for name, value in list(names.items()):
        if is_a(value, (list, dict)):  # what names mean by themselves is told from their lines
            _in_table(id(value), (), (name,), value, device, found, _DEEP)
        elif id(value) not in seen and _is_users(value):
            seen.add(id(value))
            _in_object(id(value), (), value, device, found, _DEEP)


def _in_object(owner: int, chain: Chain, value: Any, device: str, found: dict[Key, _Held], deep: int) -> None:
    """What an object of the user's has, and the objects that it has, by the way from the first of them."""
    for name, part in list(attributes_of(value).items()):
        if name in _OF_MODULES and is_a(value, torch.nn.Module):
            continue
        if is_a(part, torch.Tensor):
            _note_tensor((owner, (*chain, name)), (*chain, name), part, device, found)
        elif is_a(part, (list, dict, tuple)):
            _in_table(owner, (*chain, name), (*chain, name), part, device, found, _DEEP)
        elif type(part) is partial:
            for held in ("args", "keywords"):
                way = (*chain, name, held)
                _in_table(owner, way, way, getattr(part, held), device, found, 1)
        elif deep > 1 and _is_users(part):
            _in_object(owner, (*chain, name), part, device, found, deep - 1)


def _in_table(
    owner: int, way: Chain, chain: Chain, table: Any, device: str, found: dict[Key, _Held], deep: int
) -> None:
    """What a table has; ``chain``: the way with the name that a table by itself has, which differs by function."""
    by_name = is_a(table, dict)
    entries: Iterable[tuple[Any, Any]] = list(dict.items(table)) if by_name else enumerate(_plain(table))
    for number, (key, part) in enumerate(entries):
        if number >= _MOST_ENTRIES or len(found) >= _MOST_PLACES:
            return
        entry = (key,) if by_name else (key, IN_ROW)
        with suppress(Exception):  # a key of the user's, or what a tensor of theirs is asked for
            if is_a(part, torch.Tensor):
                _note_tensor((owner, (*way, entry)), (*chain, entry), part, device, found)
            elif deep > 1 and is_a(part, (list, dict, tuple)):
                _in_table(owner, (*way, entry), (*chain, entry), part, device, found, deep - 1)


def _plain(table: Any) -> list[Any]:
    """The entries of a list or a tuple, whatever a class of the user's makes of being asked for them."""
    return [*(list.__iter__(table) if is_a(table, list) else tuple.__iter__(table))]


def _note_tensor(at: Key, chain: Chain, tensor: torch.Tensor, device: str, found: dict[Key, _Held]) -> None:
    if at in found:
        if chain not in found[at].chains:
            found[at].chains.append(chain)
        return
    is_read = tensor.device.type == device or (tensor.device.type == "cpu" and is_copied_from(tensor))
    key = storage_key(tensor) if is_read and not is_a(tensor, torch.nn.Parameter) else 0
    if key:
        storage, kind = tensor.untyped_storage(), Kind(tensor.shape, tensor.dtype)
        found[at] = _Held(key, storage_ref(storage), storage.data_ptr(), kind, [chain])


def _is_users(value: Any) -> bool:
    """Whether an object is one of a class of the user's own, or has only attributes."""
    kind = type(value)
    if issubclass(kind, (type, torch.Tensor, ModuleType, FunctionType)):
        return False
    if kind is SimpleNamespace:
        return True
    codes = (getattr(each, "__code__", None) for each in vars(kind).values())
    if any(code is not None and not is_library(code.co_filename) for code in codes):
        return True
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    return "__dataclass_fields__" in vars(kind) and not (file and is_library(file))


def _written(chain: Chain) -> str:
    """``batch.inputs[4]``: the names, and the keys behind them."""
    return "".join(f"[{part[0]!r}]" if type(part) is tuple else f".{part}" for part in chain).lstrip(".")
