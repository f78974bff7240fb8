"""What stands behind a capture in its function, or its file: which lines replay, and what comes before and after."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, LOOPS, here, last_name
from paramgraph_kit.doctor.observe.held import attributes_of, code_of, is_a, methods_of
from paramgraph_kit.doctor.observe.own_regions import GRAPHED, Region
from paramgraph_kit.driver.files import is_library

APART = (*FUNCTIONS, ast.ClassDef)


@dataclass(slots=True)
class LinesBehind:
    """The lines around one capture."""

    region: Region
    body: Any

    def behind(self) -> Iterator[Any]:
        """What comes behind the capture, without functions that are only defined there."""
        last = max(getattr(n, "end_lineno", 0) or 0 for n in self.region.body)
        for statement in self.body.body:
            yield from (n for n in here(statement, APART) if getattr(n, "lineno", 0) > last)

    def launches(self, node: ast.AST) -> bool:
        """Whether something replays: a graph, or what is graphed."""
        if not isinstance(node, ast.Call):
            return False
        return node.func.attr == "replay" if isinstance(node.func, ast.Attribute) else self.calls_graphed(node)

    def calls_graphed(self, node: ast.Call) -> bool:
        """Whether a call is of what torch has graphed."""
        return self.is_graphed() and isinstance(node.func, ast.Name) and node.func.id in self.made()

    def is_graphed(self) -> bool:
        """Whether torch captures there, for ``make_graphed_callables``."""
        first = self.region.body[0]
        call = first.value if isinstance(first, ast.Expr) else None
        return isinstance(call, ast.Call) and last_name(call.func) == GRAPHED

    def launches_after(self, node: Any) -> bool:
        """Whether a replay comes behind a line, or in the next round of a loop around it."""
        return any(self.launches(n) and self.comes_after(n.lineno, node) for n in self.behind())

    def comes_after(self, line: int, node: Any) -> bool:
        """Whether a line comes behind a node, or in the next round of a loop around it."""
        loops = (n for n in self.behind() if isinstance(n, LOOPS) and n.lineno <= node.lineno <= (n.end_lineno or 0))
        behind = line > (node.end_lineno or node.lineno)
        return behind or any(loop.lineno <= line <= (loop.end_lineno or 0) for loop in loops)

    def launches_before(self, node: Any) -> bool:
        """Whether a replay stands above a line."""
        return any(self.launches(n) and n.lineno < node.lineno for n in self.behind())

    def read(self) -> set[str]:
        """Names that the capture reads: its own lines', and those of the functions that it calls."""
        found = {n.id for s in self.region.body for n in ast.walk(s) if isinstance(n, ast.Name)}
        found -= self.made()
        if self.is_graphed():
            found = set()  # its lines make samples, and are no part of it
        for code in codes_of(self.region):
            shared = set(code.co_freevars)
            whole = self.region.inline or self.region.code.co_name == "<module>"
            if whole and code.co_filename == self.region.code.co_filename:
                shared |= set(code.co_names)
            found |= shared
        return found

    def made(self) -> set[str]:
        """Names that the capture assigns; of what is graphed, that of the graphed one."""
        body = self.region.body
        if self.is_graphed():
            line = body[0].lineno
            assigns = (n for n in ast.walk(self.body) if isinstance(n, ast.Assign) and n.lineno == line)
            return {n.id for a in assigns for t in a.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        stored = (n for s in body for n in here(s, APART) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        return {n.id for n in stored}

    def of_loops(self) -> set[str]:
        """Names that a loop gives which the capture stands in: each round has a graph of its own."""
        line = self.region.line
        loops = (n for n in ast.walk(self.body) if isinstance(n, (ast.For, ast.AsyncFor)))
        around = (n for n in loops if n.lineno <= line <= (n.end_lineno or 0))
        return {n.id for loop in around for n in ast.walk(loop.target) if isinstance(n, ast.Name)}

    def value(self, node: ast.expr | None) -> Any:
        """What a name, or an attribute of one, means, without running anything of the user's."""
        if isinstance(node, ast.Name):
            return self.region.names.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.value(node.value)
            held = attributes_of(owner)
            return next(
                (p[node.attr] for p in (held.get("_parameters"), held.get("_modules"), held) if p and node.attr in p),
                None,
            )
        return None


def codes_of(region: Region) -> Iterator[CodeType]:
    """The code of what is captured, and of the functions beside it and methods of its object that it names."""
    own, methods = region.function, methods_of(type(region.names.get("self")))
    first = code_of(own.forward if is_a(own, torch.nn.Module) else own)
    waiting, seen = [first], set[CodeType]()
    while waiting:
        code = waiting.pop()
        if code is None or code in seen or is_library(code.co_filename):
            continue
        seen.add(code)
        yield code
        for name in (*code.co_names, *code.co_freevars):
            value = region.names.get(name)
            waiting.append(methods.get(name) if value is None else code_of(value))
