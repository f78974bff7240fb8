"""Which statements of a function are captured: by torch's context manager, by one of the file's own, or by hand."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from types import CodeType

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of, tree_of

CAPTURES = ("graph", "capture")
_BLOCKS = ("body", "orelse", "finalbody")
_NOTHING = ast.Module([], [])  # of a file that nobody can read


def captured_in(code: CodeType) -> list[list[ast.stmt]]:
    """The blocks of a function that a capture holds, in their order."""
    nodes = [*nodes_of(code)]
    managers = managers_in(tree_of(code.co_filename) or _NOTHING)
    found = [n.body for n in nodes if isinstance(n, ast.With) and any(captures(item, managers) for item in n.items)]
    if not is_manager(code):
        blocks = [block for n in nodes for name in _BLOCKS if isinstance(block := getattr(n, name, None), list)]
        found += [until_end(block[at + 1 :]) for block in blocks for at, node in enumerate(block) if _begins(node)]
    return [block for block in found if block]


def is_manager(code: CodeType) -> bool:
    """Whether a function is one of a context manager of the user's own."""
    return code.co_name == "__enter__" or bool(
        code.co_flags & inspect.CO_GENERATOR and code.co_name in managers_in(tree_of(code.co_filename) or _NOTHING)
    )


def until_end(block: list[ast.stmt]) -> list[ast.stmt]:
    """The statements of a capture by hand, up to its end."""
    found = []
    for node in block:
        if any(isinstance(n, ast.Call) and last_name(n.func) == "capture_end" for n in ast.walk(node)):
            break
        found.append(node)
    return found


def _begins(node: ast.stmt) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and last_name(call.func) == "capture_begin"


def captures(item: ast.withitem, managers: Collection[str] = ()) -> bool:
    """Whether a `with` captures by this."""
    call = item.context_expr
    return isinstance(call, ast.Call) and (last_name(call.func) in CAPTURES or last_name(call.func) in managers)


@lru_cache(64)  # each look at a file's captures asks
def managers_in(tree: ast.Module) -> Mapping[str, str | int]:
    """A file's own context managers that capture: the attribute which has the graph, or the argument that is it."""
    found: dict[str, str | int] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            enters = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__enter__"]
            graphs = [a.attr for n in enters for a in _given_to_captures(n) if isinstance(a, ast.Attribute)]
            if graphs:
                found[node.name] = graphs[0]
        elif isinstance(node, ast.FunctionDef) and any(isinstance(n, ast.Yield) for n in ast.walk(node)):
            names = [each.arg for each in node.args.args]
            given = [names.index(n) for n in map(last_name, _given_to_captures(node)) if n in names]
            if given:
                found[node.name] = given[0]
    return found


def _given_to_captures(node: ast.AST) -> Iterator[ast.expr]:
    """What is captured into in a function: ``g`` of ``cuda.graph(g)``, and of ``g.capture_begin()``."""
    for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
        if last_name(call.func) in CAPTURES and call.args:
            yield call.args[0]
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "capture_begin":
            yield call.func.value
