"""Branches and loops on what was read from the device at another line: ``n = int(mask.sum())``, ``if n < limit:``.

A graph has the way that was taken when it was captured, also once the line that reads is no problem any more.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from types import CodeType
from typing import TypeGuard

from paramgraph_kit.doctor.explain.syntax import here, last_line, nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.moving import Moving
from paramgraph_kit.doctor.observe.observer import Step
from paramgraph_kit.doctor.observe.places import lines_in
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.trace.model import Failure

READ = "it asks for what was read from the device"
_LOOPS = (ast.For, ast.While)
_APART = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def problems(moving: Moving, steps: Iterable[Step], told: Collection[tuple[str, int]]) -> Iterator[Failure]:
    """Each such test, where work of the device's depends on it, and none of whose lines is told."""
    ran = lines_in(step.place.stack for step in steps if step.on_device)
    for code in moving.codes:
        file = display_name(code.co_filename)
        for node in nodes_of(code):
            if not isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Match)):
                continue
            test = node.subject if isinstance(node, ast.Match) else node.test
            if not moving.is_asked(test, code):
                continue
            lines = range(test.lineno, (test.end_lineno or test.lineno) + 1)
            if any((file, line) in told for line in (node.lineno, *lines)):
                continue
            decided = {*_decided(node, code)}
            if any((file, line) in ran for line in decided) or _hands_on(
                code, decided, {at for f, at in ran if f == file}
            ):
                yield BY_ID["branch-frozen"].failure(READ, frame_at(code, test.lineno))


def _decided(node: ast.If | ast.While | ast.IfExp | ast.Match, code: CodeType) -> Iterator[int]:
    """Lines that run or do not run as a test has it."""
    if isinstance(node, ast.IfExp):
        yield from _lines([node.body, node.orelse])
        return
    if isinstance(node, ast.Match):
        yield from _lines([part for case in node.cases for part in case.body])
        return
    if isinstance(node, ast.If) and node.body and isinstance(node.body[-1], ast.Raise):
        return  # it refuses what it has been given
    yield from _lines([*node.body, *node.orelse])
    leaves = [n for n in here(node, _APART) if isinstance(n, (ast.Break, ast.Continue, ast.Return))]
    if not leaves or not isinstance(node, ast.If):
        return
    inside = [n for n in nodes_of(code) if isinstance(n, _LOOPS) and n.lineno <= node.lineno <= (n.end_lineno or 0)]
    if inside:
        yield from _lines(inside[-1].body)
    elif any(isinstance(n, ast.Return) for n in leaves):
        yield from range((node.end_lineno or node.lineno) + 1, last_line(code) + 1)


def _hands_on(code: CodeType, decided: Collection[int], ran: Collection[int]) -> bool:
    """Whether a name gets, on such a line, what the device has computed: ``x = proposed``."""
    given = [n for n in nodes_of(code) if isinstance(n, ast.Assign)]
    made = {n.id for each in given if each.lineno in ran for t in each.targets for n in ast.walk(t) if _stores(n)}
    held = (each.value for each in given if each.lineno in decided)
    parts = (part for value in held for part in (value.elts if isinstance(value, ast.Tuple) else [value]))
    return any(isinstance(part, ast.Name) and part.id in made for part in parts)


def _stores(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _lines(parts: Iterable[ast.AST]) -> Iterator[int]:
    for each in parts:
        first = getattr(each, "lineno", 0)
        yield from range(first, (getattr(each, "end_lineno", first) or first) + 1)
