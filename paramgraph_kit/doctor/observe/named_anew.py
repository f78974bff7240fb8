"""A captured tensor's name that is given what comes next, which nothing reads: the graph has the old numbers."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import replace
from types import CodeType
from typing import Any

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, LOOPS, last_name, tree_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.ran import has_run
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.trace.model import Failure, Frame

_TAKEN = (ast.Subscript, ast.Attribute, ast.Constant)  # from a table of graphs; or let go
_TAKES = ("get", "pop", "popleft")


def named_anew(body: ast.AST, names: Collection[str], first: int) -> Iterator[tuple[str, ast.Assign]]:
    """Assignments ahead of a replay that give one of some names what nobody reads, behind the line ``first``.

    They stand in the function that captures, or in one that is defined there and has a variable of that name.
    """
    inner = [n for n in ast.walk(body) if isinstance(n, FUNCTIONS[:2]) and n is not body]
    for function in (body, *inner):
        nodes = [n for n in ast.walk(function) if n is not function]
        shared = {name for n in nodes if isinstance(n, (ast.Nonlocal, ast.Global)) for name in n.names}
        given = {n.arg for n in ast.walk(getattr(function, "args", ast.Pass())) if isinstance(n, ast.arg)}
        closed = {id(n) for each in inner if each is not function for n in ast.walk(each)}
        calls = [n for n in nodes if isinstance(n, ast.Call) and id(n) not in closed]
        replays = [n for n in calls if last_name(n.func) == "replay"]
        for node in (n for n in nodes if isinstance(n, ast.Assign) and id(n) not in closed):
            name = _name_of(node)
            if name not in names or name in shared | given or node.lineno <= first:
                continue
            rounds = [n for n in nodes if isinstance(n, LOOPS) and n.lineno <= node.lineno <= (n.end_lineno or 0)]
            reads = [n for n in nodes if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
            read = any(
                id(n) in closed or function is not body or n.lineno > node.lineno or any(_holds(r, n) for r in rounds)
                for n in reads
            )
            if not read and any(r.lineno > node.lineno for r in replays):
                yield name, node


def told_in_loops(file: str, ran: Collection[CodeType]) -> Iterator[Failure]:
    """Inputs that a loop of a file only gives another name, in a function that has run."""
    for function, node in named_in_loops(tree_of(file) or ast.Module([], [])):
        name, given, line = ast.unparse(node.targets[0]), ast.unparse(node.value), ast.unparse(node)
        if has_run(ran, file, node.lineno):
            frame = Frame(display_name(file), node.lineno, function, line)
            text = f"{name} is another name of {given} here, and nothing is written to what the graph reads"
            fix = f"before  {line}\nafter   {name}.copy_({given})"
            yield replace(BY_ID["stale-input"].failure(text, frame), fix=fix)


def named_in_loops(tree: ast.AST) -> Iterator[tuple[str, ast.Assign]]:
    """``for static, new in zip(self.static, given): static = new`` ahead of a replay, each with the function's name.

    Nothing is written then: the name of a round means another tensor, which nobody reads, until the round ends.
    """
    for function in (n for n in ast.walk(tree) if isinstance(n, FUNCTIONS[:2])):
        nodes = [*ast.walk(function)]
        calls = [n for n in nodes if isinstance(n, ast.Call) and last_name(n.func) == "replay"]
        for loop in (n for n in nodes if isinstance(n, ast.For) and any(c.lineno > n.lineno for c in calls)):
            own = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
            read = [n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
            for node in (n for n in loop.body if isinstance(n, ast.Assign)):
                name, given = _name_of(node), {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
                later = any(n.id == name and (n.lineno > node.lineno or n.lineno < loop.lineno) for n in read)
                if name in own and len(own) > 1 and given & (own - {name}) and not later:
                    yield function.name, node


def _name_of(node: ast.Assign) -> str:
    target, value = node.targets[0], node.value
    taken = isinstance(value, _TAKEN) or (isinstance(value, ast.Call) and last_name(value.func) in _TAKES)
    return target.id if isinstance(target, ast.Name) and len(node.targets) == 1 and not taken else ""


def _holds(node: Any, inner: Any) -> bool:
    return bool(node.lineno <= inner.lineno <= (node.end_lineno or 0))
