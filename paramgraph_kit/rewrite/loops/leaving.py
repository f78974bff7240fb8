"""Loops that a function leaves from, and loops that only what they ask in the middle ends.

``if entropy < threshold: exits.append(i); return logits`` is done behind the launch, with what it read in the round in
which the device has decided so; all rounds run. ``while True:`` with ``if err < tol or n >= 20: break`` has 20 rounds.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence

from paramgraph_kit.rewrite.around.guards import only_tells
from paramgraph_kit.rewrite.expressions.decisions.hosted import is_given
from paramgraph_kit.rewrite.loops.early import given_to, name_of
from paramgraph_kit.rewrite.source.edits import Source, first_line, names_in, within
from paramgraph_kit.rewrite.source.place import Place, called, integer


def is_leave(node: ast.stmt) -> bool:
    """``if c: seen.append(i); return x``: a branch that tells something, and returns."""
    if not isinstance(node, ast.If) or node.orelse or not isinstance(node.body[-1], ast.Return):
        return False
    return all(map(only_tells, node.body[:-1]))


def read_in(node: ast.If) -> list[str]:
    """The names that what a branch does reads."""
    return sorted({name for part in node.body for name in names_in(part)})


def counted_by(loop: ast.For | ast.While) -> str:
    """``i`` of ``for i in range(n)`` and of ``for i, x in enumerate(xs)``, or ""."""
    call, target = (loop.iter, loop.target) if isinstance(loop, ast.For) else (None, None)
    if not isinstance(call, ast.Call) or target is None:
        return ""
    if called(call) == "enumerate" and isinstance(target, ast.Tuple):
        target = target.elts[0]
    return target.id if called(call) in ("range", "enumerate") and isinstance(target, ast.Name) else ""


def begun_at(loop: ast.For | ast.While, text: str) -> str:
    """What asks whether a counted round is the first, or "" where that is not told."""
    call = loop.iter if isinstance(loop, ast.For) else None
    if not isinstance(call, ast.Call) or not text:
        return ""
    if called(call) == "enumerate":
        return f"{text} == 0" if len(call.args) == 1 and not call.keywords else ""
    if len(call.args) > 1 and integer(call.args[0]) is None:
        return ""
    return f"{text} == {integer(call.args[0]) if len(call.args) > 1 else 0}" if len(call.args) < 3 else ""


def lines_of(source: Source, node: ast.If) -> Iterator[str]:
    """What a branch does, as lines of another one."""
    for part in node.body:
        depth = len(source.indent(part))
        for line in source.lines[first_line(part) - 1 : part.end_lineno or part.lineno]:
            yield f"    {line[depth:].rstrip()}"


def bounded(
    place: Place, loop: ast.While, breaks: Sequence[ast.stmt], known: Collection[str]
) -> tuple[str, str, ast.AugAssign] | None:
    """Of ``while True`` its counter, how many rounds there are at most, and what counts; None where nothing tells."""
    for part in breaks:
        assert isinstance(part, ast.If)
        either = isinstance(part.test, ast.BoolOp) and isinstance(part.test.op, ast.Or)
        for test in part.test.values if either and isinstance(part.test, ast.BoolOp) else [part.test]:
            found = _most(place, loop, part, test, known)
            if found is not None:
                return found
    return None


def _most(
    place: Place, loop: ast.While, part: ast.stmt, test: ast.expr, known: Collection[str]
) -> tuple[str, str, ast.AugAssign] | None:
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.left, ast.Name):
        return None
    name, end, sign = test.left.id, test.comparators[0], test.ops[0]
    counts = [n for n in loop.body if isinstance(n, ast.AugAssign) and name_of(n) == name]
    every = [n for n in within(loop) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)]
    function = place.source.function_of(loop)
    begun = [integer(value) for node, value in given_to(function, name)] if function is not None else []
    if len(counts) != 1 or len(every) != 1 or len(begun) != 1 or begun[0] is None or name not in known:
        return None
    one = counts[0]
    adds = isinstance(one.op, ast.Add) and integer(one.value) == 1
    if not adds or not is_given(place, end) or not isinstance(sign, (ast.GtE, ast.Gt, ast.Eq)):
        return None
    more = isinstance(sign, ast.Gt) + (loop.body.index(one) > loop.body.index(part)) - begun[0]
    text = place.text(end) if isinstance(end, (ast.Name, ast.Constant, ast.Attribute)) else f"({place.text(end)})"
    return name, f"{text} {'+' if more > 0 else '-'} {abs(more)}" if more else text, one
