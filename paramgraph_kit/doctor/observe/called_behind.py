"""Functions that a capture does not come to: what calls them stands around it, ``env.after_step(out)``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, every, last_name
from paramgraph_kit.doctor.observe.own_regions import Region

_KEPT = frozenset(("no_grad", "inference_mode", "enable_grad", "staticmethod", "classmethod"))  # each calls it as it is


def called_behind(trees: Iterable[ast.Module], region: Region) -> Iterator[ast.AST]:
    """Those of some files: plain ones, which lines call by their names, and none that what is captured comes to."""
    nodes = [n for tree in trees for n in every(tree)]
    functions = [n for n in nodes if isinstance(n, FUNCTIONS[:2]) and not _replays(n)]  # which no capture runs
    names = {n.name for n in functions}
    callees = {id(n.func) for n in nodes if isinstance(n, ast.Call)}
    called = {last_name(n) for n in nodes if id(n) in callees}
    handed = {last_name(n) for n in nodes if isinstance(n, (ast.Name, ast.Attribute)) and id(n) not in callees}
    handed |= {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    handed |= {a.name for n in nodes if isinstance(n, (ast.Import, ast.ImportFrom)) for a in n.names if a.asname}
    reached = {n.name for n in functions if n.name not in called or n.name in handed or not _is_plain(n)}
    reached |= _named([*region.body], names)
    waiting = [*reached]
    while waiting:
        name = waiting.pop()
        more = _named([n for n in functions if n.name == name], names) - reached
        reached |= more
        waiting += more
    yield from (n for n in functions if n.name not in reached and n.name != region.code.co_name)


def _replays(function: ast.AST) -> bool:
    return any(last_name(n.func) == "replay" for n in ast.walk(function) if isinstance(n, ast.Call))


def _is_plain(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether only lines that name a function call it."""
    decorators = (each.func if isinstance(each, ast.Call) else each for each in function.decorator_list)
    return not function.name.startswith("__") and all(last_name(each) in _KEPT for each in decorators)


def _named(bodies: list[ast.AST], names: set[str]) -> set[str]:
    nodes = (n for body in bodies for n in ast.walk(body) if isinstance(n, (ast.Name, ast.Attribute)))
    return {last_name(n) for n in nodes} & names
