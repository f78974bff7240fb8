"""Results of a function that code around it keeps from call to call: each replay of a graph would write over them."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any

from paramgraph_kit.doctor.explain.syntax import LOOPS, here, last_line
from paramgraph_kit.doctor.observe.gradients import Scope, Search
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.trace.model import Frame

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp)
_KEEPS = ("append", "add", "appendleft", "setdefault")


def kept(scopes: Iterable[Scope], function: Any, own: Iterable[CodeType]) -> list[Frame]:
    """The lines outside of the function that keep what it returns as it is, in a loop around its call."""
    mine = [(code.co_filename, code.co_firstlineno, last_line(code)) for code in own]
    found: dict[tuple[str, int], Frame] = {}
    for scope in scopes:
        search = Search(scope.names, function, set())
        for line in _lines(scope.body, search):
            if not any(scope.file == file and first <= line <= last for file, first, last in mine):
                name = getattr(scope.body, "name", "<module>")
                text = linecache.getline(scope.file, line).strip()
                found[scope.file, line] = Frame(display_name(scope.file), line, name, text)
    return list(found.values())


def _lines(body: Any, search: Search) -> Iterator[int]:
    for node in (n for statement in body.body for n in here(statement)):
        if isinstance(node, _COMPREHENSIONS) and search.calls(node.elt):
            yield node.lineno
        if isinstance(node, LOOPS):
            inside = [n for statement in node.body for n in here(statement)]
            results = {
                target.id
                for n in inside
                if isinstance(n, ast.Assign) and search.calls(n.value)
                for target in n.targets
                if isinstance(target, ast.Name)
            }
            for n in inside:
                if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in _KEEPS and n.args:
                    what = n.args[-1]
                    if search.calls(what) or (isinstance(what, ast.Name) and what.id in results):
                        yield n.lineno
