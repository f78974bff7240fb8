"""What the lines of a capture read of Python's, when it ended and at each replay: a graph keeps the first.

Names are looked up without running anything of the user's: variables, attributes, entries under a constant key. Of a
module count its numbers and its parameters' memory, of an optimizer the numbers of its groups.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from inspect import getattr_static, unwrap
from itertools import count
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of
from paramgraph_kit.doctor.number_kinds import NUMBERS
from paramgraph_kit.doctor.observe.asked_for_any import is_as_before
from paramgraph_kit.doctor.observe.captured_entries import (
    FUNCTIONS,
    LENGTH,
    MODULES,
    above_of,
    called_as,
    entries_of,
    entry_at,
    how_read,
    instead_of,
    is_dict,
    is_held,
    is_number,
    keeps,
    keys_of,
    module_at,
    picked_by,
    values_of,
)
from paramgraph_kit.doctor.observe.held import all_cells_of, attributes_of, code_of, has_librarys_lines, is_a
from paramgraph_kit.doctor.observe.lies import Lies, is_copied_from
from paramgraph_kit.doctor.observe.loop_elements import paths_of_variables, spread
from paramgraph_kit.doctor.observe.names_read import body_of, inside_of, outermost
from paramgraph_kit.doctor.observe.short_names import first_of, in_full, is_key, short_names
from paramgraph_kit.doctor.restore.holder import is_array
from paramgraph_kit.driver.files import is_library
from paramgraph_kit.driver.work import worked_s

_MOST_S = 1.0  # that looking may take; then only at some replays
NOTHING = object()
_PLAIN = (bool, int, float, complex, str, bytes, type(None), list, tuple, set)
_MOST = 4096  # functions that are followed
_ABOUT = frozenset("shape size numel dim ndim dtype device is_pinned element_size nelement".split())  # noqa: SIM905
LEARNS = ".requires_grad"
Value = tuple[Any, ...]  # ("number", what), ("memory", address), ("word", what) or ("none", None)


@dataclass(frozen=True, slots=True)
class Names:
    """What names mean in a function: its own variables, but for the object that it belongs to, nobody knows."""

    space: dict[str, Any]
    cells: dict[str, Any] = field(default_factory=dict)
    own: frozenset[str] = frozenset()
    known: dict[str, Any] = field(default_factory=dict)  # of its own
    short: dict[str, ast.expr] = field(default_factory=dict)  # variables that stand for a path: ``s = self.state``
    plain: dict[str, Any] = field(default_factory=dict)  # numbers and words that a call has handed to it

    def get(self, name: str) -> Any:
        """What a name means now."""
        if name in self.cells:
            try:
                return self.cells[name].cell_contents
            except ValueError:  # it is deleted, or not there yet
                return NOTHING
        return self.known.get(name, NOTHING) if name in self.own else self.space.get(name, NOTHING)

    def write(self, name: str, value: Any) -> None:
        """Give a variable from outside of the function another value."""
        if name in self.cells:
            self.cells[name].cell_contents = value
        elif name not in self.own:
            self.space[name] = value


@dataclass(frozen=True, slots=True)
class Use:
    """A place where a capture reads something: ``state["t"]``, ``self.scale``, ``model``."""

    code: CodeType
    node: ast.expr
    decides: bool  # it stands in a test
    names: Names

    @property
    def text(self) -> str:
        """As it is written."""
        return ast.unparse(self.node)

    @property
    def picks(self) -> bool:
        """Whether its line picks an entry by it: ``self.adapters[self.active]``."""
        keys = [n.slice for n in nodes_of(self.code) if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Load)]
        short = {name for name, node in self.names.short.items() if ast.unparse(node) == self.text}
        there = (each for each in keys if each.lineno == self.node.lineno)
        return any(ast.unparse(each) == self.text for each in there) or any(last_name(each) in short for each in keys)

    def value(self) -> Any:
        """What it means now."""
        return _value(self.node, self.names)

    def parts(self) -> dict[str, Value]:
        """What of it counts for a graph, as its line reads it."""
        value = self.value()
        if type(value) in FUNCTIONS:
            owner = _value(getattr(self.node, "value", None), self.names)
            return {"": ("function", called_as(value))} if keeps(owner, self.node) else {}
        if not is_held(value):
            return parts(value)
        way = how_read(self.code, self.node, value)
        found = {} if way == "filled" else parts(value)
        if is_dict(value) and way == "whole":
            found = dict(_of_entries(values_of(value)))
        elif is_dict(value) and (key := _value(picked_by(self.code, self.node), self.names)) is not NOTHING:
            found = dict(_of_entries(each for each in values_of(value) if each[0] == f"[{key!r}]"))
        elif is_dict(value) and self._key_is_unknown(value):
            found = dict(_of_entries(values_of(value)))
        count = {"whole": len, "truth": bool}.get(way)
        return {**found, LENGTH: ("number", count(value))} if count is not None else found

    def by_keys(self) -> Iterator[Use]:
        """What its line reads of entries that a variable picks, where its function says what that is."""
        value = self.value()
        if is_dict(value) or type(value) in (list, tuple):
            key = picked_by(self.code, self.node)
            is_known = _value(key, self.names) is not NOTHING  # whose entry is one of its parts
            for node in self._picked(self.node, self.node, False):
                if not is_known or getattr(node, "value", None) is not self.node:
                    yield Use(self.code, node, self.decides, self.names)

    def _picked(self, node: ast.expr, whole: Any, picked: bool) -> Iterator[ast.expr]:
        """Paths that begin at a path, ``node``, and have a key in place of each variable; ``whole``: this one so."""
        above = above_of(self.code, node)
        if isinstance(above, ast.Attribute):
            further: ast.expr = ast.copy_location(ast.Attribute(whole, above.attr, ast.Load()), node)
            if not callable(_value(further, self.names)):
                yield from self._picked(above, further, picked)
                return
        elif (key := picked_by(self.code, node)) is not None:
            is_variable = not isinstance(key, ast.Constant)
            keys = [each for each in self._keys(key) if type(each) in (str, int, float, bool)]
            for each in keys if isinstance(above, ast.Subscript) else ():
                further = ast.copy_location(ast.Subscript(whole, ast.Constant(each), ast.Load()), node)
                yield from self._picked(above, further, picked or is_variable)  # type: ignore[arg-type]
            if keys and isinstance(above, ast.Subscript):
                return
        if picked:
            yield whole

    def _keys(self, key: ast.expr) -> list[Any]:
        if isinstance(key, ast.Name) and key.id in self.names.plain:
            return [self.names.plain[key.id]]
        return keys_of(self.code, key, lambda node: _value(node, self.names), NOTHING)

    def _key_is_unknown(self, held: dict[Any, Any]) -> bool:
        """Whether its line reads any entry of a dictionary, all of one kind, as one does of a list."""
        key = picked_by(self.code, self.node)
        if key is None or isinstance(key, ast.Constant) or self._keys(key):
            return False
        kinds = {type(each) for each in held.values()}
        return kinds == {float} or (len(kinds) == 1 and issubclass(kinds.pop(), torch.Tensor))

    @property
    def fills(self) -> bool:
        """Whether its line only adds to a list, or empties it."""
        return is_held(value := self.value()) and how_read(self.code, self.node, value) == "filled"

    def owner(self) -> Any:
        """What has the attribute, or the entry."""
        return NOTHING if isinstance(self.node, ast.Name) else _value(self.node.value, self.names)  # type: ignore[attr-defined]

    def write(self, value: Any) -> None:
        """Give it another value, where nothing of the user's runs then."""
        owner = self.owner()
        if isinstance(self.node, ast.Name):
            self.names.write(self.node.id, value)
        elif isinstance(self.node, ast.Attribute):
            _write(owner, self.node.attr, value)
        elif isinstance(self.node, ast.Subscript) and type(owner) in (dict, list):
            owner[ast.literal_eval(self.node.slice)] = value


@dataclass(frozen=True, slots=True)
class Moved:
    """What is another one at a replay: ``part`` says of a module, or an optimizer, what it is."""

    use: Use
    part: str
    then: Value
    now: Value
    owner: Any = None  # the module or the optimizer
    given: tuple[Any, ...] = ()  # the line of a loop that gives it another value, which no call has run: a place of it


@dataclass(slots=True)
class CapturedValues:
    """The values of one capture, taken where it has ended."""

    uses: list[Use]
    then: list[dict[str, Value]] = field(default_factory=list)
    moved: dict[tuple[int, str], Moved] = field(default_factory=dict)
    as_then: set[tuple[int, str]] = field(default_factory=set)  # at some replay
    spent_s: float = 0.0
    looks: int = 0
    order: int = field(default_factory=count().__next__)  # in which they were captured

    def __post_init__(self) -> None:
        self.then = [use.parts() for use in self.uses]
        held = [(use.value(), then) for use, then in zip(self.uses, self.then, strict=True)]
        filled = {id(v) for use, (v, _) in zip(self.uses, held, strict=True) if use.fills}
        for then in (then for value, then in held if id(value) in filled):
            then.pop(LENGTH, None)  # its lines fill what they read, which is emptied for the next capture

    def read(self) -> Iterator[torch.Tensor]:
        """The tensors that its lines name, and those of the modules."""
        for value in (use.value() for use in self.uses):
            if is_a(value, torch.Tensor):
                yield value
            elif is_a(value, torch.nn.Module):
                yield from (*value.parameters(), *value.buffers())
            elif type(value) in (list, tuple):
                yield from (each for _, each in entries_of(value) if is_a(each, torch.Tensor))

    def look(self, others: list[CapturedValues]) -> None:
        """Its graph is replayed now; what another graph of the same line has is meant for that one."""
        self.looks += 1
        if self.spent_s > _MOST_S and self.looks & (self.looks - 1):
            return
        begun = worked_s()
        for number, (use, then) in enumerate(zip(self.uses, self.then, strict=True)):
            owner = use.value()
            now = use.parts()
            for part in (p for p in then if p in now):  # in their order, so that the same is told first
                is_moved = then[part] != now[part] and (number, part) not in self.moved
                if part.endswith(LEARNS):  # what was switched for the capture alone is another one at all replays
                    is_moved = is_moved and (number, part) in self.as_then
                if is_moved and _is_as_large(use, then[part], now[part]):
                    is_moved = False
                if "word" in (then[part][0], now[part][0]) and not (use.decides or use.picks):
                    is_moved = False  # it may be a name that is told
                if (
                    is_moved
                    and use.decides
                    and not part
                    and is_as_before(use.code, use.node, then[part][1], now[part][1])
                ):
                    continue
                is_moved = is_moved and now[part][0] != "none"  # as of what the capture has made and nobody needs
                key, may_be_meant = (number, part), others
                self.as_then |= {key} if then[part] == now[part] else set()
                if is_moved and key in self.as_then and then[part][0] == "number" == now[part][0]:
                    # It came with its own value, too: another's is meant for that one behind its capture alone.
                    may_be_meant = [o for o in others if o.order == max(each.order for each in (self, *others))]
                if is_moved and not any(o.knows(number, part, now[part]) for o in may_be_meant):
                    self.moved[number, part] = Moved(use, part, then[part], now[part], owner)
        self.spent_s += worked_s() - begun

    def left(self) -> None:
        """A call has ended: parameters that a module has got in place of those of the capture are there at the next."""
        for number, (use, then) in enumerate(zip(self.uses, self.then, strict=True)):
            if is_a(owner := use.value(), torch.nn.Module):
                now = parts(owner)
                for part in (p for p in now if then.get(p, ("", 0))[0] == now[p][0] == "memory"):
                    if then[part] != now[part] and (number, part) not in self.moved:
                        self.moved[number, part] = Moved(use, part, then[part], now[part], owner)

    def lies_elsewhere(self) -> bool:
        """Whether what it reads has other memory now, of which no replay has told: the next one may."""
        for number, (use, then) in enumerate(zip(self.uses, self.then, strict=True)):
            now = use.parts() if any(kind == "memory" for kind, _ in then.values()) else {}
            for part in (p for p in now if then.get(p, ("", 0))[0] == now[p][0] == "memory"):
                if then[part] != now[part] and (number, part) not in self.moved:
                    return True
        return False

    def knows(self, number: int, part: str, value: Value) -> bool:
        """Whether this capture had that value at the same place; of a dictionary also at the key that it has read."""
        if number >= len(self.then):
            return False
        keys = self.then[number] if is_dict(self.uses[number].value()) else ()
        return self.then[number].get(part) == value or any(self.then[number][key] == value for key in keys)


def _is_as_large(use: Use, then: Value, now: Value) -> bool:
    """Whether a line only asks what a tensor is like, ``self.x.shape``, and another one is just so."""
    if then[0] != "memory" or now[0] != "memory" or then[1].shape != now[1].shape:
        return False
    above = above_of(use.code, use.node)
    return isinstance(above, ast.Attribute) and above.attr in _ABOUT


def uses_of(body: list[ast.stmt], code: CodeType, outer: Names) -> list[Use]:
    """What statements read, and the functions of the user's and of the modules that they name."""
    return _followed([(code, [n for s in body for n in outermost(s)], outer)])


def uses_in(function: Any, given: dict[str, Any]) -> list[Use]:
    """The same of a function, or of what is called like one, and of what it is given."""
    waiting = []
    for each, owner in _functions(function):
        names = names_in(each, owner)
        names.known.update(given)
        waiting.append((each.__code__, body_of(each.__code__), names))
    return _followed(waiting)


def _followed(waiting: list[tuple[CodeType, list[tuple[ast.expr, bool]], Names]]) -> list[Use]:
    found: list[Use] = []
    seen: set[tuple[int, ...]] = set()
    while waiting:
        own, nodes, names = waiting.pop()
        calls = {_at(n.func): n for n in nodes_of(own) if isinstance(n, ast.Call)}
        elements = paths_of_variables(own, partial(_value, names=names))
        every = [(each, decides) for node, decides in nodes for each in spread(node, elements)]
        inside = inside_of(own)
        for node, decides in [*(each for each in nodes if first_of(each[0]) not in inside), *every]:
            use = Use(own, in_full(node, names.short), decides, names)
            value = use.value()
            if value is not NOTHING and not (value is True and getattr(use.node, "only_asks", False)):
                found += [use, *use.by_keys()]
            is_method = own.co_argcount > 0 and "." in own.co_qualname.rpartition("<locals>.")[2]
            is_self = is_method and isinstance(node, ast.Name) and node.id == own.co_varnames[0]
            for function, owner in _functions(value) if not is_self else ():
                inner = names_in(function, owner)
                if _at(node) in calls and owner in (None, value, getattr(value, "__self__", None)):
                    handed = dict(_handed(calls[_at(node)], function, owner, names))
                    inner.plain.update((name, each) for name, each in handed.items() if type(each) in _PLAIN)
                    inner.known.update((name, each) for name, each in handed.items() if name not in inner.plain)
                keys = (hash((name, each)) for name, each in inner.plain.items() if type(each) in (int, str))
                known = sorted(id(each) for each in inner.known.values())
                key = (id(function.__code__), id(owner), *known, *sorted(keys))
                if key not in seen and len(seen) < _MOST and not is_library(function.__code__.co_filename):
                    seen.add(key)
                    waiting.append((function.__code__, body_of(function.__code__), inner))
    return found


def _at(node: ast.expr) -> tuple[int | None, ...]:
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def _handed(call: ast.Call, function: FunctionType, owner: Any, names: Names) -> Iterator[tuple[str, Any]]:
    """What a call hands to a function, by what it is called there: ``smooth(self, x)``, ``scaled(y, "rate")``."""
    code = function.__code__
    own = code.co_varnames[owner is not None : code.co_argcount]
    only = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    plain = any(isinstance(each, ast.Starred) for each in call.args)
    given = [*zip(own, () if plain else call.args, strict=False)]
    given += [(each.arg, each.value) for each in call.keywords if each.arg in (*own, *only)]
    for name, node in given:
        value = node.value if isinstance(node, ast.Constant) else _value(node, names)
        if value is NOTHING and isinstance(node, ast.Name):
            value = names.plain.get(node.id, NOTHING)
        if value is not NOTHING and not is_a(value, torch.Tensor):
            yield name, value


def parts(value: Any) -> dict[str, Value]:
    """What of a value counts for a graph."""
    kind = type(value)  # which asks the object itself nothing
    if issubclass(kind, torch.Tensor):
        return {"": ("memory", Lies.of(value))} if is_copied_from(value) else {}
    if kind in NUMBERS:
        return {"": ("number", value)}
    if issubclass(kind, torch.optim.Optimizer):
        groups = enumerate(value.param_groups)
        numbers = {f"{i}.{k}": ("number", v) for i, g in groups for k, v in g.items() if is_number(v)}
        return {"": ("itself", id(value)), **numbers}
    if issubclass(kind, Enum):
        return {"": ("number" if issubclass(kind, int) else "word", value)}
    if kind is str or value is None:
        return {"": ("word" if kind is str else "none", value)}
    if kind in (list, tuple, deque) or is_array(value):
        return dict(_of_entries(entries_of(value)))
    return dict(_of_module(value)) if issubclass(kind, torch.nn.Module) else {}


def _of_entries(entries: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Value]]:
    for at, each in entries:
        own = parts(each).get("", ("none", None))
        if own[0] in ("number", "memory"):
            yield at, own


def _of_module(module: torch.nn.Module) -> Iterator[tuple[str, Value]]:
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_copied_from(tensor):
            yield name, ("memory", Lies.of(tensor))
            if is_a(tensor, torch.nn.Parameter):
                yield f"{name}{LEARNS}", ("number", tensor.requires_grad)
    for path, one in module.named_modules():
        if has_librarys_lines(one):
            numbers = (each for each in vars(one).items() if type(each[1]) in NUMBERS)
            numbers = (each for each in numbers if each[0] != "training" or has_modes(one))
            yield from ((f"{path}.{name}", ("number", v)) for name, v in numbers if not name.startswith("_"))


def has_modes(module: torch.nn.Module) -> bool:
    """Whether a module does something else in ``eval()``: its code asks, and it drops more than nothing.

    What torch makes of others asks, too, but only for a faster way to the same.
    """
    parts = bool(module._modules) and type(module).__module__.startswith("torch.nn.")
    rate = vars(module).get("dropout", vars(module).get("p", 0.0 if parts else 1.0))
    code = code_of(type(module).forward)
    return rate != 0 and code is not None and "training" in code.co_names


def names_in(function: FunctionType, owner: Any) -> Names:
    """The names of a function, whose first variable is the object that it belongs to, if it does."""
    code = function.__code__
    known = {code.co_varnames[0]: owner} if owner is not None and code.co_argcount else {}
    return Names(function.__globals__, all_cells_of(function), frozenset(code.co_varnames), known, short_names(code))


def _functions(value: Any) -> Iterator[tuple[FunctionType, Any]]:
    """The functions that a call of something runs, each with the object that it belongs to."""
    kind = type(value)
    if kind is MethodType:
        owner, value = value.__self__, value.__func__
        yield from ((f, owner) for f in [unwrap(value)] if isinstance(f, FunctionType) and f.__code__.co_argcount)
    elif kind is FunctionType:
        inner = unwrap(value)
        yield from [(inner, None)] if isinstance(inner, FunctionType) else []
    elif issubclass(kind, torch.nn.Module):
        for one in value.modules():
            yield from _functions(MethodType(type(one).forward, one))
    elif isinstance(call := getattr_static(kind, "__call__", None), FunctionType):
        yield from _functions(MethodType(call, value))


def path_value(node: ast.expr | None, known: dict[str, Any], space: dict[str, Any]) -> Any:
    """What a path means, where some names are known and the others are those of a file."""
    return NOTHING if node is None else _value(node, Names(space, own=frozenset(known), known=known))


def _value(node: ast.expr | None, names: Names) -> Any:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        node = in_full(node, names.short)
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, names)
        return NOTHING if owner is NOTHING else instead_of(node, _attribute(owner, node.attr), NOTHING)
    if isinstance(node, ast.Subscript) and is_key(node.slice):
        owner = _value(node.value, names)
        if is_a(owner, MODULES):
            return module_at(owner, node, NOTHING)
        return instead_of(node, entry_at(owner, node, NOTHING), NOTHING) if is_held(owner) else NOTHING
    return NOTHING


def _attribute(owner: Any, name: str) -> Any:
    for held in ("_parameters", "_buffers", "_modules") if issubclass(type(owner), torch.nn.Module) else ():
        if name in (names := vars(owner).get(held, {})):
            return names[name]
    found = getattr_static(owner, name, NOTHING)
    if isinstance(found, MemberDescriptorType) and not isinstance(owner, type):
        try:
            return found.__get__(owner)
        except AttributeError:
            return NOTHING
    if isinstance(found, staticmethod):
        return found.__func__
    if isinstance(found, property) and not isinstance(owner, type):
        return MethodType(found.fget, owner) if isinstance(found.fget, FunctionType) else NOTHING
    if (
        isinstance(found, FunctionType)
        and not isinstance(owner, (type, ModuleType))
        and name not in attributes_of(owner)
    ):
        return MethodType(found, owner)
    return found


def _write(owner: Any, name: str, value: Any) -> None:
    """Set an attribute, running nothing of the user's."""
    has = name in attributes_of(owner)
    if is_a(owner, type):
        if has and type(owner).__setattr__ is type.__setattr__:
            type.__setattr__(owner, name, value)
    elif owner is not NOTHING and isinstance(slot := getattr_static(owner, name, None), MemberDescriptorType):
        slot.__set__(owner, value)
    elif has:
        vars(owner)[name] = value
