"""Advice for a number that a step reads as it was, sets, and reads again: no tensor that is filled ahead has both."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.digits import zeros_for
from paramgraph_kit.rewrite.source.edits import Function, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called, fresh

_READS = ("item", "tolist")
_OF_DEVICE = "read from the device"


def read_on_both_sides(place: Place) -> str:
    """``a = f(x, self.p)``, ``self.p = min(1, self.p + d)``, ``b = f(y, self.p)``; also where a helper sets it."""
    node, function = place.statement, place.source.function_of(place.statement)
    if place.failure.code != "host-counter" or function is None or place.loops():
        return ""
    target = (
        node.target if isinstance(node, ast.AugAssign) else node.targets[0] if isinstance(node, ast.Assign) else None
    )
    if not isinstance(target, ast.Attribute) or not isinstance(node, (ast.Assign, ast.AugAssign)):
        return ""
    step, path, at = function, path_of(target), node.lineno
    if place.helper:
        found = _call_in_the_step(place, function.name)
        if found is None or not path.startswith("self."):
            return ""
        step, call = found
        path, at = f"{path_of(call.func).rpartition('.')[0]}.{path.removeprefix('self.')}", call.lineno
    before, after = _computed_with(place, step, path, at)
    if not before or not after:
        return ""
    says = f"{_lines(before)} {'reads' if len(before) == 1 else 'read'} `{path}` as it was, and {_lines(after)} "
    says += "as it is made here, so that no tensor which is filled before the launch has both"
    if _OF_DEVICE in place.failure.message or _reads_the_device(function):
        return (
            f"{says}: end what is captured ahead of line {at}, do that line behind its launch, and launch what follows "
            f"as a graph of its own, for which the new `{path}` is written into a tensor of its own first"
        )
    if place.local(node.value) - {"self"}:
        return ""
    name = fresh(f"{path.rpartition('.')[2]}_in", place.taken)
    other = fresh(f"{name}_behind", place.taken)
    text = next((place.text(n) for n in step.body if n.lineno == at), f"line {at}")
    return (
        f"{says}: once `{name}, {other} = ({zeros_for(place)} for _ in range(2))`, before each "
        f"launch `{name}.fill_({path})`, then `{text}`, which is taken out of the step, and `{other}.fill_({path})`; "
        f"`{name}` for `{path}` at {_lines(before)}, `{other}` at {_lines(after)}"
    )


def _call_in_the_step(place: Place, name: str) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, ast.Call] | None:
    """The one call of a method in the step, as a statement of its own."""
    steps = [n for n in ast.walk(place.source.tree) if isinstance(n, Function) and n.name == place.entry]
    found = [
        (step, n.value)
        for step in steps
        for n in step.body
        if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call) and called(n.value) == name
    ]
    return found[0] if len(found) == 1 and isinstance(found[0][1].func, ast.Attribute) else None


def _computed_with(place: Place, step: ast.AST, path: str, at: int) -> tuple[list[int], list[int]]:
    """The lines of a step before and behind a line that give a number to a call, or compute with it."""
    lines = set[int]()
    for node in (n for part in getattr(step, "body", []) for n in within(part)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and path_of(node) == path:
            above = place.source.parents.get(node)
            if isinstance(above, (ast.Call, ast.BinOp, ast.keyword)) and not _is_the_other_way(place, node, at):
                lines.add(node.lineno)
    return sorted(n for n in lines if n < at), sorted(n for n in lines if n > at)


def _is_the_other_way(place: Place, node: ast.AST, at: int) -> bool:
    """Whether a branch runs either what a node stands in or a line."""
    while (above := place.source.parents.get(node)) is not None:
        if isinstance(above, ast.If):
            here = next((block for block in (above.body, above.orelse) if node in block), None)
            blocks = [b for b in (above.body, above.orelse) if b and b[0].lineno <= at <= (b[-1].end_lineno or at)]
            if here is not None and blocks and blocks[0] is not here:
                return True
        node = above
    return False


def _reads_the_device(function: ast.AST) -> bool:
    calls = (n for n in ast.walk(function) if isinstance(n, ast.Call))
    return any(called(n) in _READS for n in calls)


def _lines(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"line {numbers[0]}"
    return f"lines {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
