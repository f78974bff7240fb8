"""Numbers of a loop's rounds, where two calls ran other rounds: what a draw decides there is the branch alone.

``for i, layer in enumerate(layers): if random.random() < 0.3: continue`` runs lines of round 1 in one call and of
round 3 in the next, and these stand beside each other.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable
from types import CodeType

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of
from paramgraph_kit.trace.model import Failure, Frame

_VALUES = ("host-random", "scalar-frozen", "size-frozen")
_DRAWS = ("rand", "choice", "shuffle", "gauss", "normal", "sample", "uniform", "integers", "permutation")


def without_rounds(found: Iterable[Failure], codes: Collection[CodeType]) -> list[Failure]:
    """The same without numbers that a loop's round gives, where a branch in that loop is told."""
    found = list(found)
    branches = [f.frame for f in found if f.code == "branch-frozen" and f.frame is not None]
    return [f for f in found if not (f.code in _VALUES and f.frame and _is_of_round(f, f.frame, branches, codes))]


def _is_of_round(failure: Failure, at: Frame, branches: list[Frame], codes: Collection[CodeType]) -> bool:
    if " in one call and " not in failure.message or " tensors in one call" in failure.message:
        return False
    for code in codes:
        if code.co_name != at.function or not code.co_firstlineno <= at.line:
            continue
        nodes = list(nodes_of(code))
        drawn = _drawn(nodes)
        read = _read_on(nodes, at.line)
        for loop in nodes:
            if not isinstance(loop, ast.For) or not loop.lineno < at.line <= (loop.end_lineno or 0):
                continue
            rounds = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
            asked = {n.lineno for n in ast.walk(loop) if isinstance(n, ast.If)}
            is_asked = any(b.function == at.function and b.line in asked for b in branches)
            iterated = {last_name(n) for n in ast.walk(loop.iter)}
            if is_asked and read & rounds and not (read | iterated) & drawn and not _draws_in(loop.iter):
                return True
    return False


def _read_on(nodes: list[ast.AST], line: int) -> set[str]:
    """The names that the statements of a line read."""
    on_line = (n for n in nodes if isinstance(n, ast.stmt) and n.lineno <= line <= (n.end_lineno or 0))
    plain = [n for n in on_line if not hasattr(n, "body")]
    return {last_name(n) for each in plain for n in ast.walk(each)} - {""}


def _draws_in(node: ast.AST) -> bool:
    calls = (last_name(n.func) for n in ast.walk(node) if isinstance(n, ast.Call))
    return any(word in name for name in calls for word in _DRAWS)


def _drawn(nodes: list[ast.AST]) -> set[str]:
    """Names that a draw is given to, or that it shuffles, what is computed of these, and the words of draws."""
    draws = [n for n in nodes if isinstance(n, ast.Call) and any(word in last_name(n.func) for word in _DRAWS)]
    found = {last_name(n.func) for n in draws}
    found |= {last_name(given) for n in draws for given in n.args} - {""}
    given = [n for n in nodes if isinstance(n, (ast.Assign, ast.AugAssign, ast.NamedExpr))]
    while True:
        more = {
            last_name(part)
            for n in given
            if {last_name(part) for part in ast.walk(n.value)} & found
            for target in (n.targets if isinstance(n, ast.Assign) else [n.target])
            for part in ast.walk(target)
        } - {"", "self"}
        if more <= found:
            return found
        found |= more
