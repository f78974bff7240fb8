"""An early end of a function, or of a round, that ends nothing any more: the rest runs, and what it would change stays.

``if far: missed += 1; return`` ahead of ``self.x = new`` becomes ``near = ...`` and a ``self.x`` that is chosen.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from paramgraph_kit.doctor.explain.syntax import last_name
from paramgraph_kit.rewrite.expressions.decisions.branches import changed_where, condition_on_device
from paramgraph_kit.rewrite.expressions.decisions.counted_apart import parted
from paramgraph_kit.rewrite.expressions.decisions.hosted import is_of_the_host
from paramgraph_kit.rewrite.source.edits import Edit, locals_of, names_in
from paramgraph_kit.rewrite.source.place import Place, called, fresh

_KINDS = (ast.Assign, ast.AugAssign, ast.Expr, ast.For)
_UNTOLD = (ast.Is, ast.IsNot, ast.In, ast.NotIn)  # what no tensor tells


@dataclass(frozen=True, slots=True)
class _Gate:
    """A branch that ends what it is in, and what comes behind it."""

    node: ast.If
    ends: ast.Return | ast.Continue
    rest: list[ast.stmt]
    last: ast.Return | None


def run_the_rest(place: Place) -> list[Edit]:
    """All lines behind ``if c: return`` run, and what outlives them is what it was where ``c`` holds."""
    gate, function = _gate_of(place), place.source.function_of(place.statement)
    if gate is None or function is None or is_of_the_host(place, gate.node.test):
        return []
    ways = (parted(place, gate.node.body[:-1], _KINDS), parted(place, gate.rest, _KINDS))
    if ways[0] is None or ways[1] is None or not ways[1][0]:
        return []
    goes_on = fresh("goes_on", place.taken)
    left = f"torch.logical_not({goes_on})"
    result = _result(place, gate, goes_on)
    if result is None:
        return []
    local, lines = locals_of(function), [f"{goes_on} = torch.logical_not({condition_on_device(place, gate.node.test)})"]
    others = _names_outside(function, gate.node.body)
    for part in ways[0][0]:
        if not (made := changed_where(place, part, gate.node, left, local, others)):
            return []
        lines += made
    edits = [place.source.replace(gate.node, f"\n{place.source.indent(gate.node)}".join(lines))]
    instead = ast.If(ast.UnaryOp(ast.Not(), gate.node.test), gate.rest, [])
    others = _names_outside(function, [*gate.rest, *([gate.last] if gate.last is not None else [])])
    for part in ways[1][0]:
        asked = {name for n in ast.walk(part) if _is_written(n) for name in names_in(n)} & names_in(gate.node.test)
        if asked or not (made := changed_where(place, part, instead, goes_on, local, others)):
            return []  # a place that only the test makes sure of
        edits.append(place.source.replace(part, f"\n{place.source.indent(part)}".join(made)))
    edits += place.source.without_all(ways[1][1]) if ways[1][1] else []
    if counts := _counted(place, goes_on, ways[0][1], ways[1][1]):
        edits.append(place.source.after(ways[1][0][-1], counts))
    return edits + result


def _gate_of(place: Place) -> _Gate | None:
    node, source = place.statement, place.source
    if not isinstance(node, ast.If) or node.orelse or not isinstance(node.body[-1], (ast.Return, ast.Continue)):
        return None
    if any(isinstance(n, _UNTOLD) or _asks_the_host(n) for n in ast.walk(node.test)):
        return None
    ends, block, above = node.body[-1], source.block_of(node), source.parents[node]
    rest = block[block.index(node) + 1 :]
    if isinstance(ends, ast.Continue):
        return _Gate(node, ends, rest, None) if isinstance(above, ast.For) and node in above.body else None
    while isinstance(above, ast.With) and source.block_of(above)[-1] is above:
        above = source.parents[above]
    if above is not source.function_of(node):
        return None
    last = rest[-1] if rest and isinstance(rest[-1], ast.Return) else None
    return _Gate(node, ends, rest[:-1] if last is not None else rest, last)


def _asks_the_host(node: ast.AST) -> bool:
    names = ("isinstance", "hasattr", "callable", "random", "time", "perf_counter", "monotonic")
    return isinstance(node, ast.Call) and called(node) in names


def _is_written(node: ast.AST) -> bool:
    """Whether a node is the index of what is written: ``i`` of ``x[i] = 3``."""
    return isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)


def _names_outside(function: ast.AST, block: list[ast.stmt]) -> set[str]:
    inside = {n for part in block for n in ast.walk(part)}
    return {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and n not in inside}


def _result(place: Place, gate: _Gate, goes_on: str) -> list[Edit] | None:
    """How the result is chosen; None where it cannot be."""
    one = gate.ends.value if isinstance(gate.ends, ast.Return) else None
    other = gate.last.value if gate.last is not None else None
    texts = ["None" if each is None else place.text(each) for each in (one, other)]
    if texts[0] == texts[1]:  # what it reads is what it was
        return []
    if one is None or other is None or not _is_unread(place):
        return None
    if not isinstance(one, ast.Constant) or not isinstance(one.value, bool):
        return None
    if isinstance(other, ast.Constant) and other.value is not one.value and isinstance(other.value, bool):
        return [place.source.replace(other, f"torch.logical_not({goes_on})" if one.value else goes_on)]
    if isinstance(other, ast.Name) and not one.value and other.id.startswith("goes_on"):  # of a way out behind it
        return [place.source.replace(other, f"{goes_on} & {other.id}")]
    return None


def _is_unread(place: Place) -> bool:
    """Whether all calls of the function are statements, so that nobody asks what it returns."""
    function = place.source.function_of(place.statement)
    if function is None or function.name == place.entry.rpartition(".")[2]:
        return False
    named = [n for n in ast.walk(place.source.tree) if last_name(n) == function.name]
    above = [place.source.parents.get(n) for n in named]
    calls = [n for n, each in zip(above, named, strict=True) if isinstance(n, ast.Call) and n.func is each]
    return len(calls) == len(named) > 0 and all(isinstance(place.source.parents.get(n), ast.Expr) for n in calls)


def _counted(place: Place, goes_on: str, yes: list[ast.stmt], no: list[ast.stmt]) -> list[str]:
    """What the host counts, behind all that is computed."""
    first, second = (no, yes) if no else (yes, no)
    if not first:
        return []
    lines = [f"if {goes_on}:" if no else f"if not {goes_on}:", *(f"    {place.text(each)}" for each in first)]
    return [*lines, *(["else:", *(f"    {place.text(each)}" for each in second)] if second else [])]
