"""Whether what a statement raises is caught by the user's own lines, which go on then."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping
from typing import Any

from paramgraph_kit.doctor.observe.held import attribute_of
from paramgraph_kit.rewrite.source.edits import Source, path_of, within


def handler_of(source: Source, node: ast.stmt, space: Mapping[str, Any]) -> ast.ExceptHandler | None:
    """The first handler of the file, in a function, that takes what a statement raises, from there or from a call."""
    raised = list(_raised(node, space))
    for each in source.parents:
        if not isinstance(each, ast.Try) or not raised or source.function_of(each) is None:
            continue
        inside = [part for one in each.body for part in ast.walk(one)]
        if node not in inside and not any(isinstance(part, ast.Call) for part in inside):
            continue
        for handler in each.handlers:
            if any(_takes(handler, name, kind, space) for name, kind in raised):
                return handler
    return None


def hears(source: Source, node: ast.stmt, error: type[Exception], space: Mapping[str, Any]) -> ast.ExceptHandler | None:
    """The handler that takes an error of a statement, around it or around a call of its function in the same file."""
    function = source.function_of(node)
    for each in source.parents:
        if not isinstance(each, ast.Try):
            continue
        inside = [part for one in each.body for part in ast.walk(one)]
        calls = {path_of(part.func).rpartition(".")[2] for part in inside if isinstance(part, ast.Call)}
        if node in inside or (function is not None and function.name in calls):
            taking = (handler for handler in each.handlers if _takes(handler, error.__name__, error, space))
            if (found := next(taking, None)) is not None:
                return found
    return None


def _raised(node: ast.stmt, space: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The names of what a statement may raise itself, and their classes where these are known."""
    for part in within(node):
        if isinstance(part, ast.Assert):
            yield "AssertionError", AssertionError
        elif isinstance(part, ast.Raise) and part.exc is not None:
            made = part.exc.func if isinstance(part.exc, ast.Call) else part.exc
            yield path_of(made), _class(path_of(made), space)


def _takes(handler: ast.ExceptHandler, name: str, kind: Any, space: Mapping[str, Any]) -> bool:
    if handler.type is None:
        return True
    named = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    for path in map(path_of, named):
        base = _class(path, space)
        if path in (name, "Exception", "BaseException"):
            return True
        if isinstance(kind, type) and isinstance(base, type) and issubclass(kind, base):
            return True
    return False


def _class(path: str, space: Mapping[str, Any]) -> Any:
    first, *rest = path.split(".")
    found = space.get(first, getattr(builtins, first, None))
    for name in rest:
        found = attribute_of(found, name, None)
    return found
