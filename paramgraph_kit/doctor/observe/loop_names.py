"""Which objects and functions lines around a step mean, as far as their text and what is there tell."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeGuard

import torch

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, MAKERS, defines, every, last_name, nodes_of, tree_of
from paramgraph_kit.doctor.number_kinds import NUMBERS
from paramgraph_kit.doctor.observe.captured_values import NOTHING, path_value
from paramgraph_kit.doctor.observe.gradients import Scope
from paramgraph_kit.doctor.observe.held import all_cells_of, attributes_of, cells_of, is_a
from paramgraph_kit.doctor.observe.loop_state import (
    LEARNS,
    MOST_ALIKE,
    MOST_STATEMENTS,
    Called,
    Found,
    Function,
    Run,
    State,
)
from paramgraph_kit.doctor.observe.loop_values import (
    DTYPES,
    PLAIN,
    Held,
    Some,
    Thing,
    all_of,
    are_types,
    attribute,
    entry,
    function_of,
    given_by,
    of_super,
    picked,
)
from paramgraph_kit.doctor.observe.makers import makers_beside, makers_of
from paramgraph_kit.doctor.observe.torch_settings import as_it_is_written, gradients_within
from paramgraph_kit.driver.files import is_library, modules_of_users


class Meanings:
    """What is known of the lines of scopes around a step."""

    def __init__(self, function: Any, given: dict[str, Any], scopes: list[Scope], ran: Iterable[CodeType]) -> None:
        self.step, self.given, self.scopes = called_by(function), given, scopes
        self.asked = function  # which lines call, too, where it only hands on what it is given
        self.own = {(code.co_filename, code.co_firstlineno) for code in ran}
        self.name = getattr(self.step, "__name__", "")
        self.owner = getattr(self.step, "__self__", None)
        if self.owner is None and is_called_as_object(self.step):
            self.owner, self.name = self.step, "__call__"
        self.kinds = {kind.__name__: kind for kind in type(self.owner).__mro__} if self.owner is not None else {}
        self.spaces = {s.file: s.names for s in reversed(scopes) if isinstance(s.body, ast.Module)}
        self.spaces |= named_there(self.spaces)
        self.methods = [
            (m, kind, file) for file in self.spaces for kind in classes_in(file) for m in kind.body if is_function(m)
        ]
        functions = [f for file in self.spaces for f in functions_in(file)]
        self.makers = makers_of(self.kinds.keys() - {"object"}, functions)
        self.beside = makers_beside(self.kinds.keys() - {"object"} | self.makers, functions)
        self.things: dict[str, Thing] = {}
        self.meant: ast.AST | None = None  # of several lines that make an object of its class
        self.results: dict[int, Any] = {}  # by a call's id: what it gives that a function of the user's has made
        self.stack: list[tuple[str, int]] = []
        self.left = MOST_STATEMENTS
        self.found = Found()
        self.numbers: dict[tuple[int, int, str, bool, str], int] = {}
        self.before: dict[int, frozenset[int] | None] = {}  # what had set a thing when a line set it first
        self.kept: dict[Any, tuple[Run, dict[int, frozenset[int] | None]]] = {}  # memory of parameters, in containers
        self.exchanged: dict[tuple[int, int, str], Run] = {}  # the last that ran ``a, b = b, a``
        self.state = State()
        self.forms: dict[tuple[int, str], ast.Call] = {}  # a call in other words

    def _class_of(self, body: ast.AST, file: str) -> ast.ClassDef | None:
        return next((kind for method, kind, of in self.methods if method is body and of == file), None)

    def _object_of(self, kind: ast.ClassDef, file: str) -> Any:
        """The object whose method it is: that of the step, one that is known, else one that nobody has seen."""
        if self._is_own(kind, file):
            return self.owner
        kinds = ((v, k) for v in self._known() for k in type(v).__mro__)
        known = {id(v): v for v, k in kinds if k.__name__ == kind.name and written_in(k) in ("", file)}
        if len(known) == 1:
            return next(iter(known.values()))
        return self.things.setdefault(kind.name, Thing(kind, file))

    def _is_own(self, kind: ast.ClassDef, file: str) -> bool:
        """Whether the step's own object is of a class: others of that name are another file's."""
        own = self.kinds.get(kind.name)
        return own is not None and written_in(own) in ("", file)

    def _known(self) -> Iterator[Any]:
        """Objects that names around the step mean, and those that its own object has."""
        held = [v for scope in self.scopes for v in scope.names.values()]
        held += [*self.given.values(), *getattr(self.owner, "__dict__", {}).values()]
        for each in held:
            yield each
            if type(each) in (list, tuple):
                yield from each[:64]

    def _made_by(self, node: ast.expr, run: Run) -> Any:
        raise NotImplementedError

    def _own_made_by(self, node: ast.expr, run: Run) -> Any:
        """The step's own object where a line makes one of its class, itself or by a function of the user's."""
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and self.meant in (None, node)):
            return NOTHING
        if any(each is self.owner for each in run.bound.values()):  # a variable is known to be it
            return NOTHING
        if node.func.id in self.makers:
            return self.owner if node.func.id not in run.names.own else NOTHING
        found = self._kind_made_by(node.func, run)
        return self.owner if found is not None and self._is_own(*found) else NOTHING

    def _kind_made_by(self, func: ast.Name, run: Run) -> tuple[ast.ClassDef, str] | None:
        """The class of the user's that a name means."""
        kinds = ((kind, file) for file in self.spaces for kind in classes_in(file) if kind.name == func.id)
        found = next(kinds, None)
        is_kind = found is not None and isinstance(self._value(func, run), (type, type(NOTHING)))
        return found if is_kind else None

    def _method(self, owner: Any, name: str) -> Called | None:
        """A method of an object, given nothing."""
        names = [owner.kind.name] if isinstance(owner, Thing) else [k.__name__ for k in type(owner).__mro__]
        for kind_name in names:
            for method, kind, file in self.methods:
                if kind.name == kind_name and method.name == name:
                    return Called(method, owner, file)
        return None

    def _called(self, call: ast.Call, run: Run) -> Iterator[Called]:
        """The functions of the user's that a call runs; all methods of a name where its object is unknown."""
        keywords = {k.arg: k.value for k in call.keywords if k.arg}
        func, name = call.func, last_name(call.func)
        is_super = isinstance(func, ast.Attribute) and is_call_of(func.value, "super")
        value = self._of_super(func, run) if is_super else self._value(func, run)
        for each in all_of(value):
            inner, owner = function_of(each)
            if inner is None and not isinstance(each, (type, Thing, Held)) and not is_a(each, torch.nn.Module):
                found = self._method(each, "__call__")
                if found is not None:
                    yield replace(found, args=call.args, keywords=keywords)
                continue
            if inner is None or is_library(inner.__code__.co_filename):
                continue
            node = definition_of(inner)
            if node is not None:
                yield Called(node, owner, inner.__code__.co_filename, call.args, keywords)
        if value is not NOTHING or not name or is_super:
            return
        if isinstance(func, ast.Name):
            parts = [n for n in functions_in(run.file) if n.name == name and is_inner(n, run.file)]
            if (part := next(iter(parts), None)) is not None and name not in run.names.own:
                yield Called(part, NOTHING, run.file, call.args, keywords)
            return
        base = self._value(func.value, run) if isinstance(func, ast.Attribute) else NOTHING
        if base is NOTHING and isinstance(func, ast.Attribute):
            base = self._made_by(func.value, run)  # ``Loop(trainer).run()``
        if isinstance(base, Thing):
            found = self._method(base, name)
            if found is not None:
                yield replace(found, args=call.args, keywords=keywords)
            return
        if base is not NOTHING:
            return
        alike = [(m, kind, file) for m, kind, file in self.methods if m.name == name]
        for method, kind, file in alike if len(alike) <= MOST_ALIKE else ():
            yield Called(method, self._object_of(kind, file), file, call.args, keywords)

    def _of_super(self, func: Any, run: Run) -> Any:
        """The methods that ``super().method`` is, as far as its objects are there."""
        owners = (each for each in all_of(self._value(func.value, run)) if not isinstance(each, (Thing, Held)))
        found = [method for owner in owners for method in of_super(func, owner, run.file)]
        return Some(tuple(found)) if found else NOTHING

    def _given_to(self, call: ast.Call) -> list[tuple[ast.expr, Any]]:
        """What the arguments of a call of the step are, as its own names mean that."""
        code = getattr(self.step, "__code__", None)
        names = code.co_varnames[: code.co_argcount] if code is not None else ()
        pairs = [*zip(names, call.args, strict=False), *((k.arg, k.value) for k in call.keywords if k.arg)]
        known = ((node, self.given.get(name, NOTHING)) for name, node in pairs)
        return [(node, v) for node, v in known if type(v) not in PLAIN and not is_a(v, torch.Tensor)]

    def _bind(self, node: ast.expr, value: Any, run: Run) -> None:
        """What a path is said to mean that is not known yet."""
        if value is NOTHING or type(value) in PLAIN or is_a(value, torch.Tensor):
            return
        if isinstance(node, ast.Name) and run.names.get(node.id) is NOTHING:
            run.names.own[node.id] = value
        elif isinstance(node, ast.Attribute):
            owner = self._value(node.value, run)
            if isinstance(owner, Thing) and owner.has.get(node.attr, NOTHING) is NOTHING:
                owner.has[node.attr] = value

    def _gives_memory(self, call: ast.Call, name: str, module: torch.nn.Module, run: Run) -> Sequence[torch.Tensor]:
        """The parameters of a module to which a call gives other memory, as far as it is known what it is given."""
        given = [self._value(each, run) for each in (*call.args, *(k.value for k in call.keywords if k.arg == "dtype"))]
        every = [*module.parameters()]
        if name == "load_state_dict":
            return every * any(k.arg == "assign" and self._value(k.value, run) is True for k in call.keywords)
        if name in ("cpu", "to_empty") or (name == "to" and "cpu" in [each for each in given if type(each) is str]):
            return every
        layouts = [self._value(k.value, run) for k in call.keywords if name == "to" and k.arg == "memory_format"]
        moved = [p for p in every if any(_is_laid_otherwise(p, each) for each in layouts)]
        kinds = [DTYPES[name]] if name in DTYPES else given if name in ("to", "type") else []
        kinds = [each for each in kinds if isinstance(each, torch.dtype)]
        return moved or every * any(p.is_floating_point() and p.dtype != kind for kind in kinds for p in every)

    # What expressions mean

    def _truth(self, node: ast.expr, run: Run) -> bool | None:
        """What a test says that no call changes: of a variable that was given a constant, or a setting."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self._truth(node.operand, run)
            return None if inner is None else not inner
        if isinstance(node, ast.Constant):
            return bool(node.value)
        if isinstance(node, ast.Compare) and ast.unparse(node) in ("__name__ == '__main__'",):
            return True
        if is_call_of(node, "isinstance") and isinstance(node, ast.Call) and len(node.args) == 2:
            held, kinds = self._value(node.args[0], run), self._kinds(node.args[1], run)
            unknown = held is NOTHING or isinstance(held, (Some, Thing, Held))
            return None if unknown or not are_types(kinds) else is_a(held, kinds)
        value = self._value(node, run) if isinstance(node, (ast.Name, ast.Attribute)) else NOTHING
        if isinstance(node, ast.Attribute) and node.attr == LEARNS and len({*map(repr, all_of(value))}) == 1:
            owners = all_of(self._value(node.value, run))
            return None if any((id(each), LEARNS) in self.state.last for each in owners) else all_of(value)[0] is True
        if type(value) not in (bool, type(None)):
            return None
        if isinstance(node, ast.Name):
            return bool(value) if node.id in run.names.own else None
        return None if isinstance(node, ast.Attribute) and node.attr in self._stored else bool(value)

    def _kinds(self, node: ast.expr, run: Run) -> Any:
        """What ``isinstance`` is given: Python's own have their names everywhere."""
        if isinstance(node, ast.Tuple):
            return tuple(self._kinds(each, run) for each in node.elts)
        value = self._value(node, run)
        return vars(builtins).get(ast.unparse(node), value) if value is NOTHING else value

    @cached_property
    def _stored(self) -> set[str]:
        """Attributes that anything but what makes an object sets."""
        makers = {id(n) for m, _, _ in self.methods if m.name in MAKERS for n in ast.walk(m)}
        nodes = (n for file in self.spaces if (tree := tree_of(file)) is not None for n in every(tree))
        stored = (n for n in nodes if isinstance(n, ast.Attribute) and not isinstance(n.ctx, ast.Load))
        return {n.attr for n in stored if id(n) not in makers}

    def _value(self, node: ast.expr, run: Run) -> Any:
        names = run.names
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            found = names.get(node.id)
            return self._now(names.space, f"[{node.id!r}]", found)
        if isinstance(node, ast.Attribute):
            owner = self._value(node.value, run)
            found = attribute(owner, node.attr)
            if isinstance(owner, (Some, Thing)):
                return found
            return self._now(owner, node.attr, found)
        if isinstance(node, ast.Subscript):
            owner, key = self._value(node.value, run), self._value(node.slice, run)
            if key is NOTHING or type(key) not in PLAIN:
                held = picked(owner)  # one of them
                return Some(held) if held is not None and not isinstance(node.slice, ast.Slice) else NOTHING
            found = entry(owner, key)
            return self._now(owner, f"[{key!r}]", found)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
            value = self._value(node.operand, run)
            if type(value) not in NUMBERS:
                return NOTHING
            return -value if isinstance(node.op, ast.USub) else not value
        if isinstance(node, (ast.Tuple, ast.List)) and not any(isinstance(e, ast.Starred) for e in node.elts):
            every = [self._value(each, run) for each in node.elts]
            return every if isinstance(node, ast.List) else tuple(every)
        if isinstance(node, ast.IfExp) and (known := self._truth(node.test, run)) is not None:
            return self._value(node.body if known else node.orelse, run)
        if is_call_of(node, "globals"):
            return self.spaces.get(run.file, names.space)
        if isinstance(node, ast.Call):
            made = self._own_made_by(node, run)
            return given_by(node, names, lambda each, _: self._value(each, run)) if made is NOTHING else made
        return NOTHING

    def _given_setting(self, call: ast.Call, run: Run) -> Any:
        """What a setting of torch's is set to; its text, as far as that is not known and stays the same."""
        given = next(iter((*call.args, *(k.value for k in call.keywords))), None)
        value = self._value(given, run) if given is not None else NOTHING
        return value if value is not NOTHING or given is None else as_it_is_written(given, run.file)

    def _gradients_within(self, call: ast.Call, run: Run) -> Any:
        """Whether gradients are kept in the body of a ``with`` that enters this; None where it does not say."""
        kept = gradients_within(self._value(call.func, run))
        return self._given_setting(call, run) if kept is NOTHING else kept

    def _now(self, owner: Any, name: str, found: Any) -> Any:
        """A plain value, as far as the lines that were followed leave the same one on all ways."""
        numbers = self.state.last.get((id(owner), name)) if type(found) in PLAIN else None
        if numbers is None:
            return found
        values = [v for n in numbers for v in (self.found.values[n] if n else [found])]
        return values[0] if all(type(v) in PLAIN and v == values[0] for v in values) else NOTHING


def _is_laid_otherwise(parameter: torch.Tensor, layout: Any) -> bool:
    """Whether a parameter gets other memory by that order of its dimensions."""
    known = layout is torch.channels_last and parameter.dim() == 4
    return known and not parameter.is_contiguous(memory_format=layout)


def both(a: dict[str, Any], b: dict[str, Any], *, keep: bool = False) -> dict[str, Any]:
    """Variables behind two ways: what both know alike; ``keep``: what one alone knows is that."""
    found = {}
    for name in a.keys() | b.keys():
        if name not in a or name not in b:
            found[name] = b.get(name, a.get(name, NOTHING)) if keep else NOTHING
            if not keep:
                found[name] = a.get(name, b.get(name, NOTHING))
        else:
            same = a[name] is b[name] or (type(a[name]) in PLAIN and type(b[name]) in PLAIN and a[name] == b[name])
            found[name] = a[name] if same else (NOTHING if type(b[name]) in PLAIN else b[name])
    return found


def named_there(spaces: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The user's modules that have what names of others mean."""
    found = {}
    for each in {id(v): v for space in spaces.values() for v in space.values()}.values():
        held = each if isinstance(each, (type, FunctionType)) else type(each)
        name = each.__name__ if type(each) is ModuleType else getattr(held, "__module__", "")
        module = sys.modules.get(name) if isinstance(name, str) else None
        file = vars(module).get("__file__") if type(module) is ModuleType else None
        if isinstance(file, str) and file not in spaces and not is_library(file):
            found[file] = vars(module)
    return found


def is_named_alone(call: ast.Call, given: int) -> bool:
    """Whether the method that a call names is hardly another object's: of a usual name by what it is given."""
    name, count = last_name(call.func), len(call.args) + len(call.keywords)
    return name not in ("step", "forward", "__call__", "update", "run") or (name != "update" and count == given > 1)


def is_used_alike(call: ast.Call, file: str, owner: Any) -> bool:
    """Whether what a method is called of is hardly another object: lines there ask it for what this one has, alone."""
    name, kinds = last_name(call.func), {kind.__name__ for kind in type(owner).__mro__}
    others = (kind for kind in classes_in(file) if kind.name not in kinds)
    if not isinstance(call.func, ast.Attribute) or any(
        is_function(m) and m.name == name for k in others for m in k.body
    ):
        return False
    base = ast.unparse(call.func.value)
    apart = FUNCTIONS if isinstance(call.func.value, ast.Name) else (ast.ClassDef,)
    around = [
        n for n in ast.walk(tree_of(file) or call) if isinstance(n, apart) and any(c is call for c in ast.walk(n))
    ]
    lines = ast.walk(around[-1]) if around else ()
    asked = {n.attr for n in lines if isinstance(n, ast.Attribute) and ast.unparse(n.value) == base} - {name}
    shared = {*dir(torch.nn.Module), *vars(torch.nn.Module())}  # which many others have as well
    return asked <= {*attributes_of(owner), *dir(type(owner))} and bool(asked - shared)


def called_by(function: Any) -> Any:
    """The user's method that one calls which does nothing else: ``lambda x: trainer.step(x)``, or a ``def`` of that."""
    code = getattr(function, "__code__", None)
    if not isinstance(function, FunctionType) or not isinstance(code, CodeType):
        return function
    if code.co_name == "<lambda>":
        bodies = [n.body for n in nodes_of(code) if isinstance(n, ast.Lambda)]
        call = bodies[0] if len(bodies) == 1 else None
    else:
        node = definition_of(function)
        lines = node.body if node is not None else []
        call = getattr(lines[0], "value", None) if len(lines) == 1 else None
        call = call if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else None
    known = {name: cell.cell_contents for name, cell in cells_of(function).items()}
    found = path_value(call.func, known, function.__globals__) if isinstance(call, ast.Call) else NOTHING
    inner, _ = function_of(found)
    return found if inner is not None and not is_library(inner.__code__.co_filename) else function


def written_in(kind: type) -> str:
    """The file that has the methods of a class; "" where it has none."""
    codes = (getattr(each, "__code__", None) for each in vars(kind).values())
    return next((code.co_filename for code in codes if isinstance(code, CodeType) and "<" not in code.co_filename), "")


def is_called_as_object(step: Any) -> bool:
    """Whether it is an object of a class of the user's that can be called."""
    name = "forward" if is_a(step, torch.nn.Module) else "__call__"
    own = next((vars(kind)[name] for kind in type(step).__mro__ if name in vars(kind)), None)
    return isinstance(own, FunctionType) and not is_library(own.__code__.co_filename)


def classes_in(file: str) -> tuple[ast.ClassDef, ...]:
    """The classes of a file."""
    tree = tree_of(file)
    return _defined_in(tree)[0] if tree is not None else ()


def functions_in(file: str) -> tuple[Function, ...]:
    """The functions of a file, methods and inner ones too."""
    tree = tree_of(file)
    return _defined_in(tree)[1] if tree is not None else ()


def is_inner(node: Function, file: str) -> bool:
    """Whether a function stands in another."""
    tree = tree_of(file)
    return tree is not None and node in _defined_in(tree)[2]


@lru_cache(maxsize=64)
def _defined_in(tree: ast.Module) -> tuple[tuple[ast.ClassDef, ...], tuple[Function, ...], frozenset[Function]]:
    nodes = every(tree)
    functions = tuple(n for n in nodes if is_function(n))
    inner = frozenset(n for each in functions for n in ast.walk(each) if is_function(n) and n is not each)
    return tuple(n for n in nodes if isinstance(n, ast.ClassDef)), functions, inner


@lru_cache(maxsize=1024)
def calls_in(node: ast.AST) -> frozenset[str]:
    """The names of what a body calls."""
    return frozenset(last_name(n.func) for n in ast.walk(node) if isinstance(n, ast.Call))


def is_function(node: ast.AST) -> TypeGuard[Function]:
    """Whether it defines a function with a name."""
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))


def definition_of(function: FunctionType) -> Function | None:
    """Where a function is written."""
    code = function.__code__
    return next((n for n in functions_in(code.co_filename) if defines(n, code)), None)


def outer_in(body: ast.AST) -> frozenset[str]:
    """Names that a body says are global."""
    return frozenset(name for n in ast.walk(body) if isinstance(n, ast.Global) for name in n.names)


def cells_at(function: Any) -> dict[str, Any]:
    """The variables that a function shares with the one around it."""
    inner = getattr(function, "__func__", function)
    return all_cells_of(inner) if hasattr(inner, "__code__") else {}


def stands_in(scope: Scope, function: Any) -> bool:
    """Whether a function stands in a body."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None or isinstance(scope.body, ast.Module) or scope.file != code.co_filename:
        return False
    return bool(scope.body.lineno < code.co_firstlineno <= (scope.body.end_lineno or 0))


def space_of(file: str) -> dict[str, Any]:
    """The names of a module's file."""
    modules = (m for m in modules_of_users() if type(m) is ModuleType)
    return next((vars(m) for m in modules if vars(m).get("__file__") == file), {})


def is_call_of(node: ast.AST, name: str) -> bool:
    """Whether it calls a function by this name."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def is_true(test: ast.expr) -> bool:
    """Whether a loop has no end of its own."""
    return isinstance(test, ast.Constant) and bool(test.value)


def is_same(value: Any, function: Any) -> bool:
    """Whether it is a function, or the same method of the same object."""
    if value is function:
        return True
    return (
        hasattr(function, "__func__")
        and getattr(value, "__func__", None) is function.__func__
        and (getattr(value, "__self__", None) is function.__self__)
    )
