"""Tensors of the device that a line of the host's fetches anew: told there, and not where an operation reads them.

``x = next(batches)``, ``x = queue.get()`` and ``x = data[self.i]`` give another tensor in each call.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from types import CodeType

from paramgraph_kit.doctor.explain.syntax import last_line, last_name, nodes_of
from paramgraph_kit.doctor.observe.compare import ANOTHER
from paramgraph_kit.doctor.observe.source_lines import frame_at, path_of
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.trace.model import Failure, Frame

FETCHED = ": what this line fetches"
FETCHED_WITHIN = ": what `next()`, or an index that moves, gives within this line"
_APART = (
    "fetch it before each launch: once `fetched_in = torch.zeros_like(...)` of its shape, before each launch "
    "`fetched_in.copy_({text})`, and here `fetched_in` for `{text}`; in a line of its own, `fetched = {text}`, it "
    "goes there as a diff"
)
_GIVES = ("get", "get_nowait", "popleft", "next")  # of queues and of whatever prefetches


def told_where_fetched(problems: Sequence[Failure], codes: Sequence[CodeType]) -> list[Failure]:
    """The same, with another tensor in each call told once, at the one line that fetches it."""
    counted = {f.message.partition(" went from ")[0] for f in problems if f.code == "host-counter"}
    numbers = {f.frame for f in problems if f.code == "scalar-frozen"}
    found: dict[tuple[object, ...], Failure] = {}
    for number, failure in enumerate(problems):
        told = (
            None
            if failure.frame in numbers and _writes_what_it_reads(failure.frame)
            else _at_its_fetch(failure, codes, counted)
        )
        found.setdefault((number,) if told is None else (told.code, told.frame), told or failure)
    return [*found.values()]


def _writes_what_it_reads(at: Frame | None) -> bool:
    """``self.h = torch.lerp(self.h, x, rate)``: what is another tensor there is what it writes itself."""
    with suppress(SyntaxError):
        node = ast.parse(at.text.strip()).body[0] if at is not None and at.text.strip() else None
        if isinstance(node, ast.Assign):
            read = {ast.unparse(n) for n in ast.walk(node.value) if isinstance(n, (ast.Attribute, ast.Subscript))}
            return any(ast.unparse(each) in read for each in node.targets)
    return False


def _at_its_fetch(failure: Failure, codes: Sequence[CodeType], counted: set[str]) -> Failure | None:
    at = failure.frame
    if failure.code != "stale-input" or not failure.message.endswith(ANOTHER) or at is None:
        return None
    same = (c for c in codes if c.co_name == at.function and display_name(c.co_filename) == at.file)
    code = next((c for c in same if c.co_firstlineno <= at.line <= last_line(c)), None)
    if code is None:
        return None
    nodes = [*nodes_of(code)]
    parts = [] if failure.message.startswith("index") else [n for n in nodes if isinstance(n, ast.Subscript)]
    keys = {id(n) for part in parts for n in ast.walk(part.slice)}  # of a dictionary, which are no tensors
    here = (n for n in nodes if isinstance(n, ast.Name) and n.lineno == at.line and id(n) not in keys)
    asked = [n.id for n in here if isinstance(n.ctx, ast.Load)]
    found = {node for name in asked if (node := _fetch_of(name, nodes, at.line, counted)) is not None}
    if len(found) != 1:
        return None if found else _told_within(failure, nodes, at, counted)
    node = found.pop()
    names, text = ast.unparse(node.targets[0]), ast.unparse(node.value)
    before = f"fetch before each launch, and copy each of {names} to a tensor that stays, which is read here"
    if isinstance(node.targets[0], ast.Name):
        made = f"once `{names}_in = torch.empty_like({text})`, before each launch `{names}_in.copy_({text})`"
        made = made if isinstance(node.value, ast.Subscript) else f"before each launch `{names}_in.copy_({text})`"
        before = f"{names} = {names}_in, and {made}"
    fix = f"before  {names} = {text}\nafter   {before}"
    return replace(failure, message=failure.message + FETCHED, frame=frame_at(code, node.lineno), fix=fix)


def _told_within(failure: Failure, nodes: Sequence[ast.AST], at: Frame, counted: set[str]) -> Failure | None:
    """The same where a line fetches it and computes with it at once, ``net(next(batches))``."""
    calls = [n for n in nodes if isinstance(n, (ast.Call, ast.Subscript)) and n.lineno == at.line]
    found = [n for n in calls if _fetches(n, counted) and isinstance(getattr(n, "ctx", ast.Load()), ast.Load)]
    if len(found) != 1:
        return None
    text = ast.unparse(found[0])
    told = f"before  {at.text}\nafter   {_APART.format(text=text)}"
    return replace(failure, message=failure.message + FETCHED_WITHIN, fix=told)


def _fetch_of(name: str, nodes: Sequence[ast.AST], line: int, counted: set[str], deep: int = 4) -> ast.Assign | None:
    """The one statement ahead of a line that gives a name what it has fetched, or a part of that."""
    given = [n for n in nodes if isinstance(n, (ast.Name, ast.arg)) and _binds(n, name)]
    every = (n for n in nodes if isinstance(n, ast.Assign) and len(n.targets) == 1)
    node = next((n for n in every if any(_binds(t, name) for t in ast.walk(n.targets[0]))), None)
    if node is None or len(given) != 1 or node.lineno >= line or not deep:
        return None
    if _fetches(node.value, counted):
        return node
    part = node.value
    while isinstance(part, (ast.Subscript, ast.Attribute)):
        part = part.value
    return _fetch_of(part.id, nodes, node.lineno, counted, deep - 1) if isinstance(part, ast.Name) else None


def _binds(node: ast.AST, name: str) -> bool:
    return (isinstance(node, ast.arg) and node.arg == name) or (
        isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)
    )


def _fetches(value: ast.expr, counted: set[str]) -> bool:
    if isinstance(value, ast.Subscript):  # by a number that counts, and not a part of a tensor
        return any(path_of(n) in counted for n in ast.walk(value.slice) if isinstance(n, (ast.Name, ast.Attribute)))
    if not isinstance(value, ast.Call):
        return False
    if isinstance(value.func, ast.Name):
        return value.func.id == "next" and len(value.args) == 1
    return isinstance(value.func, ast.Attribute) and last_name(value.func) in _GIVES and not value.args
