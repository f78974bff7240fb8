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

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, MAKERS, defines, last_name, tree_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.handed_on import is_handed_on
from paramgraph_kit.doctor.observe.held import attributes_of, is_a
from paramgraph_kit.doctor.observe.lies import is_copied_from
from paramgraph_kit.doctor.observe.made_first import ROWS
from paramgraph_kit.doctor.observe.places import Place, frames_of_the_user
from paramgraph_kit.doctor.observe.ran import has_run
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.doctor.restore.keeper import storage_key, storage_ref
from paramgraph_kit.driver.files import is_library
from paramgraph_kit.driver.work import worked_s
from paramgraph_kit.trace.model import Failure

_MOST_ENTRIES, _MOST_PLACES = 256, 4096
_MOST_LOOKS = 16  # behind a capture, ahead of the first replay
_MOST_S = 2.0  # that looking at replays may take in all
_DEEP = 2  # objects in objects, and tables in tables
_IN_ROW = "by its number"  # what else is told of a list's entry, or a tuple's
_OF_MODULES = ("_parameters", "_buffers", "_modules")  # which are told by their own names
_WRITTEN = re.compile(r"(?P<held>[^`]+?)\.copy_\((?P<new>.+)\)")
_NAME = re.compile(r"[\w.]+")
_ALIKE = ("stale-input", "parameter-rebound")
Chain = tuple[Any, ...]  # names of attributes, and the keys of entries as tuples
Key = tuple[int, Chain]  # what has it, by its id, and the way from there


@dataclass(frozen=True, slots=True)
class _Held:
    """A tensor that a place has: where it lies, and how."""

    key: int
    ref: Any  # a weak reference, which also keeps the key from being given to somebody else
    address: int
    shape: torch.Size
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class _Moved:
    """A place that has another tensor at a replay than the one which the graph reads."""

    chain: Chain
    place: Place  # the replay
    then: torch.Size
    now: torch.Size
    in_part: bool  # it is of another size, or several graphs read it, of which some may read a part
    running: tuple[tuple[CodeType, int], ...]  # the functions that ran then, and at which lines

    def as_large(self, path: str, words: str) -> str:
        """Words that write in place, where what is given may be smaller than what is there, or is larger."""
        if not self.in_part or not self.then:
            return words
        if any(new > old for new, old in zip(self.now, self.then, strict=True)):
            return f"{path} as large as it gets, made ahead of the capture: {ROWS}"
        part = ":len({0})" if len(self.then) == 1 else "tuple(map(slice, {0}.shape))"
        if (found := _WRITTEN.fullmatch(words)) is not None:  # one line that writes one tensor
            new = found["new"] if _NAME.fullmatch(found["new"]) else "new"
            made = "" if new == found["new"] else f"new = {found['new']}; "
            return f"{made}{found['held']}[{part.format(new)}].copy_({new})"
        return words.replace(".copy_(new)", f"[{part.format('new')}].copy_(new)")


class HeldInputs:
    """Those of the graphs of one examination."""

    def __init__(self) -> None:
        self._then: dict[tuple[int, Key], _Held] = {}  # by the graph and the place
        self._readers: dict[int, set[int]] = {}  # by memory, the graphs that read it from such a place
        self._written: set[tuple[int, int]] = set()  # graphs, and memory that they read and that was written since
        self._moved: dict[Chain, _Moved] = {}
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

    def note_before(self, graphs: Mapping[int, Collection[int]], device: str, roots: Iterable[Any]) -> None:
        """The same of graphs captured before anybody looked, by the addresses that they read."""
        with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
            places = _places(device, roots) if any(graphs.values()) else {}
            for number, read in graphs.items():
                self._note(number, ((key, held) for key, held in places.items() if held.address in read))

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
            if now is None or now.key == then.key or not _is_alike(now, then):
                continue
            if now.key not in self._readers and (number, then.key) not in self._written:
                running = tuple((frame.f_code, frame.f_lineno) for frame in frames)
                in_part = now.shape != then.shape or len(self._readers.get(then.key, ())) > 1
                moved = _Moved(key[1], place, then.shape, now.shape, in_part, running)
                self._moved.setdefault(key[1], moved)
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
            path = _written(moved.chain)
            if moved.chain[-1] in said or any(f.frame is not None and path in f.frame.text for f in alike):
                continue
            if any(is_handed_on(code, str(moved.chain[-1])) for code, _ in moved.running):
                continue
            text = f"{path} has other memory from here on, and the graph reads that of its capture"
            lines = [*_given_at(moved, ran)]
            for code, node, words in lines if len(lines) == 1 else []:
                if (at := (code.co_filename, node.lineno)) not in told:
                    told.add(at)
                    fix = f"before  {ast.unparse(node)}\nafter   {moved.as_large(path, words)}"
                    yield replace(BY_ID["stale-input"].failure(text, frame_at(code, node.lineno)), fix=fix)
            frame = moved.place.frame()
            if len(lines) != 1 and frame is not None and (at := (frame.file, frame.line)) not in told:
                told.add(at)
                text = f"{path} has other memory by now, and the graph reads that of its capture"
                written = moved.as_large(path, f"{path}.copy_(new)")
                fix = f"before  {path} = new\nafter   {written}, ahead of {frame.text}"
                yield replace(BY_ID["stale-input"].failure(text, frame), fix=fix)


def _is_alike(now: _Held, then: _Held) -> bool:
    """Whether a tensor may stand for another, of whatever size and precision: a smaller bucket's rows, as a copy."""
    return len(now.shape) == len(then.shape) and now.dtype.is_floating_point == then.dtype.is_floating_point


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
            _in_table(id(value), (name,), value, device, found, _DEEP)
        elif id(value) not in seen and _is_users(value):
            seen.add(id(value))
            _in_object(id(value), (), value, device, found, _DEEP)


def _in_object(owner: int, chain: Chain, value: Any, device: str, found: dict[Key, _Held], deep: int) -> None:
    """What an object of the user's has, and the objects that it has, by the way from the first of them."""
    for name, part in list(attributes_of(value).items()):
        if name in _OF_MODULES and is_a(value, torch.nn.Module):
            continue
        if is_a(part, torch.Tensor):
            _note_tensor((owner, (*chain, name)), part, device, found)
        elif is_a(part, (list, dict, tuple)):
            _in_table(owner, (*chain, name), part, device, found, _DEEP)
        elif type(part) is partial:
            for held in ("args", "keywords"):
                _in_table(owner, (*chain, name, held), getattr(part, held), device, found, 1)
        elif deep > 1 and _is_users(part):
            _in_object(owner, (*chain, name), part, device, found, deep - 1)


def _in_table(owner: int, chain: Chain, table: Any, device: str, found: dict[Key, _Held], deep: int) -> None:
    by_name = is_a(table, dict)
    entries: Iterable[tuple[Any, Any]] = list(dict.items(table)) if by_name else enumerate(_plain(table))
    for number, (key, part) in enumerate(entries):
        if number >= _MOST_ENTRIES or len(found) >= _MOST_PLACES:
            return
        with suppress(Exception):  # a key of the user's, or what a tensor of theirs is asked for
            if is_a(part, torch.Tensor):
                _note_tensor((owner, (*chain, (key,) if by_name else (key, _IN_ROW))), part, device, found)
            elif deep > 1 and is_a(part, (list, dict, tuple)):
                way = (*chain, (key,) if by_name else (key, _IN_ROW))
                _in_table(owner, way, part, device, found, deep - 1)


def _plain(table: Any) -> list[Any]:
    """The entries of a list or a tuple, whatever a class of the user's makes of being asked for them."""
    return [*(list.__iter__(table) if is_a(table, list) else tuple.__iter__(table))]


def _note_tensor(at: Key, tensor: torch.Tensor, device: str, found: dict[Key, _Held]) -> None:
    is_read = tensor.device.type == device or (tensor.device.type == "cpu" and is_copied_from(tensor))
    key = storage_key(tensor) if is_read and not is_a(tensor, torch.nn.Parameter) else 0
    if key:
        storage = tensor.untyped_storage()
        found[at] = _Held(key, storage_ref(storage), storage.data_ptr(), tensor.shape, tensor.dtype)


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


def _given_at(moved: _Moved, ran: Collection[CodeType]) -> Iterator[tuple[CodeType, Any, str]]:
    """Lines of the functions that ran at the replay which give such a place a value, each with what is right there."""
    for code, line in moved.running:
        tree = tree_of(code.co_filename)
        functions = [n for n in ast.walk(tree) if defines(n, code)] if tree is not None else []
        body = functions[-1:] or ([tree] if tree is not None and code.co_name == "<module>" else [])
        found = [(code, *each) for part in body for each in _lines(part, moved.chain)]
        ahead = [each for each in found if each[1].lineno <= line]
        if found:
            yield from ahead[-1:] or found[-1:]
            return
    file = moved.running[0][0].co_filename if moved.running else ""
    tree = tree_of(file) if file else None
    for node in (n for n in ast.walk(tree) if isinstance(n, FUNCTIONS[:2])) if tree is not None else ():
        known = [code for code, _ in moved.running if defines(node, code)]
        done = not ran or has_run(ran, file, node.body[0].lineno)
        if not known and done and node.name not in MAKERS and not _captures(node):
            code = moved.running[0][0].replace(co_name=node.name)
            yield from ((code, *each) for each in _lines(node, moved.chain))


def _captures(node: ast.AST) -> bool:
    calls = (n for n in ast.walk(node) if isinstance(n, ast.Call))
    return any(last_name(call.func) in ("graph", "capture_begin") for call in calls)


def _lines(body: ast.AST, chain: Chain) -> Iterator[tuple[ast.stmt, str]]:
    """Assignments to the place, in a function that does not itself make what is captured, and the same in place."""
    inside = {id(n) for b in ast.walk(body) if isinstance(b, ast.If) and _captures(b) for n in ast.walk(b)}
    for node in ast.walk(body):
        if id(node) in inside:
            continue
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, given = node.targets[0], ast.unparse(node.value)
            is_tuple = isinstance(node.value, (ast.Tuple, ast.List))
            if new := _in_partial(node.value, chain) if _is_place(target, chain[:-2]) else None:
                held = f"{ast.unparse(target)}.{chain[-2]}[{chain[-1][0]!r}].copy_({ast.unparse(new)})"
                has = f"hasattr({ast.unparse(target.value)}, {target.attr!r})"  # type: ignore[attr-defined]
                yield node, f"`if {has}: {held}`, and else this line as it is"
            elif _is_place(target, chain) and not is_tuple:
                yield node, f"{ast.unparse(target)}.copy_({given})"
            elif len(chain) > 2 and is_tuple and _is_place(target, chain[:-1]):
                yield node, f"for held, new in zip({ast.unparse(target)}, {given}): held.copy_(new)"
            elif _is_table(target, chain) and len(chain) > 2:
                yield node, _each_in_place(ast.unparse(target), given, [part[0] for part in chain[1:]])
            elif _is_table(target, chain):
                path = ast.unparse(target)
                pairs = f"for key, new in ({given}).items(): {path}[key].copy_(new)"
                several = f"for held, new in zip({path}, {given}): held.copy_(new)"
                yield node, several if _IN_ROW in chain[-1][1:] or _is_list(node.value) else pairs
        elif isinstance(node, ast.Expr) and isinstance(call := node.value, ast.Call):
            func = call.func
            if isinstance(func, ast.Attribute) and func.attr == "update" and _is_table(func.value, chain):
                path = ast.unparse(func.value)
                given = ast.unparse(call.args[0]) if call.args else f"dict({ast.unparse(call).partition('(')[2]}"
                yield node, f"for key, new in {given}.items(): {path}[key].copy_(new)"


def _in_partial(value: ast.expr, chain: Chain) -> ast.expr | None:
    """What a line gives to a ``partial`` at the end of the way: ``new`` of ``partial(loss, weights=new)``."""
    if not isinstance(value, ast.Call) or last_name(value.func) != "partial" or chain[-2] not in ("args", "keywords"):
        return None
    given: dict[Any, ast.expr] = {i: each for i, each in enumerate(value.args[1:])}  # noqa: C416 - of both kinds
    return (given | {k.arg: k.value for k in value.keywords}).get(chain[-1][0])


def _is_list(value: ast.expr) -> bool:
    return isinstance(value, (ast.List, ast.ListComp))


def _is_place(target: ast.expr, chain: Chain) -> bool:
    """Whether a target may be the last part of the way: ``x.inputs[n]`` for ``inputs[4]``."""
    last = chain[-1] if chain else ()
    if type(last) is not tuple:
        return isinstance(target, ast.Attribute) and target.attr == last
    if not last or not isinstance(target, ast.Subscript) or isinstance(target.slice, (ast.Slice, ast.Tuple)):
        return False
    if isinstance(target.slice, ast.Constant):
        return bool(target.slice.value == last[0])
    name = next(part for part in reversed(chain) if type(part) is str)
    held = target.value
    while isinstance(held, ast.Subscript):
        held = held.value
    return last_name(held) == name


def _each_in_place(path: str, given: str, keys: list[Any]) -> str:
    """The entries of tables in a table, each written in place."""
    left, right = path, given
    rounds = list[str]()
    for number, key in enumerate(keys):
        held, new = ("held", "new") if number == len(keys) - 1 else (f"held_{number}", f"new_{number}")
        entries = "" if isinstance(key, int) else ".values()"
        rounds.append(f"for {held}, {new} in zip({left}{entries}, {right}{entries})")
        left, right = held, new
    return f"for held, new in [(held, new) {' '.join(rounds)}]: held.copy_(new)"


def _is_table(target: ast.expr, chain: Chain) -> bool:
    """Whether a target is the table that has the entry, or has the one that does."""
    if type(chain[0]) is not str or not chain[1:] or any(type(part) is not tuple for part in chain[1:]):
        return False
    return isinstance(target, (ast.Name, ast.Attribute)) and last_name(target) == chain[0]
