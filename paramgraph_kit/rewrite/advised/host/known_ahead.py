"""What a number of the host's comes of in a step, in names that there are ahead of the launch, or None.

A local name is what it was given, an argument of a helper what its calls give, and its ``self`` what it is called of.
"""

from __future__ import annotations

import ast
import builtins
import copy
import random
from collections.abc import Collection
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import torch

from paramgraph_kit.rewrite.advised.host.ways_ahead import CHANGES, Frame, Ways, levels
from paramgraph_kit.rewrite.source.edits import Function, is_method, locals_of, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.place import called, value_of
from paramgraph_kit.rewrite.source.unchanging import is_drawn

_PURE = frozenset("min max abs float int len round sum bool divmod pow zip enumerate range list tuple".split())  # noqa: SIM905
_MODULES = ("math", "cmath", "np", "numpy")
_SIZES = ("shape", "ndim")
_SIZED = ("size", "dim", "numel")
_OF_TENSORS = ("item", "tolist", "cpu", "numpy", "detach", "mean", "max", "min", "norm")
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
_DRAWN = ("torch.rand", "torch.randn", "torch.randint")
_DEEP = 6
_PARTS = (ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple, ast.List)


@dataclass(frozen=True, slots=True)
class Known:
    """An expression in names of ahead of the launch, and lines of the step that go there with it, in their order."""

    value: ast.expr
    lines: tuple[tuple[ast.stmt, str], ...] = ()


class _NotKnown(Exception):  # noqa: N818 - no error: it ends the search
    """A part is not known ahead of the launch."""


@dataclass(slots=True)
class Ahead(Ways):
    """Asks it of the parts of one statement."""

    _frames: list[Frame] = field(default_factory=list)
    _lines: list[tuple[ast.stmt, str]] = field(default_factory=list)
    _bound: list[str] = field(default_factory=list)  # by comprehensions

    def __post_init__(self) -> None:
        function = self.place.source.function_of(self.place.statement)
        self._frames = [*self.ways(function, self.place.statement, 0)] if function is not None else []

    def of(self, part: ast.expr) -> Known | None:
        """What a part comes of; the same in each way that leads to its line."""
        found = list[Known]()
        for frame in self._frames:
            self._lines, self._bound = [], []
            try:
                value = self._of(part, frame, 0)
            except _NotKnown:
                return None
            found.append(Known(value, tuple(dict.fromkeys(self._lines))))
        same = {ast.unparse(each.value) for each in found}
        return found[0] if len(same) == 1 else None

    def is_a_number(self, part: ast.expr) -> bool:
        """Whether a part is known, and surely neither a container, a module nor a function."""
        if isinstance(part, (ast.Name, ast.Attribute)):
            held = self.place.value(path_of(part)) if path_of(part) else None
            if held is not None and not _is_a_number(held):
                return False
        known = self.of(part)
        if known is None or isinstance(known.value, (ast.Tuple, ast.List, ast.Constant)):
            return False
        path = path_of(known.value) if isinstance(known.value, (ast.Name, ast.Attribute)) else ""
        held = self.place.value(path) if path else 0
        return held is None or _is_a_number(held)

    def moves(self, known: Known) -> bool:
        """Whether it is another number in another call, as far as the file tells."""
        calls = [n for n in ast.walk(known.value) if isinstance(n, ast.Call)]
        names = {called(n) for n in calls}
        inside = self.comes_to(*names)
        nodes = [
            n for f in self.place.source.parents if isinstance(f, Function) and f.name in inside for n in ast.walk(f)
        ]
        nodes += ast.walk(known.value)
        paths = {path_of(n) for n in nodes if isinstance(n, (ast.Name, ast.Attribute, ast.Subscript))} - {"", "self"}
        once = any(not self._is_pure(n) for n in calls)
        return bool(known.lines) or once or any(True for path in paths for _ in self.stores(path))

    def is_once(self, value: ast.expr) -> bool:
        """Whether it may be computed once in each call only: what draws, counts or fetches."""
        return any(isinstance(n, ast.Call) and not self._is_pure(n) for n in ast.walk(value))

    # what a part comes of

    def _of(self, node: ast.expr, frame: Frame, deep: int) -> ast.expr:
        if deep > 4 * _DEEP:
            raise _NotKnown
        if isinstance(node, ast.Constant):
            return node
        if isinstance(node, _PARTS):
            return self._with(node, frame, deep)
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            return self._each(node, frame, deep)
        if isinstance(node, ast.Subscript):
            return self._subscript(node, frame, deep)
        if isinstance(node, ast.Call):
            return self._call(node, frame, deep)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, frame, deep)
        if isinstance(node, ast.Name):
            return self._name(node, frame, deep)
        raise _NotKnown

    def _with(self, node: ast.expr, frame: Frame, deep: int) -> ast.expr:
        new = copy.copy(node)
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                setattr(new, name, self._of(value, frame, deep + 1))
            elif isinstance(value, list) and any(isinstance(each, ast.expr) for each in value):
                setattr(new, name, [self._of(each, frame, deep + 1) for each in value])
        return new

    def _each(self, node: ast.ListComp | ast.GeneratorExp, frame: Frame, deep: int) -> ast.expr:
        new, rounds = copy.copy(node), list[ast.comprehension]()
        for each in node.generators:
            iterated = self._of(each.iter, frame, deep + 1)
            self._bound += [n.id for n in ast.walk(each.target) if isinstance(n, ast.Name)]
            tests = [self._of(test, frame, deep + 1) for test in each.ifs]
            rounds.append(ast.comprehension(each.target, iterated, tests, each.is_async))
        new.generators, new.elt = rounds, self._of(node.elt, frame, deep + 1)
        return new

    def _name(self, node: ast.Name, frame: Frame, deep: int) -> ast.expr:
        name, function = node.id, frame.function
        if name in self._bound:
            return node
        if name in locals_of(function):
            return self._local(name, frame, deep)
        held = self.place.space.get(name)
        if name not in self.place.space:
            if hasattr(builtins, name):
                return node
            raise _NotKnown
        if isinstance(held, torch.Tensor):
            raise _NotKnown
        self._in_order(name, frame)
        return node

    def _local(self, name: str, frame: Frame, deep: int) -> ast.expr:
        function, place = frame.function, self.place
        given = [n for part in function.body for n in within(part) if _stores(n, name)]
        own = arguments_of(function)
        if name in own:
            if given:
                raise _NotKnown
            if frame.above is not None and frame.call is not None:
                return self._of(self._given(name, frame), frame.above, deep + 1)
            if not self.is_entry(function):
                if name == "self":
                    return ast.Name(name, ast.Load())
                raise _NotKnown
            if name == "self" or _is_a_number(place.arguments.get(name)):
                return ast.Name(name, ast.Load())
            raise _NotKnown
        made = [self.place.source.statement_of(n) for n in given]
        one = made[0] if len(made) == 1 else None
        if not isinstance(one, ast.Assign) or len(one.targets) != 1 or one.lineno >= frame.at.lineno:
            raise _NotKnown
        if not self.is_always_done(one, function):
            raise _NotKnown
        value = _part_of(one, name)
        inner = Frame(function, one, frame.above, frame.call)
        if self.is_once(value) or any(isinstance(n, ast.comprehension) for n in ast.walk(value)):
            self._move(one, inner, deep + 1)
            return ast.Name(name, ast.Load())
        return self._of(value, inner, deep + 1)

    def _move(self, one: ast.Assign, frame: Frame, deep: int) -> None:
        """A line that goes ahead of the launch, in names that there are there."""
        if not self.is_done_once(frame):
            raise _NotKnown
        value = self._of(one.value, frame, deep)
        same = ast.dump(value) == ast.dump(one.value)
        parts = value.elts if isinstance(value, ast.Tuple) else [value]
        text = f"{self.place.text(one.targets[0])} = {', '.join(map(ast.unparse, parts))}"
        text = self.place.text(one) if same else text
        self._lines.append((one, text))

    def _given(self, name: str, frame: Frame) -> ast.expr:
        function, call = frame.function, frame.call
        assert call is not None
        method = is_method(self.place.source, function)
        own = arguments_of(function)
        if any(isinstance(each, ast.Starred) for each in call.args) or any(k.arg is None for k in call.keywords):
            raise _NotKnown
        if method and own[:1] == [name]:
            if function.name in ("forward", "__call__") and called(call) != function.name:
                return call.func
            if isinstance(call.func, ast.Attribute):
                return call.func.value
            raise _NotKnown
        given = dict(zip(own[method:], call.args, strict=False)) | {k.arg: k.value for k in call.keywords if k.arg}
        if name in given:
            return given[name]
        arguments = function.args
        defaults = dict(
            zip(reversed([*arguments.posonlyargs, *arguments.args]), reversed(arguments.defaults), strict=False)
        )
        value = next((each for arg, each in defaults.items() if arg.arg == name), None)
        if isinstance(value, ast.Constant):
            return value
        raise _NotKnown

    def _attribute(self, node: ast.Attribute, frame: Frame, deep: int) -> ast.expr:
        if node.attr in _SIZES:
            return self._size(node, node.value, frame)
        path = path_of(node)
        held = self.place.value(path) if path else None
        if not path or isinstance(held, torch.Tensor):
            raise _NotKnown
        if isinstance(self.place.space.get(path.partition(".")[0]), ModuleType):
            return node
        new = copy.copy(node)
        new.value = self._owner(node.value, frame, deep)
        self._in_order(path, frame)
        return new

    def _owner(self, node: ast.expr, frame: Frame, deep: int) -> ast.expr:
        """The object of an attribute: a name of around the function, ``self``, or what a helper is called of."""
        if isinstance(node, ast.Attribute):
            new = copy.copy(node)
            new.value = self._owner(node.value, frame, deep + 1)
            return new
        if not isinstance(node, ast.Name):
            raise _NotKnown
        return self._name(node, frame, deep + 1)

    def _subscript(self, node: ast.Subscript, frame: Frame, deep: int) -> ast.expr:
        if isinstance(node.value, ast.Attribute) and node.value.attr in _SIZES and isinstance(node.slice, ast.Constant):
            return self._size(node, node.value.value, frame)
        if isinstance(node.slice, (ast.Slice, ast.Tuple)):
            raise _NotKnown
        held = self.place.value(path_of(node.value)) if path_of(node.value) else None
        if isinstance(held, torch.Tensor):
            raise _NotKnown
        return self._with(node, frame, deep)

    def _size(self, node: ast.expr, of: ast.expr, frame: Frame) -> ast.expr:
        """``x.shape[0]`` of what a step is given, also in its helpers."""
        while isinstance(of, ast.Name) and frame.above is not None and of.id in arguments_of(frame.function):
            if any(_stores(n, of.id) for part in frame.function.body for n in within(part)):
                raise _NotKnown
            of, frame = self._given(of.id, frame), frame.above
        if not isinstance(of, ast.Name) or not self.is_entry(frame.function):
            raise _NotKnown
        again = any(_stores(n, of.id) for part in frame.function.body for n in within(part))
        if again or of.id not in arguments_of(frame.function):
            raise _NotKnown
        new = copy.deepcopy(node)
        for each in ast.walk(new):
            if isinstance(each, ast.Name) and each.id != "len":
                each.id = of.id
        return new

    def _call(self, node: ast.Call, frame: Frame, deep: int) -> ast.expr:
        path = path_of(node.func) if isinstance(node.func, (ast.Name, ast.Attribute)) else ""
        root, name = path.partition(".")[0], called(node)
        if isinstance(node.func, ast.Attribute) and name in _SIZED:
            return self._size(node, node.func.value, frame)
        if path == "len" and len(node.args) == 1 and isinstance(node.args[0], ast.Name):
            held = self.place.arguments.get(node.args[0].id)
            if isinstance(held, torch.Tensor) or node.args[0].id in locals_of(frame.function):
                return self._size(node, node.args[0], frame)
        if name == "item" and isinstance(node.func, ast.Attribute) and not node.args:
            return self._item(node, node.func.value, frame, deep)
        if not path or any(isinstance(each, ast.Starred) for each in node.args):
            raise _NotKnown
        plain = root in (*_MODULES, "random") or (isinstance(node.func, ast.Name) and name in (*_PURE, "next"))
        sampled = isinstance(self.place.space.get(root), torch.distributions.Distribution) and path == f"{root}.sample"
        is_a_sample = sampled and "from the CPU" in self.place.failure.message
        if isinstance(self.place.value(path.rpartition(".")[0]), _GENERATORS):
            plain = True
        if not plain and not is_a_sample and not self._is_of_the_host(node, path):
            raise _NotKnown
        new = copy.copy(node)
        if is_a_sample:
            return node
        if isinstance(node.func, ast.Attribute) and root not in (*_MODULES, "random"):
            new.func = copy.copy(node.func)
            new.func.value = self._owner(node.func.value, frame, deep + 1)
        if self.is_once(node) and not self.is_done_once(frame):
            raise _NotKnown  # another one in each round, or in some calls only
        if not plain:
            self._read_there(node, frame)
        new.args = [self._of(each, frame, deep + 1) for each in node.args]
        new.keywords = [ast.keyword(k.arg, self._of(k.value, frame, deep + 1)) for k in node.keywords]
        return new

    def _item(self, node: ast.Call, of: ast.expr, frame: Frame, deep: int) -> ast.expr:
        """``alphas[t].item()`` of a tensor of the CPU, and ``torch.rand(1).item()``, which is drawn there."""
        if isinstance(of, ast.Call) and path_of(of.func) in _DRAWN and not any(k.arg == "device" for k in of.keywords):
            if not self.is_done_once(frame):
                raise _NotKnown
            for each in of.args:
                self._of(each, frame, deep + 1)
            return node
        path = path_of(of)
        held = self.place.space.get(path)
        if not isinstance(held, torch.Tensor) or held.device.type != "cpu":
            raise _NotKnown
        self._in_order(path, frame)
        new, inner = copy.copy(node), copy.copy(of)
        if isinstance(inner, ast.Subscript):
            inner.slice = self._of(inner.slice, frame, deep + 1)
        new.func = ast.Attribute(inner, "item", ast.Load())
        return new

    def _is_of_the_host(self, node: ast.Call, path: str) -> bool:
        """Whether a function of the file computes numbers of numbers alone, as far as its text tells."""
        every = [n for n in self.place.source.parents if isinstance(n, Function)]
        named = [n for n in every if n.name == called(node)]
        named = named or [n for n in every if n.name == "__call__" and self._is_of_class(path, n)]
        if len(named) != 1:
            return False
        nodes = [*ast.walk(named[0])]
        roots = {n.id for n in nodes if isinstance(n, ast.Name)}
        asks = any(isinstance(n, ast.Attribute) and n.attr in _OF_TENSORS for n in nodes)
        held = [self.place.value(path_of(n)) for n in nodes if isinstance(n, (ast.Name, ast.Attribute)) and path_of(n)]
        there = any(isinstance(each, (torch.Tensor, torch.nn.Module)) for each in held)
        return (
            "torch" not in roots and not asks and not there and not isinstance(self.place.value(path), torch.nn.Module)
        )

    def _read_there(self, node: ast.Call, frame: Frame) -> None:
        """Raises where what a function of the file reads by itself is given another value ahead of its call."""
        every = [n for n in self.place.source.parents if isinstance(n, Function)]
        inside = {"__call__", *self.comes_to(called(node))}
        for function in (n for n in every if n.name in inside):
            own = locals_of(function)
            for part in (n for n in ast.walk(function) if isinstance(n, (ast.Name, ast.Attribute))):
                path = path_of(part) if isinstance(part.ctx, ast.Load) else ""
                if "." in path or (path and path not in own and path in self.place.space):
                    self._in_order(path, frame, inside)

    def _is_of_class(self, path: str, method: Function) -> bool:
        owner, held = self.place.source.parents.get(method), value_of(self.place.space, path)
        return isinstance(owner, ast.ClassDef) and owner.name == type(held).__name__

    def _is_pure(self, node: ast.Call) -> bool:
        path, name = path_of(node.func), called(node)
        if is_drawn(node) or name in ("next", "sample"):
            return False
        if path.partition(".")[0] in _MODULES or name in (*_PURE, *_SIZED, "item"):
            return True
        named = [n for n in self.place.source.parents if isinstance(n, Function) and n.name == name]
        if len(named) != 1:
            return False
        every = [*ast.walk(named[0])]
        changes = any(isinstance(n, (ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom)) for n in every)
        changes |= any(isinstance(n, (ast.Attribute, ast.Subscript)) and isinstance(n.ctx, ast.Store) for n in every)
        calls = [n for n in every if isinstance(n, ast.Call)]
        grows = any(called(n) in CHANGES or is_drawn(n) or called(n) == "next" for n in calls)
        return not changes and not grows and all(n is node or self._is_pure(n) for n in calls if called(n) != name)

    # when what is read gets its values

    def _in_order(self, path: str, frame: Frame, but: Collection[str] = ()) -> None:
        """Raises where a line ahead, in the same step, gives a path another value: then it is not that at the launch.

        One that always does so, and counts alone, goes there with what is read. ``but``: functions that are left out.
        """
        for function, store in self.stores(path):
            if function.name in but:
                continue
            inner: ast.Call | None = None
            for level in levels(frame):
                self._behind(function, store, level, inner)
                inner = level.call

    def _behind(self, function: Function, store: ast.stmt, level: Frame, inner: ast.Call | None) -> None:
        """``inner``: the call of this level that leads to what is read."""
        if function is level.function:
            if store is level.at or store.lineno > level.at.lineno:
                if self.loops(store, function) & self.loops(level.at, function):
                    raise _NotKnown
                return
            if self.ends(store, level.at, function):
                return
            if not isinstance(store, ast.AugAssign) or level.above or not self.is_always_done(store, function):
                raise _NotKnown
            self._of(store.value, Frame(function, store), _DEEP)
            self._lines.append((store, self.place.text(store)))
            return
        for call in (n for part in level.function.body for n in within(part) if isinstance(n, ast.Call)):
            if call is inner or function.name not in self.comes_to(called(call)):
                continue
            at = self.place.source.statement_of(call)
            shared = self.loops(call, level.function) & self.loops(level.at, level.function)
            if at is level.at or shared or at.lineno < level.at.lineno:
                raise _NotKnown
        again = inner is not None and bool(self.loops(inner, level.function))
        if again and inner is not None and function.name in self.comes_to(called(inner)):
            raise _NotKnown


def _stores(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)


def _part_of(node: ast.Assign, name: str) -> ast.expr:
    """What ``b`` is of ``a, b = 1, 2``."""
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Name):
        return value
    if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple) or len(target.elts) != len(value.elts):
        raise _NotKnown
    return next((each for at, each in zip(target.elts, value.elts, strict=True) if path_of(at) == name), value)


def _is_a_number(held: Any) -> bool:
    plain = type(held) in (int, float)
    return plain or (type(held).__module__ == "numpy" and getattr(held, "ndim", 1) == 0)
