"""Leads a call into ways that it would not take: the user's functions are exchanged, for one call, for copies that ask.

Each ``if`` of a copy asks here which way it goes, and each loop what it goes through. Lines, names and places are those
of the original. Behind such a turn nothing runs that reaches out of the process: what is called there without being
the user's own, torch's or a plain container's is left out, and only its arguments are computed.
"""

from __future__ import annotations

import ast
import builtins
import copy
import types
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from paramgraph_kit.doctor.explain.syntax import last_name, tree_of
from paramgraph_kit.driver.files import is_library
from paramgraph_kit.driver.host_random import KINDS as GENERATORS

Key = tuple[str, int, int]  # a file, a line and a column: an `if`, or a loop
_ASKS, _ROUNDS, _CALLS = "__pgk_way__", "__pgk_rounds__", "__pgk_call__"
_OPERAND, _AGAIN = "__pgk_operand__", "__pgk_again__"
_PLAIN = (list, dict, set, tuple, str, deque)
_OF_CONTAINERS = frozenset(name for kind in (*_PLAIN, np.ndarray) for name in dir(kind))
_OF_TENSORS = frozenset(name for name in dir(torch.Tensor) if not name.startswith("__")) - _OF_CONTAINERS
_OF_TENSORS |= {"item", "tolist", "any", "all", "max", "min", "sum", "mean", "nonzero", "argmax", "argmin", "cpu"}
_MODULES = ("torch", "F", "nn", "np", "numpy", "math", "random")
_LEAVE = frozenset("save load savez savetxt tofile sleep hub memmap set_printoptions".split())  # noqa: SIM905
_BUILTINS = frozenset(
    """print len float int bool str min max sum range zip enumerate isinstance abs round any all sorted super locals
    globals vars dir getattr hasattr setattr type list dict tuple set reversed repr""".split()  # noqa: SIM905
)
_ROOTS = frozenset(
    "torch numpy math _random random copy collections functools itertools operator statistics warnings builtins einops".split()  # noqa: SIM905, E501
)
_OUTSIDE = ("torch.serialization", "torch.hub", "torch.distributed", "torch.onnx", "torch.jit", "torch.utils")
_OBJECTS = ("torch.nn", "torch.optim", "torch.amp", "torch.cuda", "torch.autograd", "torch.distributions", "torch._C")


class Led:
    """The ways of some functions: which were asked for in the latest call, and which one is to be gone."""

    def __init__(self, functions: Iterable[types.FunctionType]) -> None:
        self.asked: dict[Key, set[bool]] = {}
        self.turns: dict[Key, bool] = {}
        self._turned = False
        self._begun: set[Key] = set()  # loops that were led into a round
        self._held: list[tuple[types.FunctionType, types.CodeType]] = []
        for function in functions:
            code = _asking(function.__code__)
            if code is not None and code.co_freevars == function.__code__.co_freevars:
                self._held.append((function, code))
        self._own = {id(code) for function, code in self._held for code in (code, function.__code__)}

    @contextmanager
    def to(self, turns: dict[Key, bool]) -> Iterator[None]:
        """In the body of ``with``, the functions take these ways, and the others that they would."""
        self.turns, self._turned, self.asked, self._begun = turns, False, {}, set()
        before = [(function, function.__code__) for function, _ in self._held]
        names = {
            _ASKS: self._way,
            _AGAIN: self._again,
            _OPERAND: self._operand,
            _ROUNDS: self._rounds,
            _CALLS: self._call,
        }
        try:
            vars(builtins).update(names)
            for function, code in self._held:
                function.__code__ = code
            yield
        finally:
            for function, code in before:
                function.__code__ = code
            for name in names:
                vars(builtins).pop(name, None)

    def _way(
        self, file: str, line: int, column: int, test: Any, mask: Any = None, wanted: bool = True, kept: bool = False
    ) -> Any:
        """Which way an `if` goes; a mask, or a list, that is asked whether it has any has one, where it is to have.

        ``wanted``: which way it goes where it has any; ``kept``: it stays what it is, where it goes its own way.
        """
        key = (file, line, column)
        if key in self.turns:
            self._turned = True
            if self.turns[key] is wanted and isinstance(mask, torch.Tensor):
                if mask.dtype is torch.bool and mask.numel():
                    mask[(0,) * mask.dim()].fill_(True)  # what is picked by it may be asked for its maximum
            elif self.turns[key] is wanted and type(mask) is list and not mask:
                mask.append(0)
            self.asked.setdefault(key, set()).add(self.turns[key])
            return self.turns[key]
        taken = bool(test)
        self.asked.setdefault(key, set()).add(taken)
        return test if kept else taken

    def _operand(self, file: str, line: int, column: int, value: Any) -> Any:
        """Whether what stands behind it in an ``and``, or an ``or``, is asked for."""
        return self._way(file, line, column, value, kept=True)

    def _again(self, file: str, line: int, column: int, test: Any) -> bool:
        """Whether a `while` goes round: once where it is to, and then as it would."""
        key = (file, line, column)
        taken = bool(test)
        if not taken and self.turns.get(key) and key not in self._begun:
            taken = self._turned = True
        self._begun.add(key)
        self.asked.setdefault(key, set()).add(taken)
        return taken

    def _rounds(self, file: str, line: int, column: int, rows: Any) -> Any:
        """What a loop goes through; of nothing, where it is to have a round, one made-up number or row."""
        key = (file, line, column)
        is_tensor = isinstance(rows, (torch.Tensor, np.ndarray))
        if not (is_tensor or isinstance(rows, list)) or len(rows.shape if is_tensor else "x") == 0:
            return rows
        self.asked.setdefault(key, set()).add(bool(len(rows)))
        if len(rows) or not self.turns.get(key):
            return rows
        self._turned = True
        if isinstance(rows, torch.Tensor):
            return rows.new_zeros((1, *rows.shape[1:]))
        return np.zeros((1, *rows.shape[1:]), rows.dtype) if isinstance(rows, np.ndarray) else [0]

    def _call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if not self._turned or self._stays_inside(function) else None

    def _stays_inside(self, function: Any) -> bool:
        """Whether a call changes nothing but what is put back."""
        kind = type(function)
        if type(getattr(function, "__self__", None)) in GENERATORS:
            return True  # a draw of the host's, which is put back
        if issubclass(kind, partial):
            return self._stays_inside(function.func)
        if issubclass(kind, types.MethodType):
            return self._stays_inside(function.__func__) or _is_of_torch(type(function.__self__))
        if issubclass(kind, types.FunctionType):
            if not is_library(function.__code__.co_filename):
                return id(function.__code__) in self._own
            if "__wrapped__" in vars(function):  # by ``torch.no_grad()``, say
                return self._stays_inside(vars(function)["__wrapped__"])
            return _is_harmless(function.__module__ or "", function.__name__)
        if issubclass(kind, type):
            made = vars(function).get("__init__")
            return _is_harmless(function.__module__, function.__name__) or id(getattr(made, "__code__", 0)) in self._own
        if issubclass(kind, (types.BuiltinFunctionType, types.MethodWrapperType)):
            owner = type(function.__self__)
            plain = issubclass(owner, (*_PLAIN, torch.Tensor, np.ndarray, torch.Generator)) or _is_of_torch(owner)
            return plain or _is_harmless(function.__module__ or "", function.__name__)
        called = getattr(kind, "__call__", None)  # noqa: B004 - its code
        own = id(getattr(called, "__code__", 0)) in self._own
        return own or issubclass(kind, torch.nn.Module) or _is_harmless(kind.__module__, kind.__name__)


def _is_of_torch(kind: type) -> bool:
    return any((each.__module__ or "").startswith(_OBJECTS) for each in kind.__mro__ if each is not object)


def _is_harmless(module: str, name: str) -> bool:
    known = module.partition(".")[0] in _ROOTS and not module.startswith(_OUTSIDE)
    return known and name not in _LEAVE and name not in ("open", "input", "exec", "eval", "exit", "quit", "__import__")


def _asking(code: types.CodeType) -> types.CodeType | None:
    """The copy of a function that asks, or None where there is nothing to ask, or its source is not to be had."""
    made = _copies(code.co_filename, tree_of(code.co_filename))
    found = made.get((code.co_name, code.co_firstlineno))
    return found[0] if found is not None and len(found) == 1 else None


@cache
def _copies(file: str, tree: ast.Module | None) -> dict[tuple[str, int], list[types.CodeType]]:
    """The functions of a file, by name and line, as copies that ask."""
    found: dict[tuple[str, int], list[types.CodeType]] = {}
    if tree is None:
        return found
    try:
        asking = _Asking(file).visit(copy.deepcopy(tree))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # told when the file was compiled
            todo = [compile(ast.fix_missing_locations(asking), file, "exec", dont_inherit=True)]
    except (SyntaxError, ValueError, RecursionError):
        return found
    for code in todo:  # which grows
        inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
        todo += inner
        for each in inner:
            found.setdefault((each.co_name, each.co_firstlineno), []).append(each)
    return found


class _Asking(ast.NodeTransformer):
    """Has each `if` and each loop ask which way it goes, and calls of what is not known whether they are made."""

    def __init__(self, file: str) -> None:
        self.file = file

    def visit_If(self, node: ast.If) -> ast.AST:
        mask, wanted = _mask_of(node.test)
        self.generic_visit(node)
        node.test = self._asks(_ASKS, (node.lineno, node.col_offset), node.test)
        if mask is not None:
            node.test.args += [copy.deepcopy(mask), ast.copy_location(ast.Constant(wanted), node.test)]
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        node.test = self._asks(_ASKS, (node.lineno, node.col_offset), node.test)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        spots = [spot_of(value) for value in node.values]
        self.generic_visit(node)
        ask = [self._asks(_OPERAND, spot, value) for spot, value in zip(spots, node.values, strict=True)]
        node.values = [*ask[:-1], node.values[-1]]
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        spot = spot_of(node.iter)
        self.generic_visit(node)
        node.iter = self._asks(_ROUNDS, spot, node.iter)
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        node.iter = self._asks(_ROUNDS, (node.lineno, node.col_offset), node.iter)
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        node.test = self._asks(_AGAIN, (node.lineno, node.col_offset), node.test)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        root: ast.expr = node.func
        while isinstance(root, ast.Attribute):
            root = root.value
        named = root.id if isinstance(root, ast.Name) else ""
        if isinstance(node.func, ast.Name):
            known = node.func.id in _BUILTINS or node.func.id.startswith("__pgk_")
        else:
            called = last_name(node.func)
            known = called not in _LEAVE and (named in _MODULES or called in _OF_TENSORS)
        if known:
            return node
        asks = ast.Call(ast.Name(_CALLS, ast.Load()), [node.func, *node.args], node.keywords)
        return ast.copy_location(asks, node)

    def _asks(self, name: str, spot: tuple[int, int], value: ast.expr) -> ast.Call:
        at = [ast.Constant(part) for part in (self.file, *spot)]
        asks = ast.Call(ast.Name(name, ast.Load()), [*at, value], [])
        for part in (asks, asks.func, *at):
            ast.copy_location(part, value)
        return asks


def spot_of(value: ast.expr) -> tuple[int, int]:
    """The line and the column by which a part of an expression is known: no statement has such a one."""
    return value.end_lineno or value.lineno, -1 - (value.end_col_offset or 0)


def _mask_of(test: ast.expr) -> tuple[ast.expr | None, bool]:
    """What is asked whether it has any, as far as it is a name, and which way it goes then.

    ``done.any()``, ``torch.any(self.done)``, ``hot``, ``len(hot) > 0``, ``not hot``.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        mask, wanted = _mask_of(test.operand)
        return mask, not wanted
    if isinstance(test, ast.Compare) and isinstance(test.comparators[0], ast.Constant):
        counted = isinstance(test.left, ast.Call) and last_name(test.left.func) == "len"
        found = _mask_of(test.left)[0] if counted else None
        empty = isinstance(test.ops[0], ast.Eq) and test.comparators[0].value == 0
        return found, not empty
    if isinstance(test, ast.Name):  # a property might count how often it is asked
        return test, True
    if not isinstance(test, ast.Call):
        return None, True
    if isinstance(test.func, ast.Name):
        is_len = test.func.id == "len" and len(test.args) == 1
        return (test.args[0] if is_len and isinstance(test.args[0], (ast.Name, ast.Attribute)) else None), True
    if not isinstance(test.func, ast.Attribute) or test.func.attr != "any":
        return None, True
    of_torch = isinstance(test.func.value, ast.Name) and test.func.value.id == "torch"
    asked = test.args[0] if of_torch and len(test.args) == 1 else test.func.value if not test.args else None
    return (asked if isinstance(asked, (ast.Name, ast.Attribute)) else None), True
