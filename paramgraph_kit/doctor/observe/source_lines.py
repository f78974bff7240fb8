"""Where in the user's source something is written, or decided: read from the syntax tree of the functions that ran."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable
from types import CodeType

from paramgraph_kit.doctor.explain.syntax import nodes_of
from paramgraph_kit.doctor.restore.host_state import Change
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.trace.model import Frame

MUTATORS = frozenset(
    """append appendleft extend insert add update setdefault pop popitem popleft remove discard clear sort
    reverse""".split()  # noqa: SIM905 - shorter so
)
Branching = ast.If | ast.IfExp | ast.While | ast.For | ast.Match


def frame_at(code: CodeType, line: int) -> Frame:
    """A line of a function."""
    text = linecache.getline(code.co_filename, line).strip()
    return Frame(display_name(code.co_filename), line, code.co_name, text)


def written_at(change: Change, codes: Iterable[CodeType]) -> Frame | None:
    """The line that made a change, or None where no line of the user's writes to that name."""
    for code in codes:
        for node in nodes_of(code):
            if _writes(node, change):
                return frame_at(code, node.lineno)  # type: ignore[attr-defined]  # all that write have a line
    return None


def _writes(node: ast.AST, change: Change) -> bool:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr, ast.For)):
        targets = [node.target]
    elif isinstance(node, ast.Delete):
        targets = node.targets
    flat = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
    if change.kind in ("cell", "global"):
        return any(isinstance(target, ast.Name) and target.id == change.name for target in flat)
    if change.kind == "attribute":
        return any(isinstance(target, ast.Attribute) and target.attr == change.name for target in flat)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
        return _called(node.func.value) == change.name
    if isinstance(node, ast.AugAssign) and _called(node.target) == change.name:
        return True
    return any(isinstance(target, ast.Subscript) and _called(target) == change.name for target in flat)


def _called(node: ast.expr) -> str:
    """The last name of ``a.b[c]``: what the container is called."""
    while isinstance(node, (ast.Subscript, ast.Call)):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def branch_between(code: CodeType, lines: Iterable[int | None]) -> Frame | None:
    """The branch or loop of a function that decides between lines: it holds one of them and not all."""
    wanted = [line for line in lines if line is not None]
    best: Branching | None = None
    for node in nodes_of(code):
        if not isinstance(node, Branching):
            continue
        inside = [_span(part, wanted) for part in _parts(node)]
        if len(set(inside)) < 2 or not any(any(row) for row in inside):
            continue
        if best is None or node.lineno >= best.lineno:
            best = node
    return frame_at(code, best.lineno) if best is not None else None


def _parts(node: Branching) -> list[list[ast.AST]]:
    if isinstance(node, ast.IfExp):
        return [[node.body], [node.orelse]]
    if isinstance(node, ast.Match):
        return [list(case.body) for case in node.cases]
    return [list(node.body), list(node.orelse)]


def _span(part: list[ast.AST], lines: list[int]) -> tuple[bool, ...]:
    """For each line, whether a part of a branch holds it."""
    spans = [(getattr(n, "lineno", 0), getattr(n, "end_lineno", 0) or 0) for n in part]
    return tuple(any(start <= line <= end for start, end in spans) for line in lines)
