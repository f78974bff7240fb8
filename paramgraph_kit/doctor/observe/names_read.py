"""The longest names that statements read, each with whether that is in a test: ``self.scale``, ``cfg["rate"]``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import CodeType
from typing import Any

from paramgraph_kit.doctor.explain.syntax import children, last_name, nodes_of
from paramgraph_kit.doctor.observe.captured_entries import asked_by_name
from paramgraph_kit.doctor.observe.loop_elements import targets_of
from paramgraph_kit.doctor.observe.short_names import first_of

_CLOSED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_TESTS = (ast.If, ast.IfExp, ast.While)
_BY_NAME = ("locals", "vars", "eval", "exec")  # which may ask for any variable
_COUNTS = ("min", "max", "abs", "round", "int", "float", "len")
_TELLS = ("print", "debug", "info", "warning", "log", "write")


def outermost(statement: ast.AST, decides: bool = False) -> Iterator[tuple[ast.expr, bool]]:
    """The longest names that are read, each with whether that is in a test."""
    if isinstance(statement, (ast.Lambda, *_COMPREHENSIONS)):  # its variables are its own
        loops = targets_of(statement)  # which whoever asks leaves out, where it does not know what these stand for
        own = (stored_in([statement]) - loops) | {n.arg for n in ast.walk(statement) if isinstance(n, ast.arg)}
        yield from (each for each in _read(statement, decides) if first_of(each[0]) not in own)
    else:
        yield from _read(statement, decides)


def inside_of(code: CodeType) -> set[str]:
    """Variables of a function's comprehensions, which its other lines do not know."""
    names = {name for n in nodes_of(code) if isinstance(n, _COMPREHENSIONS) for name in targets_of(n)}
    return names - {*code.co_varnames, *code.co_cellvars}


def _read(statement: ast.AST, decides: bool) -> Iterator[tuple[ast.expr, bool]]:
    if isinstance(statement, _CLOSED):
        return
    if isinstance(statement, ast.Expr) and tells(statement.value):
        return
    if isinstance(statement, ast.Assert) or (isinstance(statement, ast.If) and _is_idle(statement)):
        return  # no graph has anything of it
    if isinstance(statement, (ast.Name, ast.Attribute, ast.Subscript)) and _is_path(statement):
        if isinstance(statement.ctx, ast.Load):
            yield statement, decides
        elif isinstance(statement, ast.Attribute):
            yield from outermost(statement.value, decides)
        return
    if (asked := asked_by_name(statement)) is not None and _is_path(asked):
        yield asked, decides
    for name, child in ast.iter_fields(statement):
        is_test = decides or (isinstance(statement, _TESTS) and name == "test") or name == "subject"  # of a match
        for each in child if isinstance(child, list) else [child]:
            if isinstance(each, ast.AST):
                if isinstance(statement, ast.Call) and each is statement.func and isinstance(each, ast.Attribute):
                    yield from outermost(each.value, is_test)  # what a method belongs to
                yield from outermost(each, is_test)


def _is_idle(branch: ast.If) -> bool:
    """Whether both ways only tell, wait or raise."""
    for node in (*branch.body, *branch.orelse):
        call = node.value if isinstance(node, ast.Expr) else None
        calls = isinstance(call, ast.Call) and (tells(call) or last_name(call.func) in ("warn", "synchronize"))
        if not calls and not isinstance(node, (ast.Pass, ast.Raise)) and not isinstance(call, ast.Constant):
            return False
    return True


def tells(node: ast.expr) -> bool:
    """Whether a statement only says something; ``torch.log(x)`` does not, nor does a ``write()`` of the user's."""
    if not isinstance(node, ast.Call) or last_name(node.func) not in _TELLS:
        return False
    given = [n for each in (*node.args, *node.keywords) for n in ast.walk(each)]
    has_words = any(isinstance(n, ast.JoinedStr) or type(getattr(n, "value", None)) is str for n in given)
    return has_words or last_name(node.func) not in ("log", "write")


def _is_path(node: ast.AST) -> bool:
    return bool(first_of(node))


def stored_in(body: Iterable[ast.AST]) -> frozenset[str]:
    """Names that are given something there."""
    nodes = dict.fromkeys(body)
    waiting = [*nodes]
    while waiting:  # each once: what bodies have in common is often all
        more = [n for n in children(waiting.pop()) if n not in nodes]
        nodes |= dict.fromkeys(more)
        waiting += more
    return frozenset(n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


def body_of(code: CodeType) -> list[tuple[ast.expr, bool]]:
    """The longest names that a function reads, each with whether that is in a test."""
    for node in nodes_of(code):
        named = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name
        if named or (isinstance(node, ast.Lambda) and code.co_name == "<lambda>"):
            return [*_read_in(node)]
    return []


@lru_cache(512)  # a model has many modules of one class
def _read_in(function: Any) -> tuple[tuple[ast.expr, bool], ...]:
    body = function.body if isinstance(function.body, list) else [function.body]
    vain = _in_vain(function)
    return tuple(each for part in body for each in outermost(part) if id(each[0]) not in vain)


def _in_vain(function: Any) -> set[int]:
    """What lines compute for a variable that nothing reads, as one whose readers have a tensor by now."""
    nodes = [*ast.walk(function)]
    names = [n for n in nodes if isinstance(n, ast.Name)]
    read = {n.id for n in names if not isinstance(n.ctx, ast.Store)}
    read |= {name for n in nodes if isinstance(n, (ast.Global, ast.Nonlocal)) for name in n.names}
    if not read.isdisjoint(_BY_NAME):
        return set()
    lines = [n for n in nodes if isinstance(n, ast.Assign) and all(isinstance(t, ast.Name) for t in n.targets)]
    vain = [n.value for n in lines if read.isdisjoint(t.id for t in n.targets if isinstance(t, ast.Name))]
    return {id(each) for value in vain if _only_counts(value) for each in ast.walk(value)}


def _only_counts(value: ast.expr) -> bool:
    """Whether it is computed from names and numbers alone, and does nothing else."""
    calls = [n for n in ast.walk(value) if isinstance(n, ast.Call)]
    known = all(isinstance(c.func, ast.Name) and c.func.id in _COUNTS for c in calls)
    return known and not any(isinstance(n, (ast.NamedExpr, ast.Await, ast.Yield)) for n in ast.walk(value))
