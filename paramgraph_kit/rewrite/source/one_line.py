"""Which of several statements of one line something was found in: a finding knows its line alone."""

from __future__ import annotations

import ast
import re

from paramgraph_kit.rewrite.source.edits import COMPOUND, Source, heads
from paramgraph_kit.trace.model import Failure

_SURELY = frozenset(("item", "tolist", "cpu", "numpy"))  # float(n) may be of a number, too
_READS = frozenset(("item", "tolist", "cpu", "numpy", "float", "int", "bool", "print", "str", "repr", "to", "format"))
_CALLED = {
    "sync-item": _READS,
    "copy-to-cpu": _READS,
    "print": _READS,
    "synchronize": frozenset(("synchronize",)),
    "copy-to-gpu": frozenset(("to", "cuda", "type_as", "copy_", "tensor", "as_tensor", "from_numpy")),
    "tensor-literal": frozenset(("tensor", "as_tensor")),
    "optimizer-not-capturable": frozenset(("step",)),
    "learning-rate-frozen": frozenset(("step",)),
    "grad-scaler": frozenset(("step", "update", "unscale_")),
}
_ASKS = ("data-dependent-branch", "branch-frozen")
_TESTS = (ast.If, ast.While, ast.IfExp, ast.Assert, ast.BoolOp, ast.Not)


def found_in(source: Source, failure: Failure) -> ast.stmt | None:
    """The statement in which something was found; of those that begin in its line, the first that can have done it."""
    line = failure.frame.line if failure.frame is not None else 0
    innermost = source.statement(line)
    if innermost is None or innermost.lineno != line:
        return innermost
    beside = [n for n in source.parents if isinstance(n, ast.stmt) and n.lineno == line and not _is_around(n)]
    if len(beside) < 2:
        return innermost
    beside.sort(key=lambda node: (node.col_offset, isinstance(node, COMPOUND)))
    fitting = [node for node in beside if _fits(node, failure)]
    if failure.code in ("sync-item", "copy-to-cpu"):
        fitting.sort(key=lambda node: not _called_in(node) & _SURELY)
    return fitting[0] if fitting else innermost


def _is_around(node: ast.stmt) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))


def _fits(node: ast.stmt, failure: Failure) -> bool:
    code, parts = failure.code, list(heads(node))
    if code in _ASKS:
        return isinstance(node, (ast.If, ast.While)) or any(isinstance(part, _TESTS) for part in parts)
    calls = _called_in(node)
    if code in _CALLED:
        told = code in ("sync-item", "print") and any(isinstance(part, ast.FormattedValue) for part in parts)
        return told or bool(calls & _CALLED[code])
    if code == "host-counter":
        if failure.message.startswith("print("):
            return "print" in calls
        name = re.match(r"[\w.]*?(\w+)(?=[\[ ])", failure.message)
        named = {part.id for part in parts if isinstance(part, ast.Name)}
        named |= {part.attr for part in parts if isinstance(part, ast.Attribute)}
        return name is not None and name[1] in named and _may_write(parts, name[1])
    return False


def _called_in(node: ast.stmt) -> set[str]:
    return {_last(part.func) for part in heads(node) if isinstance(part, ast.Call)}


def _may_write(parts: list[ast.AST], name: str) -> bool:
    """Whether a statement gives a name, or a part of what has it, a value, or calls a method of it."""
    for part in parts:
        if isinstance(part, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(part.ctx, ast.Store):
            if name in _names(part):
                return True
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and name in _names(part.func.value):
            return True
    return False


def _names(node: ast.AST) -> set[str]:
    every = list(ast.walk(node))
    return {n.id for n in every if isinstance(n, ast.Name)} | {n.attr for n in every if isinstance(n, ast.Attribute)}


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
