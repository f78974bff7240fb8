"""Words for callables that torch graphs: the names that they have ahead of that, and no replay of the user's own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from paramgraph_kit.doctor.explain.syntax import every, last_name, tree_of
from paramgraph_kit.doctor.observe.own_regions import GRAPHED
from paramgraph_kit.trace.model import Failure

_MADE = re.compile(r"before the capture: [^;\n]*")
_AHEAD = re.compile(r", ahead of g\.replay\(\)")


def as_graphed(found: Iterable[Failure], files: Iterable[str]) -> Iterator[Failure]:
    """The same, where the files only have torch graph their callables."""
    trees = [tree for file in files if (tree := tree_of(file)) is not None]
    calls = [n for tree in trees for n in every(tree) if isinstance(n, ast.Call)]
    by_torch = any(last_name(n.func) == GRAPHED for n in calls)
    if not by_torch or any(last_name(n.func) in ("replay", "graph") for n in calls):
        yield from found
        return
    names = {new: old for tree in trees for new, old in _named(tree)}
    for failure in found:
        fix = _MADE.sub(lambda made: _ahead_of_it(made[0], names), _AHEAD.sub("", failure.fix))
        fix = fix.replace("ahead of g.replay()", "ahead of its call")
        yield replace(failure, fix=fix) if fix != failure.fix else failure


def _ahead_of_it(made: str, names: dict[str, str]) -> str:
    """What is written ahead of the capture, by the names of what is given to it, and not of what it gives."""
    for new, old in names.items():
        made = re.sub(rf"(?<![\w.]){re.escape(new)}\.", f"{old}.", made)
    return made


def _named(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """``self.net = make_graphed_callables(net, ...)``: the name that it gives, and the one that it is given."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or not isinstance(call := node.value, ast.Call) or not call.args:
            continue
        if last_name(call.func) != GRAPHED or len(node.targets) != 1:
            continue
        new, old = (getattr(each, "elts", [each]) for each in (node.targets[0], call.args[0]))
        if len(new) == len(old):
            yield from ((a, b) for a, b in zip(map(ast.unparse, new), map(ast.unparse, old), strict=True) if a != b)
