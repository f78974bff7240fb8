"""One missing copy that is seen twice: where a graphed callable gives its result, and where that is kept."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, tree_of
from paramgraph_kit.trace.model import Failure

_GIVEN = re.compile(r"(\w+) = ")


def told_where_kept(told: Iterable[Failure], said: str, files: Iterable[str]) -> list[Failure]:
    """The same without what ``said`` tells of a call, where one line behind it keeps that result, and none else."""
    found, trees = _each_once(told), [tree for file in files if (tree := tree_of(file)) is not None]
    aliases = [f for f in found if f.code == "output-alias" and f.frame is not None]
    twice = [f for f in aliases if f.message == said and any(_keeps(f, other, trees) for other in aliases)]
    return [f for f in found if not any(f is each for each in twice)]


def _each_once(told: Iterable[Failure]) -> list[Failure]:
    """The same without what another one tells of the same line, with the same fix."""
    found: dict[tuple[str, ...], Failure] = {}
    for number, f in enumerate(told):
        at = (f.frame.file, str(f.frame.line), f.fix) if f.frame is not None and f.code == "output-alias" else ()
        found.setdefault(at or (str(number),), f)
    return [*found.values()]


def _keeps(call: Failure, other: Failure, trees: list[ast.Module]) -> bool:
    """Whether another one is of the only line that holds on to what a call has given."""
    given = _GIVEN.match(call.frame.text) if call.frame is not None else None
    if given is None or other is call or call.frame is None or other.frame is None:
        return False
    name, line = given[1], other.frame.line
    if (call.frame.function, call.frame.file) != (other.frame.function, other.frame.file) or line <= call.frame.line:
        return False
    if not re.search(rf"\b{name}(\.detach\(\))?\.clone\(\)", other.fix):
        return False
    functions = [n for tree in trees for n in ast.walk(tree) if isinstance(n, FUNCTIONS[:2])]
    for function in (n for n in functions if n.lineno <= call.frame.line <= (n.end_lineno or 0)):
        nodes = [*ast.walk(function)]
        reads = [n for n in nodes if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
        held = [id(n.value) for n in nodes if isinstance(n, ast.Assign)]
        if any(n.lineno > line or n.lineno < call.frame.line or id(n) in held for n in reads if n.lineno != line):
            return False
    return True
