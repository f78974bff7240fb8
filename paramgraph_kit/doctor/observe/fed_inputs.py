"""Inputs of a graph that nobody fills, or fills behind its replay, found where a call is given what belongs there.

A wrapper that copies its first argument alone, and one that replays and copies then, fail in nothing: results are
those of the capture's second input, or of the call before.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from types import CodeType, FrameType
from typing import Any

import torch

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.computed_again import ComputedAgain
from paramgraph_kit.doctor.observe.copied_behind import goes_on, shared_line
from paramgraph_kit.doctor.observe.filled_anew import copied_ahead
from paramgraph_kit.doctor.observe.given_by_variables import (
    held_in_variables,
    is_copy_of,
    is_named_for,
    next_ones,
    shared_names,
)
from paramgraph_kit.doctor.observe.given_names import (
    PART,
    is_apart,
    is_of_the_next,
    last_of,
    part_in_loop,
    part_of,
    table_of,
)
from paramgraph_kit.doctor.observe.given_to_operations import is_in_vain
from paramgraph_kit.doctor.observe.handed_over import HandedOver
from paramgraph_kit.doctor.observe.held import attributes_of, is_a, tensors_in
from paramgraph_kit.doctor.observe.kept_as_given import kept_as_given
from paramgraph_kit.doctor.observe.left_alone import never_loaded
from paramgraph_kit.doctor.observe.named_again import kept_with_graph, named_again, other_arguments
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.places import Place, frames_of_the_user
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.doctor.restore.keeper import storage_key, storage_ref
from paramgraph_kit.trace.model import Failure, Frame

_MOST_LAUNCHES, _MOST_ENTRIES = 64, 256
_NEAR = 3  # functions around a replay that may be given what its graph reads


@dataclass(frozen=True, slots=True)
class _Given:
    """A tensor that a function is given which replays, or calls who does."""

    text: str
    key: int
    ref: Any  # a weak reference keeps the key from being given to somebody else
    shape: torch.Size
    dtype: torch.dtype
    replay: Frame | None
    code: CodeType  # in which the capture stands
    places: dict[str, torch.Tensor]  # what the graph reads, as the lines of its capture write it
    by_name: bool = False  # nobody knows these lines: only what has its name is for it
    made: Frame | None = None  # the line that has computed it, of a variable that nobody reads
    region: Region | None = None  # the capture
    bound: frozenset[str] = frozenset()  # variables that are there at the replay, of the function that captures
    shared: frozenset[str] = frozenset()  # variables of functions around that one
    is_next: bool = False  # it has other numbers than what is named for it, which other lines may read


@dataclass(frozen=True, slots=True)
class _Launch:
    """A replay: what was written and read ahead of it in its call, and what the call was given."""

    reads: Collection[int]  # memory of its graph's inputs
    written: frozenset[int]
    seen: frozenset[int]
    given: frozenset[int]
    place: Place
    code: CodeType  # in which its capture stands


class FedInputs:
    """Those of one examination."""

    def __init__(self) -> None:
        self._read: set[int] = set()  # in this call
        self._written: set[int] = set()
        self._ever: set[int] = set()  # written in any
        self._outside: set[int] = set()  # the same, without what graphs write
        self._since: set[int] = set()  # the same, behind the first replay of what was captured
        self._met: set[int] = set()  # graphs that were replayed
        self._given: list[_Given] = []
        self._launches: dict[int, _Launch] = {}  # the latest of each graph in this call
        self._late: dict[int, dict[int, tuple[_Launch, Place]]] = {}
        self._unfed: dict[tuple[Frame | None, str], tuple[str, Failure]] = {}  # with what is given
        self._behind: dict[Frame | None, Failure] = {}
        self._again: dict[Frame | None, tuple[dict[str, str], Region]] = {}  # variables, by the replay
        self._number = 0
        self._computed, self._handed = ComputedAgain(), HandedOver()

    def begin(self) -> None:
        """A call begins; of one that ended in an error nothing goes on."""
        self._read, self._written, self._given = set(), set(), []
        self._launches, self._late, self._number = {}, {}, 0
        self._handed.begin()

    def saw(
        self,
        name: str,
        given: list[torch.Tensor],
        keys: list[int],
        filled: set[int],
        made: list[tuple[int, torch.Tensor]],
        place: Place,
    ) -> None:
        """An operation outside of all captures.

        ``keys``: the memory of what it is given; ``filled``: the ids of what it writes; ``made``: its results.
        """
        if is_in_vain(name, given):
            return
        self._computed.saw(name, keys, made, place)
        self._read.difference_update({key for key, _ in made}.difference(keys))  # that lies where something was read
        if not filled and not self._launches:  # nearly always
            self._read.update(keys)
            return
        read = {key for t, key in zip(given, keys, strict=True) if id(t) not in filled}
        written = {key for t, key in zip(given, keys, strict=True) if id(t) in filled}
        for graph, launch in self._launches.items():
            late = (written & {*launch.reads}) - launch.written
            if name == "copy_" and late and not (read & launch.given).isdisjoint(launch.given - launch.seen):
                self._late.setdefault(graph, {}).setdefault(next(iter(late)), (launch, place))
        self._read |= read
        self._written |= written
        self._ever |= written
        self._outside |= written
        self._since |= written

    def launched(self, one: Any, regions: Iterable[Region], writes: Iterable[int], place: Place) -> None:
        """A graph is replayed; ``one``: what is known of it; ``regions``: the captures, of which one is its own."""
        region = next((each for each in regions if each.graph is one.graph), None)
        self._number += 1
        self._ever |= (of_graph := {*writes, *(region.writes if region is not None else ())})
        if id(one.graph) not in self._met and not one.before:
            self._since = set()  # what is filled for a capture is filled once
        self._met.add(id(one.graph))
        self._since |= of_graph
        if self._number > _MOST_LAUNCHES:
            return
        frames = [*frames_of_the_user()]
        places = {t: each for t, each in _places(region) if _is_read(each, one)} if region is not None else {}
        places |= _of_owners(frames[:_NEAR], one, {*map(storage_key, places.values())}) if one.before else {}
        there = _of_variables(frames[:1], one)
        if region is not None and frames and frames[0].f_code is not region.code:  # what it has there is called so here
            has = {*map(storage_key, there.values())}
            places = {
                t: each for t, each in places.items() if not (_is_own(t, region.code) and storage_key(each) in has)
            }
        known = {*map(storage_key, places.values())}
        places |= {text: each for text, each in there.items() if storage_key(each) not in known}
        if region is None:
            self._note_given(frames, places, place)
            return
        again = dict(other_arguments(one, frames[:_NEAR], places, self._ever))
        own = {storage_key(t) for frame in frames[-1:] for _, t in _arguments(frame)}
        self._handed.launched(one, frames, region, places, self._outside)
        again |= self._computed.others(one, frames[:_NEAR], self._since, own - {0})
        again = _as_called_here(again, frames[:_NEAR], region.code)
        if again:
            names, _ = self._again.setdefault(frame_at(frames[0].f_code, frames[0].f_lineno), ({}, region))
            names |= again
        self._late.pop(id(region.graph), None)
        named = [(text, storage_key(t)) for frame in frames[-1:] for text, t in _arguments(frame)]
        given = frozenset(key for text, key in named if not is_of_the_next(text))
        seen = frozenset(self._read)
        inputs = {storage_key(tensor) for tensor in places.values()} - {*writes, *region.writes}
        written = frozenset(self._written)
        self._launches[id(region.graph)] = _Launch(inputs, written, seen, given - {0}, place, region.code)
        places = {text: tensor for text, tensor in places.items() if storage_key(tensor) not in one.of_others}
        self._note_given(frames, places, place, region)

    def _note_given(
        self, frames: list[FrameType], places: dict[str, torch.Tensor], at: Place, region: Region | None = None
    ) -> None:
        known, code = set[int](), region.code if region is not None else None
        bound = frozenset(frames[0].f_locals) if frames and frames[0].f_code is code else frozenset[str]()
        shared = frozenset(shared_names(frames[0].f_code, code)) if frames else frozenset[str]()
        for frame in frames[:_NEAR]:
            made = _made_in_vain(frame) if places else {}
            beside = dict(next_ones(frame, places, code, self._ever)) if code is not None else {}
            named = {n: frame.f_locals[n] for n in made} | beside
            for text, tensor in (*named.items(), *_arguments(frame)) if places else ():
                key = storage_key(tensor)
                if key and key not in known and not is_a(tensor, torch.nn.Parameter):
                    known.add(key)
                    ref, own = storage_ref(tensor.untyped_storage()), code or frames[0].f_code
                    kind = tensor.shape, tensor.dtype
                    by_name = code is None or text in named
                    there = _as_attributes(frame, places, text) if text in made else places
                    given = _Given(
                        text, key, ref, *kind, at.frame(), own, there, by_name, made.get(text), region, bound, shared
                    )
                    self._given.append(replace(given, is_next=text in beside))

    def returned(self, result: Any, of_graphs: Collection[int], device: str) -> None:
        """The call ends; ``of_graphs``: memory that graphs read or make."""
        own = {storage_key(tensor) for tensor in tensors_in(result)}
        if own:
            for late in self._late.values():
                for launch, place in late.values():
                    self._note_late(launch, place)
        for each in self._given:
            is_unread = each.key not in self._read and (each.key not in own or _is_kept(each))
            if each.key not in of_graphs and (is_unread or each.is_next):
                self._note_unfed(each, device)
        self._handed.returned(self._read, own, of_graphs)
        self.begin()

    def failures(self, told: Collection[Failure]) -> Iterator[Failure]:
        """All that was seen, where no other input is told to be another one: that may be the same."""
        known = {f.frame for f in told if f.code == "stale-input"}
        said = {f.message.split()[0] for f in told if f.code == "stale-input"}
        said |= {name for f in told for name in re.findall(r"\w+", copied_ahead(f.fix))}
        by_path = {given for given, _ in self._unfed.values()}  # which the function that captures can write to
        there = {
            at: ({n: t for n, t in names.items() if n not in by_path or _is_own(t, region.code)}, region)
            for at, (names, region) in self._again.items()
        }
        for at, (names, region) in there.items():
            if at not in known and (
                left := {n: t for n, t in names.items() if not said.issuperset(re.findall(r"\w+", n))}
            ):
                yield named_again(left, region, at)
        if not any(f.code == "stale-input" for f in told):
            again = {name for names, _ in there.values() for pair in names.items() for name in pair}
            yield from (f for (_, path), (given, f) in self._unfed.items() if again.isdisjoint((path, given)))
            yield from self._behind.values()
            yield from self._handed.failures(told)

    def _note_late(self, launch: _Launch, place: Place) -> None:
        frame, copy = launch.place.frame(), place.frame()
        if frame is None or copy is None or goes_on(place, launch.code):
            return
        outer, line = shared_line(launch.place, place)
        text = f"the graph is replayed here, and what it reads is filled behind it, at line {copy.line}"
        told = BY_ID["stale-input"].failure(f"{text}: each result is that of the call before", outer or frame)
        shown = told.frame.text if told.frame is not None else frame.text
        words = f"before  {shown}\nafter   {line or copy.text} ahead of this line"
        self._behind.setdefault(told.frame, replace(told, fix=words))

    def _note_unfed(self, given: _Given, device: str) -> None:
        places = {text: tensor for text, tensor in given.places.items() if self._is_open(tensor, given, device)}
        name = last_of(given.text)
        named = {t: v for t, v in places.items() if name and name in t.rpartition(".")[2]}
        named = {t: v for t, v in places.items() if is_named_for(name, t, given.code)} if given.is_next else named
        beside = {t: v for t, v in places.items() if self._stands_beside_others(t, given.places)}
        beside = beside or {t: v for t, v in places.items() if _is_even(v)}
        chosen = _once(named or ({} if given.by_name else beside), given.text)
        at = given.text[given.text.find("[") :] if "[" in given.text else ""
        alike = [t for t in chosen if at and t.endswith(at)]
        if not chosen:
            self._note_unfed_part(given, device)
        if len(chosen) != 1 and len(alike) != 1:
            return
        path = (alike or [*chosen])[0]
        calls = [each.text for each in self._given]
        if is_apart(given.text, path, places[path], given.code, calls, given.places):
            return
        failure = BY_ID["stale-input"].failure(_said(given, path), given.made or given.replay)
        filled = f"{path}.copy_({given.text})"
        if (
            not alike and path not in named and not is_copy_of(given.text, path, given.code)
        ):  # it may be made of what was given: a mask of the flags of an end
            filled = f"{path}.copy_(what eager code has there of {given.text})"
        words = _kept_with_graph(path, given) or _words(given, filled) + _with_clone(path, given)
        self._unfed.setdefault((given.replay, path), (given.text, replace(failure, fix=words)))

    def _note_unfed_part(self, given: _Given, device: str) -> None:
        """The same for what fills the beginning of what a graph reads, or of which each part does, as named there."""
        name = last_of(given.text)
        there = {
            text: form
            for text, tensor in given.places.items()
            if tensor.device.type == device and storage_key(tensor) not in {0, given.key, *self._since}
            if tensor.dtype == given.dtype and (form := part_of(name, text, given.shape, tensor.shape))
        }
        if len(there) != 1 or is_of_the_next(given.text):
            return
        ((path, form),) = there.items()
        if is_apart(given.text, path, given.places[path], given.code):
            return
        failure = BY_ID["stale-input"].failure(_said(given, path), given.made or given.replay)
        if PART in form and (part := part_in_loop(given.text, given.replay)):
            form = f"{{path}}.copy_({part})"
        words = _words(given, form.format(path=path, given=given.text))
        self._unfed.setdefault((given.replay, path), (given.text, replace(failure, fix=words)))

    def _is_open(self, tensor: torch.Tensor, given: _Given, device: str) -> bool:
        """Whether nobody writes to what a graph reads, and what was given fits there."""
        key = storage_key(tensor)
        fits = tensor.device.type == device and (tensor.shape, tensor.dtype) == (given.shape, given.dtype)
        return fits and bool(key) and key != given.key and key not in self._ever

    def _stands_beside_others(self, text: str, places: dict[str, torch.Tensor]) -> bool:
        """Whether it is an entry of what has others that are filled."""
        table = table_of(text)
        others = (t for path, t in places.items() if table and table_of(path) == table and path != text)
        return any(storage_key(each) in self._ever for each in others)


def _places(region: Region) -> Iterator[tuple[str, torch.Tensor]]:
    """What the lines of a capture read, as they write it, with the entries of their lists and dictionaries."""
    for use in region.values.uses if region.values is not None else ():
        value = use.value()
        if is_a(value, torch.Tensor) and not is_a(value, torch.nn.Parameter):
            yield use.text, value
        yield from _entries(use.text, value)


def _of_owners(frames: list[FrameType], one: Any, known: set[int]) -> dict[str, torch.Tensor]:
    """What objects whose methods come to a replay have of what the device says that its graph touches.

    The function that captured may have called it by other names, which nobody knows any more.
    """
    found: dict[str, torch.Tensor] = {}
    for frame in frames if one.touched else ():
        for name, value in attributes_of(frame.f_locals.get("self")).items():
            pairs = [(f"self.{name}", value), *_entries(f"self.{name}", value)]
            for text, each in pairs:
                if is_a(each, torch.Tensor) and not is_a(each, torch.nn.Parameter) and _is_read(each, one):
                    found |= {text: each} if storage_key(each) not in known else {}
    return found


def _is_own(path: str, code: CodeType) -> bool:
    """Whether a path begins with a variable of a function's own, which no other function knows by that name."""
    name = path.partition("[")[0].partition(".")[0]
    return name in code.co_varnames and name != "self"


def _of_variables(frames: list[FrameType], one: Any) -> dict[str, torch.Tensor]:
    """What variables of the function that replays have of it, as out of a table: ``g, x, out = cache[key]``."""
    found: dict[str, torch.Tensor] = {}
    for frame in frames:
        given, names = {text for text, _ in _arguments(frame)}, frame.f_locals
        for name, value in ((n, names[n]) for n in frame.f_code.co_varnames if n in names):
            for text, each in [(name, value), *_entries(name, value)]:
                is_read = is_a(each, torch.Tensor) and text not in given and _is_read(each, one)
                found |= {text: each} if is_read else {}
        found |= {text: each for text, each in held_in_variables(frame) if _is_read(each, one)}
    return found


def _is_read(tensor: torch.Tensor, one: Any) -> bool:
    """Whether a graph reads a tensor, as far as the device or the capture has shown it."""
    if one.before and one.touched:
        return tensor.device.type != "cpu" and tensor.untyped_storage().data_ptr() in one.touched
    return storage_key(tensor) in one.reads


def _entries(text: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    kind = type(value)  # what answers as it likes is left alone
    pairs = value.items() if kind is dict else enumerate(value) if kind in (list, tuple) else ()
    for key, part in islice(pairs, _MOST_ENTRIES):
        if is_a(part, torch.Tensor):
            yield f"{text}[{key!r}]", part
    fields = kind._fields if issubclass(kind, tuple) and hasattr(kind, "_fields") else ()
    held = dict(zip(fields, tuple.__iter__(value), strict=False)) if fields else _fields_of(value)
    yield from ((f"{text}.{name}", part) for name, part in held.items() if is_a(part, torch.Tensor))


def _fields_of(value: Any) -> dict[str, Any]:
    return attributes_of(value) if "__dataclass_fields__" in vars(type(value)) else {}


def _arguments(frame: FrameType) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that a function was given, as it writes them."""
    code, held = frame.f_code, dict(frame.f_locals)
    stars = bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
    for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + stars]:
        value = held.get(name)
        if is_a(value, torch.Tensor):
            yield name, value
        yield from _entries(name, value)


def _as_called_here(names: dict[str, str], frames: list[FrameType], code: CodeType) -> dict[str, str]:
    """Names of functions around a replay, as its own function writes what they are: ``kwargs['bias']`` for ``bias``.

    ``names``: with what the function that captures, of this code, calls that.
    """
    if frames[0].f_code is not code:
        return names
    found = {}
    for name, there in names.items():
        held = (frame.f_locals.get(name) for frame in frames)
        now = next((value for value in held if is_a(value, torch.Tensor)), None)
        own = () if name in frames[0].f_locals else _arguments(frames[0])
        here = next((text for text, each in own if each is now), name)
        found[here] = here if there == name else there
    return found


def _once(places: dict[str, torch.Tensor], given: str) -> dict[str, torch.Tensor]:
    """Each tensor by one of the names that it has: what captures call it first, and not what is given is called."""
    found = dict[int, str]()
    for text in sorted(places, key=lambda each: each == given):
        found.setdefault(storage_key(places[text]), text)
    return {text: places[text] for text in found.values()}


def _said(given: _Given, path: str) -> str:
    then = f"{path}, which the graph reads, is as it was at its capture"
    return (
        f"{then}, and {given.text} is another one here"
        if given.is_next
        else f"nothing reads {given.text} here, and {then}"
    )


def _words(given: _Given, filled: str) -> str:
    """Where a copy goes: ahead of the replay, or right behind the line that computes what is copied."""
    if given.made is not None:
        return f"before  {given.made.text}\nafter   {given.made.text}; {filled}"
    line = given.replay.text if given.replay is not None else "the replay"
    parts = line.split("; ")  # of several statements, that which launches
    at = next((n for n, part in enumerate(parts) if ".replay(" in part), 0)
    return f"before  {line}\nafter   {'; '.join([*parts[:at], filled, *parts[at:]])}"


def _is_kept(given: _Given) -> bool:
    """Whether the capture has kept what its call was given by that name: the one of another call it has not read."""
    kept = {each.path for each in kept_as_given(given.code) if each.name == given.text}
    return not kept.isdisjoint(given.places)


def _with_clone(path: str, given: _Given) -> str:
    """What is said beside a copy to what the capture has kept as it was given."""
    line = next((each.cloned for each in kept_as_given(given.code) if each.path == path), "")
    return f", and {line}" if line and given.made is None else ""


def _kept_with_graph(path: str, given: _Given) -> str:
    """Words for what only the function that captures knows by a name: another tensor, or none, has that at a replay."""
    region, known = given.region, given.shared | given.bound
    if (
        region is None
        or path.partition("[")[0].partition(".")[0] in known
        or given.made is not None
        or not _is_own(path, region.code)
    ):
        return ""
    return kept_with_graph({given.text: path}, region, given.replay)


def _made_in_vain(frame: FrameType) -> dict[str, Frame | None]:
    """The lines that give tensors to variables which nobody reads: what is computed for a graph is not copied there."""
    lines, held = never_loaded(frame.f_code), frame.f_locals
    return {name: frame_at(frame.f_code, line) for name, line in lines if is_a(held.get(name), torch.Tensor)}


def _as_attributes(frame: FrameType, places: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    """The same, where a variable of who captures is called as one here: by the attribute that has it, if one does."""
    first = next(iter(frame.f_code.co_varnames[:1]), "")
    parts = attributes_of(frame.f_locals.get(first)) if name in places else {}
    kept = {storage_key(part): f"{first}.{n}" for n, part in parts.items() if is_a(part, torch.Tensor)}
    return {kept.get(storage_key(v), text) if text == name else text: v for text, v in places.items()}


def _is_even(tensor: torch.Tensor) -> bool:
    """Whether it is filled with one value, as a place to copy to is."""
    flat = tensor.detach().reshape(-1)
    return flat.numel() > 1 and bool((flat == flat[0]).all())
