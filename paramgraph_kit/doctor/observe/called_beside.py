"""Calls of what is captured that no graph makes, as those of a warm-up: they are to find what a replay finds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from paramgraph_kit.doctor.explain.syntax import (
    FUNCTIONS,
    LOOPS,
    MAKERS,
    defines,
    every,
    here,
    last_name,
    nodes_of,
    spans,
    tree_of,
)
from paramgraph_kit.doctor.observe.lines_behind import APART
from paramgraph_kit.doctor.observe.own_regions import Region

_FILLS = re.compile(r"ahead of g\.replay\(\) (?=`[\w.]+\.fill_\()")
_FILLED = re.compile(r"ahead of (?:self\.)?[\w.]+\.replay\(\) `(?P<held>self\.\w+)\.fill_\((?P<path>self\.[\w.]+)\)`")
_GIVEN = re.compile(r"ahead of g\.replay\(\) `[\w.]+\.fill_\((?P<path>[\w.]+)\)`")
_FIRST = re.compile(r"at the end of `\w+` |ahead of the first capture ")
_MADE = "before the capture `"
_MADE_FIRST = re.compile(
    r"(?P<head>(?:before the capture|at the end of `__init__`): )"
    r"(?P<path>[\w.\[\]']+) = torch\.full\(\(\), float\((?P=path)\)"
)


def found_there_too(fix: str, region: Region, line: int, reader: str) -> str:
    """Words for what a replay finds in a tensor, which is made, and filled, ahead of such calls as well.

    ``line`` gives the value: calls ahead of it find what is there from the start. ``reader`` is what reads it.
    """
    nodes = _nodes_around(region) if _FILLS.search(fix) or _MADE in fix else []
    calls = _called_beside(region, nodes, reader)
    if calls and calls[0].lineno < region.line:
        fix = fix.replace(_MADE, f"before line {calls[0].lineno}, which calls it as it is, `")
    loops = [range(n.lineno, (n.end_lineno or n.lineno) + 1) for n in nodes if isinstance(n, LOOPS)]
    lines = {getattr(n, "lineno", 0) for n in nodes}
    behind = [n for n in calls if n.lineno > line or any(n.lineno in each and line in each for each in loops)]
    if not behind or not min(lines) <= line <= max(lines):
        ahead = calls and calls[0].lineno < region.line and _FIRST.search(fix) and _set_elsewhere(fix, region, line)
        behind = calls[:1] if ahead else []
    told = sorted({*(n.lineno for n in behind[:1]), *_moved_ahead_of(fix, calls, nodes, line, region.line)})
    if not told:
        return fix
    what = f"line {told[0]}, which calls" if len(told) == 1 else f"lines {', '.join(map(str, told))}, which call"
    return _FILLS.sub(f"ahead of g.replay(), and of {what} it as it is, ", fix)


def _moved_ahead_of(fix: str, calls: list[ast.Call], nodes: list[ast.AST], line: int, captured: int) -> Iterator[int]:
    """Calls behind the first, and ahead of the capture, that find another number: lines between them set it, too."""
    if (found := _GIVEN.search(fix)) is None or not calls:
        return
    first = calls[0].lineno
    loops = [n for n in nodes if isinstance(n, LOOPS) and spans(n, first)]
    begins = min([first, *(n.lineno for n in loops)])
    stores = [n for n in nodes if isinstance(n, (ast.Name, ast.Attribute)) and isinstance(n.ctx, ast.Store)]
    sets = [n.lineno for n in stores if ast.unparse(n) == found["path"] and n.lineno != line]
    for call in (c for c in calls if first < c.lineno < captured):
        if any(begins < each < call.lineno for each in sets):
            yield call.lineno


def _set_elsewhere(fix: str, region: Region, line: int) -> list[int]:
    """The other lines that set what is filled, where its object is made already: a warm-up finds what they gave."""
    found, tree = _FILLED.search(fix), tree_of(region.code.co_filename)
    if found is None or tree is None:
        return []
    path = found["path"]
    nodes = [n for n in every(tree) if isinstance(n, FUNCTIONS[:2]) and n.name not in MAKERS]
    stores = [n for f in nodes for n in ast.walk(f) if isinstance(n, ast.Attribute) and ast.unparse(n) == path]
    return sorted({n.lineno for n in stores if isinstance(n.ctx, ast.Store)} - {line})


def filled_where_given(fix: str, region: Region, node: ast.AST, target: str, reader: str) -> str:
    """The same with the tensor filled behind the line that gives the number, too, where it is read without a replay.

    Args:
        fix: words for a number that goes into a tensor.
        region: the capture.
        node: the line that gives it.
        target: what that line gives a value to.
        reader: the function that reads it.
    """
    found, tree = _FILLED.search(fix), tree_of(region.code.co_filename)
    whole = next((n for n in ast.walk(tree) if defines(n, region.code)), None) if tree is not None else None
    if found is None or tree is None or whole is None or reader == region.code.co_name:
        return fix
    own = {id(n) for n in ast.walk(whole)}
    calls = (n for n in ast.walk(tree) if isinstance(n, ast.Call) and last_name(n.func) == reader)
    path, line = found["path"], getattr(node, "lineno", 0)
    owner, _, name = target.rpartition(".")
    if not any(id(n) not in own for n in calls) or name != path.rpartition(".")[2] or not line:
        return fix
    held = found["held"]
    if owner and owner != path.rpartition(".")[0]:  # as that line calls what has it
        held, path = f"{owner}.{held.rpartition('.')[2]}", target
    others = _set_elsewhere(fix, region, line) if _FIRST.search(fix) else []
    lines = f"this line, and line {', '.join(map(str, others))}," if others else "this line"
    more = f", and behind {lines} `{held}.fill_({path})`, as `{reader}` also runs without a graph"
    return _FILLED.sub(lambda each: each[0] + more, fix)


def made_for_all(fix: str, region: Region, node: ast.AST, target: str) -> str:
    """The same where a loop gives the number to one object after the other: each gets its tensor."""
    tree, name, line = tree_of(region.code.co_filename), target.partition(".")[0], getattr(node, "lineno", 0)
    found = _MADE_FIRST.search(fix) if name != target else None
    if tree is None or found is None:
        return fix
    loops = [n for n in ast.walk(tree) if isinstance(n, ast.For) and n.lineno < line <= (n.end_lineno or 0)]
    for loop in loops:
        if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(loop.target)):
            made = found[0].removeprefix(found["head"]).replace(found["path"], target)
            of = f"before the capture, for each `{name}` that line {loop.lineno} goes through: "
            return fix.replace(found[0], f"{of}{made}", 1)
    return fix


def stepped_beside(region: Region) -> str:
    """Words for a call of what is captured that is a step without a graph: its branch leaves the function."""
    calls = _called_beside(region, _nodes_around(region), "")
    lines = [call.lineno for call in calls if leaves_ahead(region, call)]
    return f"; line {lines[0]} calls it in a step without a graph: the same there" if lines else ""


def leaves_ahead(region: Region, node: Any) -> bool:
    """Whether a line stands in a branch ahead of a capture that leaves the function, so that no replay is behind it."""
    branches = [n for n in nodes_of(region.code) if isinstance(n, ast.If)]
    around = [n for n in branches if n.body[0].lineno <= node.lineno <= (n.body[-1].end_lineno or 0) < region.line]
    return any(isinstance(n.body[-1], ast.Return) for n in around) or _is_ahead_of_helper(region, node)


def _is_ahead_of_helper(region: Region, node: Any) -> bool:
    """Whether a line comes ahead of the one call of what captures, in its function: the capture finds what it gives."""
    tree, name = tree_of(region.code.co_filename), region.code.co_name
    tests = (n for n in nodes_of(region.code) if isinstance(n, ast.If))
    rarely = any(spans(n, region.line) for n in tests)
    if tree is None or name == "<module>" or rarely:
        return False
    functions = [n for n in every(tree) if isinstance(n, FUNCTIONS[:2]) and n.name != name]
    own = [n for n in functions if spans(n, node.lineno)]
    body = max(own, key=lambda n: n.lineno) if own else tree
    calls = [n.lineno for n in ast.walk(body) if isinstance(n, ast.Call) and last_name(n.func) == name]
    if len(calls) != 1 or node.lineno >= calls[0]:
        return False
    blocks = (n for n in ast.walk(body) if isinstance(n, (*LOOPS, ast.If)))
    return not any(spans(n, calls[0]) for n in blocks)


def runs_without_graph(file: str, node: Any) -> bool:
    """Whether a line stands behind, or beside, a branch for a graph that is there, which replays it and leaves."""
    for test in (n for n in ast.walk(tree_of(file) or ast.Module([], [])) if isinstance(n, ast.If)):
        calls = [n.func for s in test.body for n in ast.walk(s) if isinstance(n, ast.Call)]
        replayed = {ast.unparse(f.value) for f in calls if isinstance(f, ast.Attribute) and f.attr == "replay"}
        if _is_there(test.test) not in replayed:
            continue
        beside = any(s.lineno <= node.lineno <= (s.end_lineno or 0) for s in test.orelse)
        behind = isinstance(test.body[-1], ast.Return) and not test.orelse and _is_behind(file, test, node)
        if beside or behind:
            return True
    return False


def _is_there(test: ast.expr) -> str:
    """What a test asks for whether it is there: ``self.graph is not None``, ``isinstance(self.graph, CUDAGraph)``."""
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot):
        return ast.unparse(test.left)
    if isinstance(test, ast.Call) and last_name(test.func) == "isinstance" and test.args:
        return ast.unparse(test.args[0])
    return ast.unparse(test)


def _is_behind(file: str, test: ast.If, node: Any) -> bool:
    """Whether a line comes later in the function that has a branch as one of its own statements."""
    tree = tree_of(file) or ast.Module([], [])
    own = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and test in n.body)
    return any((test.end_lineno or 0) < node.lineno <= (n.end_lineno or 0) for n in own)


def _nodes_around(region: Region) -> list[ast.AST]:
    """What stands in the function of a capture, or in its file, without what is defined there."""
    tree = tree_of(region.code.co_filename)
    whole = region.code.co_name == "<module>"
    body = tree if whole else next((n for n in ast.walk(tree) if defines(n, region.code)), None) if tree else None
    return [n for s in getattr(body, "body", []) for n in here(s, APART)]


def _called_beside(region: Region, nodes: list[ast.AST], reader: str) -> list[ast.Call]:
    inside = [n for s in region.body for n in ast.walk(s)]
    values = [getattr(s, "value", None) for s in region.body] if len(region.body) == 1 else []
    captured = {ast.unparse(n.func) for n in values if isinstance(n, ast.Call)}
    captured |= {ast.unparse(n.func) for n in inside if isinstance(n, ast.Call) and last_name(n.func) == reader}
    calls = (n for n in nodes if isinstance(n, ast.Call) and n not in inside and ast.unparse(n.func) in captured)
    return sorted(calls, key=lambda n: n.lineno)
