"""Words for several things that moved and that one line reads, or gives a value; which line gives the captured one."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from functools import reduce
from typing import Any

from paramgraph_kit.doctor.explain.syntax import last_name
from paramgraph_kit.trace.model import Failure

GRADIENTS = (
    "; gradients are made once, `p.grad = torch.zeros_like(p)` for each parameter, and each capture begins with "
    "`p.grad.zero_()` for all, so that all graphs fill those that the optimizer reads"
)
_FOR_EACH = re.compile(r"`if (?P<what>.+?) not in graphs:` a new capture goes to `graphs\[(?P=what)\]`")


def both(first: Failure, second: Failure) -> Failure:
    """What is told of a line that gives several things a value: ``a.x, a.v = ...``."""
    if first.message == second.message or not second.fix.startswith("before  "):
        return first
    more = second.fix.partition("\nafter   ")[2]
    if (one := _for_each(first.fix)) is not None and (other := _for_each(second.fix)) is not None:
        paths = [each.strip("()") for each in (one["what"], other["what"])]
        key = ", ".join(dict.fromkeys(", ".join(paths).split(", ")))
        known = first.fix.replace(_asked(one["what"]), _asked(f"({key})"))
        if more.replace(_asked(other["what"]), _asked(f"({key})")) in known:  # one table of graphs, and one key
            return replace(first, message=f"{first.message}; {second.message}", fix=known)
    fix = first.fix if more in first.fix else f"{first.fix}; {more}"  # a line that is written anew as a whole, once
    return replace(first, message=f"{first.message}; {second.message}", fix=fix)


def all_read(read: list[tuple[str, Failure]]) -> Failure:
    """What is told of a line that reads several things, by their paths: a graph for each value has all in its key."""
    (_, first), *more = read
    paths = [path for path, failure in read if failure.fix.endswith(graph_for_each(path))]
    if not more:
        return first
    if len(paths) == len(read):
        key = f"({', '.join(paths)})"
        fix = first.fix.replace(graph_for_each(paths[0]), graph_for_each(key))
    else:
        fix = reduce(both, (failure for _, failure in more), first).fix
    return replace(first, message="; ".join(dict.fromkeys(f.message for _, f in read)), fix=fix)


def graph_for_each(what: str) -> str:
    """A graph for each value of something that decides what is captured."""
    new = f"{_asked(what)} with its results"
    return f"this line as it is, and a graph for each value: ahead of g.replay() {new}, and that one is replayed"


def _asked(what: str) -> str:
    return f"`if {what} not in graphs:` a new capture goes to `graphs[{what}]`"


def _for_each(fix: str) -> re.Match[str] | None:
    return _FOR_EACH.search(fix)


def is_for_each(fix: str) -> bool:
    """Whether words ask for a graph for each value."""
    return graph_for_each("\0").partition(":")[0] in fix


def gives_again(node: Any, then: Any) -> bool:
    """Whether a statement gives the very value that the capture had, as ``model.train()`` behind its replays."""
    if type(then) not in (bool, int, float):
        return False
    if isinstance(then, bool) and isinstance(node, ast.Call) and last_name(node.func) in ("eval", "train"):
        given = [*node.args, *(k.value for k in node.keywords)]
        if not given:
            return (last_name(node.func) == "train") is then
        return isinstance(given[0], ast.Constant) and given[0].value is then
    value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
    return isinstance(value, ast.Constant) and type(value.value) is type(then) and value.value == then
