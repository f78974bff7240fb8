"""What is the same in each call: made of constants, sizes, settings and tables that nothing changes.

``torch.cat([torch.arange(self.batch) for _ in range(2)])`` is, and so is what is made of it. Told are the *deciders* of
such a value, texts by which one is told from another: ``self.batch``, ``x.shape``, ``table.tobytes()``.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import ModuleType
from typing import Any

import numpy as np
import torch

from paramgraph_kit.doctor.observe.held import attribute_of
from paramgraph_kit.rewrite.source.edits import Function, Source, locals_of, names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.place import NUMBER, Place, called
from paramgraph_kit.rewrite.source.quiet import draws
from paramgraph_kit.rewrite.source.stores import GROWS, RANDOM, stores, writes, written_by_call

Deciders = tuple[str, ...] | None  # None: it may be another one in another call

_SIZES = ("shape", "ndim", "dtype", "device")
_SIZED = ("size", "dim", "numel", "element_size")
_LIKE = ("zeros_like", "ones_like", "full_like")
_NEW = ("new_zeros", "new_ones", "new_full", "new_tensor")
_PURE = frozenset(
    "range len int float bool abs min max sum list tuple zip enumerate sorted reversed round slice str divmod".split()  # noqa: SIM905
)
_PLAIN = (*NUMBER, str, type(None), torch.dtype, torch.device, Enum)
_LIBRARIES = ("torch", "numpy", "math", "itertools")
_PARTS = (
    *(ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.Starred),
    *(ast.Slice, ast.Subscript),
)
_DEEP = 4
_ON_HOST = ("copy-to-gpu", "tensor-literal", "cpu-index")  # what is told then is a tensor of the host's


@dataclass(frozen=True, slots=True)
class _Scope:
    """A function in which an expression stands, and what its arguments are, where one call of it is looked at."""

    function: Function
    given: Mapping[str, tuple[ast.expr, _Scope]] | None = None
    deep: int = 0
    bound: frozenset[str] = frozenset()  # by comprehensions
    asked: frozenset[str] = frozenset()  # names whose values are being looked at
    line: int = 0  # what comes from this line on is not looked at, if it is not 0


def deciders(place: Place, node: ast.expr) -> Deciders:
    """What decides the value of an expression of a statement; None where it may be another one in another call."""
    function = place.source.function_of(place.statement)
    line = 0 if place.loops() else place.statement.lineno
    return _Search(place, place.source).of(node, _Scope(function, line=line)) if function is not None else None


def stays_around(place: Place, node: ast.AST) -> bool:
    """Whether no function of the file and no loop gives what an expression names around its function other values."""
    search = _Search(place, place.source)
    named = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and not place.is_local(n.id)}
    return all(search.stays(name) and not search.looped(name) for name in named)


def is_drawn(call: ast.Call) -> bool:
    """Whether a call draws: ``np.random.choice(a)``, ``random.gauss(0, 1)``, ``rng.integers(9)``, ``x.normal_()``."""
    *owners, name = (path_of(call.func) or called(call)).split(".")
    return draws(name) or name in RANDOM or any(part in ("random", "rng", "generator") for part in owners)


@dataclass(slots=True)
class _Search:
    place: Place
    source: Source
    _known: dict[str, bool] = field(default_factory=dict)

    def of(self, node: ast.AST, scope: _Scope) -> Deciders:
        if isinstance(node, ast.Constant):
            return ()
        if isinstance(node, _PARTS):
            return self._all((n for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr)), scope)
        if isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):
            return self._comprehension(node, scope)
        if isinstance(node, ast.Call):
            return self._call(node, scope)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, scope)
        return self._name(node.id, scope) if isinstance(node, ast.Name) else None

    def _all(self, nodes: Iterable[ast.AST], scope: _Scope) -> Deciders:
        found: list[str] = []
        for node in nodes:
            one = self.of(node, scope)
            if one is None:
                return None
            found += one
        return tuple(dict.fromkeys(found))

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, scope: _Scope) -> Deciders:
        parts: list[ast.AST] = []
        names = scope.bound
        for each in node.generators:
            parts += [each.iter, *each.ifs]
            names |= {n.id for n in ast.walk(each.target) if isinstance(n, ast.Name)}
        inner = replace(scope, bound=names)
        return self._all([*parts, node.elt], inner)

    # names

    def _name(self, name: str, scope: _Scope) -> Deciders:
        if name in scope.bound or name in scope.asked:
            return ()
        if name not in locals_of(scope.function):
            outer = self._outer_of(name, scope.function)
            return self._closed_over(name, outer) if outer is not None else self._around(name)
        inner = replace(scope, asked=scope.asked | {name})
        is_argument = name in arguments_of(scope.function)
        given = self._given(name, scope) if is_argument else ()
        made = self._made(name, inner)
        if given is None or made is None:
            return None
        times = len(list(stores(scope.function, name, scope.line)))
        if not is_argument and not times:
            return None
        if self._differs_by_round(name, scope):
            return (name,) if name in self.place.plain else None
        if scope.given is None and name in self.place.plain and times + is_argument == 1:
            return (name,)  # a number of the host's, as a size
        return tuple(dict.fromkeys([*given, *made]))

    def _given(self, name: str, scope: _Scope) -> Deciders:
        """What an argument is, in the call that is looked at, or else in all calls of the file."""
        if scope.given is not None:
            known = scope.given.get(name)
            return self.of(*known) if known is not None else None
        place, function = self.place, scope.function
        if name in place.plain and name not in place.tensors:
            return (name,)
        number = arguments_of(function).index(name)
        if function.name == place.entry or scope.deep >= _DEEP:
            return None
        calls = [n for n in self.source.parents if isinstance(n, ast.Call) and called(n) == function.name]
        values = [_argument(call, name, number - _is_method(function)) for call in calls]
        if values and all(isinstance(each, ast.Attribute) and each.attr in ("device", "dtype") for each in values):
            return (name,)  # which tells itself from another one, whatever has it
        listed = True  # as the calls are written
        for call, value in zip(calls, values, strict=True):
            outer = self.source.function_of(call)
            if outer is None or value is None:
                return None
            looped = any(isinstance(n, (ast.For, ast.While)) for n in self.source.above(call))
            inner = _Scope(outer, None, scope.deep + 1, line=0 if looped else self.source.statement_of(call).lineno)
            if (told := self.of(value, inner)) is None:
                return None
            literal = isinstance(value, (ast.List, ast.Tuple, ast.Constant))
            listed &= literal or (bool(told) and all(text.startswith("str(") for text in told))
        if not calls or not (listed or _is_read_as_array(function, name)):
            return None
        return (f"str({name})",) if listed else (f"{name}.tobytes()", f"{name}.dtype.str", f"{name}.shape")

    def _made(self, name: str, scope: _Scope) -> Deciders:
        """What gives a local name its values, and what writes these in place."""
        found: list[str] = []
        for node, value in (*stores(scope.function, name, scope.line), *writes(scope.function, name, scope.line)):
            values = [value] if value is None else [*value, *self._conditions(node, scope)]
            for each in values:
                one = self.of(each, scope) if each is not None else None
                if one is None:
                    return None
                found += one
        return tuple(dict.fromkeys(found))

    def _differs_by_round(self, name: str, scope: _Scope) -> bool:
        """Whether a loop around the place gives a name another value in each round: counts it, or goes through it."""
        if scope.given is not None or scope.deep:
            return False
        loops = self.place.loops()
        given = list(stores(scope.function, name))
        if any(node in loops for node, _ in given):
            return True
        every = [node for node, _ in (*given, *writes(scope.function, name))]
        for loop in loops:
            inside = [node for node in every if loop in self.source.above(node)]
            anew = [n.lineno for n in inside if isinstance(n, ast.Assign) and _is_anew(n, name)]
            if any(not anew or node.lineno < min(anew) for node in inside):  # type: ignore[attr-defined]
                return True
        return False

    def _conditions(self, node: ast.AST, scope: _Scope) -> Iterator[ast.expr]:
        """What branches and loops around a statement ask, but for those that are around the place, too."""
        known = set(self.source.above(self.place.statement)) if scope.given is None and not scope.deep else set()
        for above in self.source.above(self.source.statement_of(node)):
            if above in known:
                continue
            if isinstance(above, (ast.If, ast.While)):
                yield above.test
            elif isinstance(above, ast.For):
                yield above.iter

    def _outer_of(self, name: str, function: Function) -> Function | None:
        """The function around another one whose variable a name is."""
        outer = self.source.function_of(function)
        while outer is not None and name not in locals_of(outer):
            outer = self.source.function_of(outer)
        return outer

    def _closed_over(self, name: str, outer: Function) -> Deciders:
        """``table`` of the function that has made this one: a tensor or a number that it gives one value."""
        given, written = list(stores(outer, name)), list(writes(outer, name))
        inner = [n for n in ast.walk(outer) if isinstance(n, Function)]
        written += [each for n in inner for each in writes(n, name)]
        changed = any(name in n.names for n in ast.walk(outer) if isinstance(n, (ast.Global, ast.Nonlocal)))
        known = self.place.failure.code in _ON_HOST and name not in arguments_of(outer)
        if not known or changed or written or len(given) != 1:
            return None
        value = (given[0][1] or [None])[0]
        if isinstance(value, ast.Constant):
            return (name,)
        made = isinstance(value, ast.Call) and path_of(value.func).partition(".")[0] in ("torch", "th")
        return (f"{name}.numpy().tobytes()", f"{name}.shape") if made else None

    def _around(self, name: str) -> Deciders:
        value = self.place.space.get(name, getattr(builtins, name, self))
        known = isinstance(value, (ModuleType, *_PLAIN)) or _is_of_library(value) or bool(_table(value))
        return () if known and self.stays(name) and not (self._is_given_anew(name) or self.looped(name)) else None

    def _is_given_anew(self, name: str) -> bool:
        """Whether lines of the file outside of functions give a name several values."""
        given = self._given_outside(name)
        return len(given) > 1 or any(isinstance(self.source.parents[n], ast.AugAssign) for n in given)

    def _given_outside(self, name: str) -> list[ast.Name]:
        every = [n for n in self.source.parents if isinstance(n, ast.Name) and n.id == name]
        return [n for n in every if not isinstance(n.ctx, ast.Load) and self.source.function_of(n) is None]

    def looped(self, name: str) -> bool:
        """Whether a loop outside of functions gives a name its values: its number, or what it draws in each round.

        One that ends ahead of the function can call none, and what it has filled stays.
        """
        given = self._given_outside(name)
        loops = [each for n in given for each in self.source.above(n) if isinstance(each, (ast.For, ast.While))]
        return any((each.end_lineno or each.lineno) >= self._begin() for each in loops)

    # attributes

    def _attribute(self, node: ast.Attribute, scope: _Scope) -> Deciders:
        if node.attr in _SIZES:
            return self._sized(node.value, scope, f".{node.attr}")
        path = path_of(node)
        root, *rest = path.split(".")
        if not root:
            base = self.of(node.value, scope)  # of something that is made here: `x.T`
            return base if hasattr(torch.Tensor, node.attr) else None
        held = len(rest) == 1 and self._outer_of(root, scope.function) is not None  # `sde.betas` of a closure's `sde`
        if root in locals_of(scope.function) and root != "self":
            return self._name(root, scope) if hasattr(torch.Tensor, node.attr) and len(rest) == 1 else None
        if root != "self" and not held:
            value = self.place.space.get(root)
            for each in rest:
                value = attribute_of(value, each, self)
            module = self.place.space.get(root)
            if isinstance(module, ModuleType) and module.__name__.partition(".")[0] in _LIBRARIES:
                return () if isinstance(value, _PLAIN) or callable(value) else None
        else:
            known = self.place.attributes.get(rest[0], self.place.settings.get(rest[0], self))
            value = self._of_class(rest[0], scope.function) if known is self and root == "self" else known
            for each in rest[1:]:
                value = attribute_of(value, each, self)
        if value is self or not self.stays(node.attr):
            return None
        if isinstance(value, _PLAIN):
            return (path,)
        return tuple(text.format(path) for text in _table(value)) or None

    def _of_class(self, name: str, function: Function) -> Any:
        """What the class of a method has for all of its objects."""
        above = self.source.parents.get(function)
        kind = self.place.space.get(above.name) if isinstance(above, ast.ClassDef) else None
        held = vars(kind) if isinstance(kind, type) else {}
        return held.get(name, self)

    def _sized(self, node: ast.expr, scope: _Scope, text: str) -> Deciders:
        """What decides the size, the type or the device of something, whatever is in it."""
        if (known := self.of(node, scope)) is not None:
            return known
        if isinstance(node, ast.Name) and scope.given is not None and node.id in scope.given:
            stored = list(stores(scope.function, node.id, scope.line))
            return self._sized(*scope.given[node.id], text) if not stored else None
        path = path_of(node)
        if not path or scope.given is not None or scope.deep:
            return None
        root = path.partition(".")[0]
        times = [at for at, _ in stores(scope.function, root, scope.line)]
        here = set(ast.walk(self.place.statement))
        once = len(times) + (root in arguments_of(scope.function)) == 1
        return (f"{path}{text}",) if once or node in here or root == "self" else None

    def stays(self, name: str) -> bool:
        """Whether the file gives a name around the function, or an attribute, one value and never writes into that."""
        if name not in self._known:
            self._known[name] = not any(self._changes(node, name) for node in self.source.parents)
        return self._known[name]

    def _changes(self, node: ast.AST, name: str) -> bool:
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            return name in node.names
        if isinstance(node, (ast.Name, ast.Attribute)) and not isinstance(node.ctx, ast.Load):
            if isinstance(node, ast.Name):
                return False  # a local one, or the one that makes it
            function = self.source.function_of(node)
            return node.attr == name and (function is None or function.name != "__init__")
        written = node.value if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) else None
        if isinstance(node, ast.AugAssign):
            written = node.target
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            changes = node.func.attr in (*GROWS, "pop", "clear", "fill", "sort", "remove", "reverse", "update")
            written = node.func.value if changes or node.func.attr.endswith("_") else None
        if isinstance(node, ast.Call) and written is None and (given := written_by_call(node)):
            written = given[0]  # `random.shuffle(self.order)`
        if written is None or not (path := path_of(written)):
            return False
        inside = self.source.function_of(node)
        making = inside is not None and inside.name == "__init__" and "." in path
        if path == name and inside is not None and name in locals_of(inside):
            return any(n is self.place.statement for n in ast.walk(inside))  # else it is of that function alone
        making |= path == name and inside is None and getattr(node, "end_lineno", self._begin()) < self._begin()
        return path.rpartition(".")[2] == name and not making

    def _begin(self) -> int:
        """Where the function begins: what stands outside of functions ahead of it has been done before any call."""
        function = self.source.function_of(self.place.statement)
        return function.lineno if function is not None else 0

    # calls

    def _call(self, node: ast.Call, scope: _Scope) -> Deciders:
        name, path = called(node), path_of(node.func)
        rest = [*node.args, *(option.value for option in node.keywords)]
        root = path.partition(".")[0]
        if is_drawn(node) or any(option.arg is None for option in node.keywords):
            return None
        if isinstance(node.func, ast.Attribute) and name in _SIZED and not node.keywords:
            return self._with(self._sized(node.func.value, scope, ".shape"), rest, scope)
        if name in _NEW and isinstance(node.func, ast.Attribute):
            like = self._typed(node.func.value, scope)
            return self._with(like, rest, scope)
        if name in _LIKE and node.args:
            return self._with(self._typed(node.args[0], scope, shape=True), rest[1:], scope)
        if isinstance(node.func, ast.Name):
            value = self.place.space.get(name, getattr(builtins, name, None))
            if name in locals_of(scope.function):
                return None
            if name == "len" and name not in self.place.space and len(rest) == 1:
                return self._sized(rest[0], scope, ".shape")
            if (name in _PURE and value is getattr(builtins, name, None)) or _is_of_library(value):
                return self._all(rest, scope)
            return self._own(node, scope, name)
        if not isinstance(node.func, ast.Attribute):
            return None
        outer = root and root not in locals_of(scope.function)
        if outer and isinstance(self.place.space.get(root), ModuleType):
            fine = _is_library_path(self.place.space[root], path)
            return self._all(rest, scope) if fine else None
        if root == "self" and path.count(".") == 1 and (own := self._own(node, scope, name)) is not None:
            return own
        if not hasattr(torch.Tensor, name) and not hasattr(np.ndarray, name):
            return None
        return self._all([node.func.value, *rest], scope)

    def _with(self, found: Deciders, rest: Iterable[ast.AST], scope: _Scope) -> Deciders:
        more = self._all(rest, scope)
        return None if found is None or more is None else tuple(dict.fromkeys([*found, *more]))

    def _typed(self, node: ast.expr, scope: _Scope, *, shape: bool = False) -> Deciders:
        found: list[str] = []
        for text in (".dtype", ".device", *([".shape"] if shape else ())):
            one = self._sized(node, scope, text)
            if one is None:
                return None
            found += one
        return tuple(dict.fromkeys(found))

    def _own(self, call: ast.Call, scope: _Scope, name: str) -> Deciders:
        """What decides the result of a function of the file, which only computes."""
        found = [n for n in self.source.parents if isinstance(n, Function) and n.name == name]
        if (
            len(found) != 1
            or scope.deep >= _DEEP
            or found[0].decorator_list
            or isinstance(found[0], ast.AsyncFunctionDef)
        ):
            return None
        function = found[0]
        method = _is_method(function)
        if method and path_of(call.func) != f"self.{name}":
            return None
        names = arguments_of(function)[method:]
        given: dict[str, tuple[ast.expr, _Scope]] = {}
        defaults = function.args.defaults
        for each, value in zip(names[len(names) - len(defaults) :], defaults, strict=False):
            given[each] = value, scope
        for each, value in zip(names, call.args, strict=False):
            given[each] = value, scope
        given |= {str(option.arg): (option.value, scope) for option in call.keywords}
        if len(call.args) > len(names) or any(isinstance(each, ast.Starred) for each in call.args):
            return None
        inner = _Scope(function, given, scope.deep + 1)
        every = [n for part in function.body for n in within(part)]
        returns = [n for n in every if isinstance(n, ast.Return) and n.value is not None]
        noisy = (ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom, ast.Await, ast.Raise, ast.Try, ast.With)
        if not returns or any(isinstance(n, noisy) for n in every) or not all(_is_quiet(n, function) for n in every):
            return None
        asked = [test for each in returns for test in self._conditions(each, inner)]
        return self._all([*(each.value for each in returns if each.value is not None), *asked], inner)


def _is_quiet(node: ast.AST, function: Function) -> bool:
    """Whether a part of a function writes nothing that others see."""
    if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
        return False
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return path_of(node.value) in locals_of(function)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        held = node.value.func.value if isinstance(node.value.func, ast.Attribute) else None
        return held is not None and path_of(held) in locals_of(function)
    return True


def _is_anew(node: ast.Assign, name: str) -> bool:
    """Whether a statement gives a name a value that does not come of its last one."""
    named = [n for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name) and n.id == name]
    return any(not isinstance(n.ctx, ast.Load) for n in named) and name not in names_in(node.value)


def _argument(call: ast.Call, name: str, number: int) -> ast.expr | None:
    named = [option.value for option in call.keywords if option.arg == name]
    given = call.args[number] if 0 <= number < len(call.args) else None  # what a method is called on is not among them
    return named[0] if named else given


def _is_method(function: Function) -> bool:
    return bool(function.args.args) and function.args.args[0].arg == "self"


def _is_read_as_array(function: Function, name: str) -> bool:
    """``torch.from_numpy(table)``: an argument that is an array of numpy's wherever the function is called."""
    calls = [n for part in function.body for n in within(part) if isinstance(n, ast.Call)]
    return any(called(n) == "from_numpy" and n.args and path_of(n.args[0]) == name for n in calls)


def _is_of_library(value: Any) -> bool:
    module = getattr(value, "__module__", None) if callable(value) else None
    return isinstance(module, str) and module.partition(".")[0] in ("torch", "math", "numpy", "itertools", "_operator")


def _is_library_path(module: ModuleType, path: str) -> bool:
    """Whether a function of a module only computes: of torch's, numpy's or math's, and none that draws or loads."""
    root = module.__name__.partition(".")[0]
    banned = ("random", "cuda", "load", "save", "seed", "distributed", "set_", "get_", "is_", "empty")
    parts = path.split(".")[1:]
    return root in _LIBRARIES and not any(part.startswith(word) for part in parts for word in banned)


def _table(value: Any) -> tuple[str, ...]:
    """Texts that tell one table of numbers from another, for its path; none for what is no table of the host's."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        return "{}.tobytes()", "{}.dtype.str", "{}.shape"
    if isinstance(value, (list, tuple)) and _are_numbers(value):
        return ("str({})",)
    known = isinstance(value, torch.Tensor) and value.device.type == "cpu" and not value.requires_grad
    return ("{}.numpy().tobytes()", "{}.shape") if known and value.dtype != torch.bfloat16 else ()


def _are_numbers(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_are_numbers(each) for each in value)
    return type(value) in NUMBER
