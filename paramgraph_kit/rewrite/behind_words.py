"""What to say of a line that belongs behind each launch: what a copy there needs, and gradients that it zeroes."""

from __future__ import annotations

import ast

from paramgraph_kit.doctor.observe.gradients import nulls
from paramgraph_kit.rewrite.source.edits import Function, Source, within
from paramgraph_kit.rewrite.source.place import called

BEHIND = "the same behind each launch, where nothing waits for it"


def pinned(source: Source, statement: ast.stmt) -> str:
    """What a copy into memory of the host's needs, where a statement is one."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "copy_":
        return BEHIND
    host = source.bracketed(call.func.value)
    return f"the same with `{host} = {host}.pin_memory()` once before, and non_blocking=True; or behind each launch"


def with_gradients_kept(source: Source, statement: ast.stmt, said: str) -> str:
    """``if n % 4 == 0: opt.step(); opt.zero_grad()`` there: a launch goes on with the gradients of its capture."""
    inside = [n for n in within(statement) if isinstance(n, ast.Call)]
    names = {called(call) for call in inside} - {"step", "zero_grad", "backward"}
    for function in (n for n in source.parents if isinstance(n, Function) and n.name in names):
        inside += [n for part in function.body for n in within(part) if isinstance(n, ast.Call)]
    for call in inside:
        if called(call) == "zero_grad" and isinstance(call.func, ast.Attribute) and nulls(call):
            kept = f"`{source.text(call.func)}(set_to_none=False)` at line {call.lineno}"
            first, then, rest = said.partition(";")
            return f"{first}, with {kept}, as a launch adds to the gradients of its capture{then}{rest}"
    return said
