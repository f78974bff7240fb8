"""Numbers that a function was given which captures, and has returned at the replays: ``runner.capture(n)``."""

from __future__ import annotations

import ast
import inspect
import operator
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, LOOPS, last_name, nodes_of
from paramgraph_kit.doctor.number_kinds import NUMBERS
from paramgraph_kit.doctor.observe.captured_values import NOTHING, path_value
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.own_managers import captured_in, is_manager
from paramgraph_kit.doctor.observe.own_tables import keys_of
from paramgraph_kit.doctor.observe.paired_arguments import paired_with
from paramgraph_kit.doctor.observe.places import frames_of_the_user

_MOST = 64  # entries of a list
_FILLS = frozenset(("fill_", "full", "tensor", "as_tensor", "scalar_tensor", "full_like"))
_COMPUTES = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_COMPUTES |= {ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod}
_OF_NUMBERS: dict[str, Any] = {"min": min, "max": max, "int": int, "float": float, "round": round, "bool": bool}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a function was given it: the call, what stands there, and what that meant."""

    code: CodeType
    call: ast.Call
    node: ast.expr
    space: dict[str, Any]
    root: Any  # a weak reference to the object whose attribute it is, or None


@dataclass(frozen=True, slots=True)
class Passed:
    """A number, or a list of them, of a function that captures with it."""

    code: CodeType
    name: str
    value: Any
    reads: tuple[ast.Name, ...]  # by what is captured: of it, or of what is computed of it ahead of that
    origins: tuple[Origin, ...]  # innermost first
    entry: int = -1  # of ``*args``, which


@dataclass(frozen=True, slots=True)
class PassedOn:
    """One that is another at a replay."""

    passed: Passed
    now: Any
    code: CodeType  # the function that runs then, and knows of another one
    line: int  # at which it is
    text: str  # what it is called there
    origin: Origin | None = None  # the call whose argument it is; None where only its name tells
    paired: bool = False  # with that of the capture, of which only tensors are copied


@dataclass(slots=True)
class PassedNumbers:
    """Those of the captures of one examination."""

    then: dict[int, list[Passed]] = field(default_factory=dict)  # by the graph
    moved: dict[tuple[CodeType, str], PassedOn] = field(default_factory=dict)

    def begin(self, graph: object) -> None:
        """The capture of a graph begins."""
        self.then[id(graph)] = [*_passed([*frames_of_the_user()])]

    def captured_before(self, graph: object, code: CodeType, names: Mapping[str, Any]) -> None:
        """One of before, in a function that had these variables."""
        own = {n: names[n] for n in _arguments(code) if n in names}
        self.then[id(graph)] = [Passed(code, *each, ()) for each in _read_of(code, own, {})]

    def launched(self, graph: object) -> None:
        """A graph is replayed."""
        if not (then := self.then.get(id(graph))):
            return
        frames = [*frames_of_the_user()]
        running = {frame.f_code for frame in frames}
        for one in (p for p in then if p.code not in running and (p.code, p.name) not in self.moved):
            alike = [p for key, others in self.then.items() if key != id(graph) for p in others if p.code is one.code]
            if any(p.name == one.name and p.value != one.value for p in alike) and _may_choose(one):
                continue  # a graph for each of several: which one a size is for is the program's to say
            found = next(_now(one, frames), None)
            if found is not None:
                self.moved[one.code, one.name] = found


def _may_choose(one: Passed) -> bool:
    """Whether a number may be what the program looks up its graphs by: all of it, or what is computed of it."""
    keys = {path for part in keys_of(one.code.co_filename) for path in _paths(ast.parse(part))}
    if not keys or (type(one.value) is int and all(is_size(n, one.code) for n in one.reads)):
        return True
    named = {one.name}
    for code, node in ((one.code, ast.Name(one.name)), *((o.code, o.node) for o in one.origins)):
        named |= {*_paths(node)}
        for made in sorted((n for n in nodes_of(code) if isinstance(n, ast.Assign)), key=lambda n: n.lineno):
            if any(_is_part(name, read) for read in _paths(made.value) for name in named):
                named |= {
                    path for target in made.targets if not isinstance(target, ast.Subscript) for path in _paths(target)
                }
    return any(_is_part(name, key) for name in named for key in keys)


def _paths(node: ast.AST) -> Iterator[str]:
    """What an expression reads, ``request.size``, each to its end."""
    if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(_first(node), ast.Name):
        yield ast.unparse(node)
        return
    for child in ast.iter_child_nodes(node):
        yield from _paths(child)


def _first(node: ast.AST) -> ast.AST:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


def _is_part(name: str, path: str) -> bool:
    return name == path or name.startswith(f"{path}.")


def _passed(frames: list[FrameType]) -> Iterator[Passed]:
    """The numbers of the function that captures: `with` may have called a context manager of the user's own first."""
    while frames and (is_manager(frames[0].f_code) or not captured_in(frames[0].f_code)):
        frames = frames[1:]
    if not frames or frames[0].f_code.co_name == "<module>":
        return
    code, held = frames[0].f_code, frames[0].f_locals
    given = {name: held[name] for name in _arguments(code) if name in held}
    for name, value, reads in _read_of(code, given, held):
        yield Passed(code, name, value, reads, tuple(_origins(frames, name)))
    yield from _of_many(frames)


def _of_many(frames: list[FrameType]) -> Iterator[Passed]:
    """The numbers among ``*args`` and ``**kwargs``."""
    code, held = frames[0].f_code, frames[0].f_locals
    names = inspect.getargs(code)
    for many in filter(None, (names.varargs, names.varkw)):
        entries = held.get(many)
        parts = entries.items() if type(entries) is dict else enumerate(entries or ())
        for _, _, reads in _read_of(code, {many: 0}, {}):
            for entry, value in parts:
                if (own := plain(value)) is not NOTHING:
                    origins, at = tuple(_origins(frames, many, entry)), entry if isinstance(entry, int) else -1
                    yield Passed(code, f"{many}[{entry!r}]", own, reads, origins, at)


def _arguments(code: CodeType) -> tuple[str, ...]:
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _read_of(
    code: CodeType, given: Mapping[str, Any], held: Mapping[str, Any]
) -> Iterator[tuple[str, Any, tuple[ast.Name, ...]]]:
    """Each number of a call that what is captured reads: its name, what it is, and where."""
    numbers = {name: own for name, value in given.items() if (own := plain(value)) is not NOTHING}
    nodes = [*nodes_of(code)]
    blocks = captured_in(code) if numbers else []
    if not blocks:
        return
    inside = [n for block in blocks for s in block for n in ast.walk(s)]
    called = {n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    inner = [n for n in nodes if isinstance(n, FUNCTIONS[:2]) and n.name in called and n.name != code.co_name]
    inside += [n for f in inner for n in ast.walk(f)]
    named = [n for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    stored = [(n.id, n.lineno) for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    for name, value in numbers.items():
        if any(id_ == name for id_, _ in stored):
            continue  # it means something else by then
        known = {name, *_computed_of(name, nodes, blocks[0][0].lineno, stored, held)}
        if reads := tuple(n for n in named if n.id in known):
            yield name, value, reads


def _computed_of(
    name: str, nodes: list[ast.AST], line: int, stored: list[tuple[str, int]], held: Mapping[str, Any]
) -> Iterator[str]:
    """Variables that have one value, which is computed of a number ahead of the capture."""
    known = {name}
    for node in sorted((n for n in nodes if isinstance(n, ast.Assign)), key=lambda n: n.lineno):
        target = node.targets[0]
        if node.lineno >= line or len(node.targets) != 1 or not isinstance(target, ast.Name):
            continue
        read = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
        once = sum(id_ == target.id for id_, _ in stored) == 1
        if once and not known.isdisjoint(read) and _is_told_by(node.value, known, held.get(target.id, NOTHING)):
            known.add(target.id)
            yield target.id


def _is_told_by(value: ast.expr, known: set[str], what: Any) -> bool:
    """Whether the number decides it: another number, or a tensor made of it and of nothing that lives on."""
    if plain(what) is not NOTHING:
        return True
    if not is_a(what, torch.Tensor):
        return False
    others = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)} - known
    return others <= {"torch", "device", "list", "range", "self", "int", "float"}


def _origins(frames: list[FrameType], name: str, entry: Any = None) -> Iterator[Origin]:
    """What the calls give for it, each as the function around it has it from its own caller."""
    for frame, caller in pairwise(frames):
        call = _call_of(frame, caller)
        node = _given_at(call, frame, name, entry) if call is not None else None
        if call is None or node is None:
            return
        yield Origin(caller.f_code, call, node, caller.f_globals, _root(node, caller))
        if not isinstance(node, ast.Name) or node.id not in _arguments(caller.f_code):
            return
        name, entry = node.id, None


def _call_of(frame: FrameType, caller: FrameType) -> ast.Call | None:
    """The call at which a function is that runs another one."""
    names = {frame.f_code.co_name}
    if frame.f_code.co_name in ("__init__", "__call__", "forward"):
        owner = frame.f_locals.get(_arguments(frame.f_code)[:1][0]) if _arguments(frame.f_code) else None
        names = {type(owner).__name__} if frame.f_code.co_name == "__init__" else set()
    nodes = (n for n in nodes_of(caller.f_code) if isinstance(n, ast.Call))
    calls = [n for n in nodes if n.lineno <= caller.f_lineno <= (n.end_lineno or 0)]
    found = [n for n in calls if last_name(n.func) in names] if names else calls
    return found[0] if len(found) == 1 else None


def _given_at(call: ast.Call, frame: FrameType, name: str, entry: Any = None) -> ast.expr | None:
    code = frame.f_code
    if any(isinstance(each, ast.Starred) for each in call.args) or any(k.arg is None for k in call.keywords):
        return None
    for keyword in call.keywords:
        if keyword.arg == (entry if isinstance(entry, str) else name):
            return keyword.value
    own = code.co_varnames[: code.co_argcount]
    is_method = own[:1] in (("self",), ("cls",)) and isinstance(call.func, (ast.Attribute, ast.Name))
    at = own.index(name) - is_method if name in own else -1
    at = len(own) - is_method + entry if isinstance(entry, int) else at
    return call.args[at] if 0 <= at < len(call.args) else None


def _root(node: ast.expr, caller: FrameType) -> Any:
    """The object that a path begins at, as long as somebody else keeps it."""
    first = node
    while isinstance(first, (ast.Attribute, ast.Subscript)):
        first = first.value
    held = caller.f_locals.get(first.id) if isinstance(first, ast.Name) and first is not node else None
    try:
        return weakref.ref(held) if held is not None and not is_a(held, torch.Tensor) else None
    except TypeError:
        return None


def _now(one: Passed, frames: list[FrameType]) -> Iterator[PassedOn]:
    """What runs at a replay, and has another number for it."""
    cut = [frame for frame in frames if _cuts(frame)]
    for origin in one.origins:
        frame = next((f for f in frames if f.f_code is origin.code), None)
        line, text = (frame.f_lineno if frame is not None else 0), ast.unparse(origin.node)
        for name, now in _other_values(origin, frame):
            if now is not NOTHING and now != one.value and _counts(one, now, cut):
                yield PassedOn(one, now, origin.code, line, name or text, origin)
    if one.entry >= 0 and one.origins:
        for frame in frames:
            for text, now in paired_with(one.entry, one.value, frame):
                yield PassedOn(one, now, frame.f_code, frame.f_lineno, text, one.origins[0], paired=True)
    givers = {origin.code for origin in one.origins}
    for frame in (f for f in frames if f.f_code not in givers and f.f_code.co_filename == one.code.co_filename):
        now = plain(frame.f_locals.get(one.name)) if one.name in _arguments(frame.f_code) else NOTHING
        alike = type(now) is type(one.value) or {type(now), type(one.value)} <= {int, float}
        if now is not NOTHING and alike and now != one.value and _is_the_same(one, now, frame, cut):
            yield PassedOn(one, now, frame.f_code, frame.f_lineno, one.name)


def _other_values(origin: Origin, frame: FrameType | None) -> Iterator[tuple[str, Any]]:
    """What an argument means now; of an entry of a list, what a loop through that list has."""
    node = origin.node
    if frame is None:
        held = origin.root() if origin.root is not None else None
        first = next((n.id for n in ast.walk(node) if isinstance(n, ast.Name)), "")
        if held is not None:
            yield "", evaluated(node, {first: held}, origin.space)
        elif isinstance(node, (ast.Name, ast.Attribute)) and first in origin.space:
            own = first in origin.code.co_varnames or first in origin.code.co_cellvars
            yield "", NOTHING if own else evaluated(node, {}, origin.space)
        return
    if _is_still(node, origin, frame):
        yield "", evaluated(node, frame.f_locals, frame.f_globals)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        for loop in (n for n in nodes_of(frame.f_code) if isinstance(n, ast.For)):
            if loop.lineno < frame.f_lineno <= (loop.end_lineno or 0):
                for name in _through(loop.target, loop.iter, ast.unparse(node.value)):
                    yield name, plain(frame.f_locals.get(name, NOTHING))


def _through(target: ast.expr, over: ast.expr, path: str) -> Iterator[str]:
    """The variable of a loop that has the entries of a list, one after the other."""
    if isinstance(over, ast.Call) and last_name(over.func) == "enumerate" and isinstance(target, ast.Tuple):
        yield from _through(target.elts[-1], over.args[0], path)
    elif isinstance(over, ast.Call) and last_name(over.func) == "zip" and isinstance(target, ast.Tuple):
        for part, each in zip(target.elts, over.args, strict=False):
            yield from _through(part, each, path)
    elif isinstance(target, ast.Name) and ast.unparse(over) == path:
        yield target.id


def _is_still(node: ast.expr, origin: Origin, frame: FrameType) -> bool:
    """Whether the variables of an argument mean at a replay what they meant at the capture, moved on or not."""
    code, call, now = frame.f_code, origin.call.lineno, frame.f_lineno
    nodes = [*nodes_of(code)]
    loops = [(n, {id(each) for each in ast.walk(n)}) for n in nodes if isinstance(n, LOOPS)]
    for name in {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}:
        for stored in (n for n in nodes if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)):
            around = [loop for loop, inside in loops if id(stored) in inside]
            common = [n for n in around if all(n.lineno <= at <= (n.end_lineno or 0) for at in (call, now))]
            if around and not common:
                if not _moves_on(stored, nodes):
                    return False  # another loop has a variable of that name, or this one's has ended
            elif not around and stored.lineno > call and not _moves_on(stored, nodes):
                return False
    return True


def _moves_on(stored: ast.Name, nodes: list[ast.AST]) -> bool:
    """Whether a statement gives a variable a value that its last one decides: ``t *= 0.9``, ``t = t * 0.9``."""
    for node in nodes:
        if isinstance(node, ast.AugAssign) and node.target is stored:
            return True
        if isinstance(node, ast.Assign) and any(t is stored for t in node.targets):
            return any(isinstance(n, ast.Name) and n.id == stored.id for n in ast.walk(node.value))
    return False


def _counts(one: Passed, now: Any, cut: list[FrameType]) -> bool:
    """Whether a graph with another number gives other results: one for more rows gives those of fewer, too."""
    sizes = type(now) is int and type(one.value) is int and all(is_size(n, one.code) for n in one.reads)
    return not (sizes and now < one.value and cut)


def _is_the_same(one: Passed, now: Any, frame: FrameType, cut: list[FrameType]) -> bool:
    """Whether a function that replays means the same by an argument of the same name."""
    nodes = [*nodes_of(frame.f_code)]
    reads = [n for n in nodes if isinstance(n, ast.Name) and n.id == one.name and isinstance(n.ctx, ast.Load)]
    if any(isinstance(n, ast.Name) and n.id == one.name and isinstance(n.ctx, ast.Store) for n in nodes) or not nodes:
        return False
    if reads and all(isinstance(origin.node, ast.Constant) for origin in one.origins[:1]):
        return False  # it computes with that, and the capture has another one, which is written there
    parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    for read in reads:
        above: Any = parents.get(read)
        call = last_name(above.func) if isinstance(above, ast.Call) else ""
        key = isinstance(above, ast.Subscript) and read is above.slice
        if call in ("range", "get", *_FILLS) or key or isinstance(above, ast.Compare):
            return False
    return _counts(one, now, cut)


def is_size(read: ast.Name, code: CodeType) -> bool:
    """Whether a number that is read ends, or begins, a slice."""
    return any(
        isinstance(n, ast.Slice) and any(read is each for part in (n.lower, n.upper) if part for each in ast.walk(part))
        for n in nodes_of(code)
    )


def _cuts(frame: FrameType) -> bool:
    """Whether a function cuts something where it replays, or behind that: ``return self.y[:n]``."""
    for node in nodes_of(frame.f_code):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and node.lineno >= frame.f_lineno:
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if any(isinstance(p, ast.Slice) and p.upper and not isinstance(p.upper, ast.Constant) for p in parts):
                return True
    return False


def plain(value: Any) -> Any:
    """A number, or a copy of a list of numbers as a tuple; anything else is none."""
    if type(value) in NUMBERS:
        return value
    if type(value) in (list, tuple) and 0 < len(value) <= _MOST and all(type(each) in NUMBERS for each in value):
        return tuple(value)
    return NOTHING


def evaluated(node: ast.expr, known: Mapping[str, Any], space: dict[str, Any]) -> Any:
    """What an expression gives of which nothing of the user's runs: paths, sizes and arithmetic with them."""
    if isinstance(node, ast.Constant):
        return plain(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in _COMPUTES:
        sides = [evaluated(each, known, space) for each in (node.left, node.right)]
        whole = all(type(each) in NUMBERS for each in sides) and sides[1] != 0
        return _COMPUTES[type(node.op)](*sides) if whole else NOTHING
    if isinstance(node, ast.Call) and not node.keywords:
        name, args = last_name(node.func), node.args
        if isinstance(node.func, ast.Name) and name in _OF_NUMBERS and args:
            given = [evaluated(each, known, space) for each in args]
            return _OF_NUMBERS[name](*given) if all(type(each) in NUMBERS for each in given) else NOTHING
        if isinstance(node.func, ast.Name) and name == "len" and len(args) == 1:
            held = path_value(args[0], dict(known), space)
            sized = type(held) in (list, tuple, dict, str) or (is_a(held, torch.Tensor) and held.dim())
            return len(held) if sized else NOTHING
        if isinstance(node.func, ast.Attribute) and name == "size" and len(args) == 1:
            return _size(node.func.value, args[0], known, space)
        return NOTHING
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
        return _size(node.value.value, node.slice, known, space)
    return plain(path_value(node, dict(known), space))


def _size(owner: ast.expr, at: ast.expr, known: Mapping[str, Any], space: dict[str, Any]) -> Any:
    held = path_value(owner, dict(known), space)
    try:
        dim = ast.literal_eval(at)
    except ValueError:
        return NOTHING
    fits = is_a(held, torch.Tensor) and type(dim) is int and -held.dim() <= dim < held.dim()
    return held.shape[dim] if fits else NOTHING
