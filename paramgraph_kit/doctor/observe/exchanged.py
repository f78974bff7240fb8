"""Words for tensors that a line hands on among themselves, ``a, b = b, a``: in place, none before it is read."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from paramgraph_kit.doctor.explain.syntax import last_name, pairs_of


def exchanged(node: Any, is_read: Callable[[ast.expr], bool]) -> str:
    """The whole line written in place, where what one target gets is made of another; "" of other lines.

    ``is_read``: whether a graph reads what a target had, which is written there; the other targets are names as ever.
    """
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return ""
    into, given = node.targets[0], node.value
    if not (isinstance(into, ast.Tuple) and isinstance(given, ast.Tuple) and len(into.elts) == len(given.elts)):
        return ""
    if any(isinstance(each, ast.Starred) for each in (*into.elts, *given.elts)):
        return ""
    targets, values = [*map(ast.unparse, into.elts)], [*map(ast.unparse, given.elts)]
    named = [{ast.unparse(n) for n in ast.walk(each) if isinstance(n, ast.expr)} for each in given.elts]
    if not any(target in each for i, target in enumerate(targets) for j, each in enumerate(named) if i != j):
        return ""
    read = {target for target, each in zip(targets, into.elts, strict=True) if is_read(each)}
    if len(targets) == 2 and values == targets[::-1]:
        first, second = targets if targets[0] in read else values
        last = f"{second}.copy_(held)" if second in read else f"{second} = held"
        return f"held = {first}.clone(); {first}.copy_({second}); {last}"
    kept = ", ".join(f"{value}.clone()" if value in read else value for value in values)
    lines = [f"{t}.copy_(held[{i}])" if t in read else f"{t} = held[{i}]" for i, t in enumerate(targets)]
    return "; ".join([f"held = [{kept}]", *lines])


def exchanged_in(text: str) -> str:
    """The same of a line's text, of which a graph reads what is handed on, and not a number that is counted there.

    >>> exchanged_in("a.u, a.v = a.v, a.u")
    'held = a.u.clone(); a.u.copy_(a.v); a.v.copy_(held)'
    >>> exchanged_in("a.u, a.v, a.n = a.v, a.u, a.n + 1")
    'held = [a.v.clone(), a.u.clone(), a.n + 1]; a.u.copy_(held[0]); a.v.copy_(held[1]); a.n = held[2]'
    """
    with suppress(SyntaxError, ValueError):
        statements = ast.parse(text.strip()).body
        node = statements[0] if len(statements) == 1 else None
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
            return ""
        if any(isinstance(each, ast.Constant) for each in node.value.elts):
            return ""  # which nothing can be copied from
        plain = ast.Name | ast.Attribute | ast.Subscript
        into = getattr(node.targets[0], "elts", [])
        read = [each for each in node.value.elts if isinstance(each, plain)]
        read += [to for to, given in zip(into, node.value.elts, strict=False) if isinstance(given, plain)]
        paths = {ast.unparse(each) for each in read}
        return exchanged(node, lambda each: ast.unparse(each) in paths)
    return ""


def with_rest(fix: str, node: ast.AST, target: ast.expr | None, told: Collection[str]) -> str:
    """Words that write one part of ``a, b = x, y`` in place, with the other parts; ``told``: those with words too."""
    pairs = pairs_of(node)
    rest = [(t, ast.unparse(v)) for t, v in pairs if t is not target and ast.unparse(t) not in told]
    if not fix or len(rest) in (0, len(pairs)) or "this line as it is" in fix or "held = " in fix:
        return fix
    return f"{fix}; and {', '.join(f'`{ast.unparse(t)} = {value}`' for t, value in rest)} as it is"


def assigns(call: ast.Call) -> bool:
    """Whether a call gives parameters the memory of a dictionary's: a plain ``load_state_dict`` copies into theirs."""
    return last_name(call.func) == "load_state_dict" and (len(call.args) > 2 or _may_assign(call.keywords))


def _may_assign(keywords: list[ast.keyword]) -> bool:
    given = [k.value for k in keywords if k.arg in (None, "assign")]
    return any(not isinstance(each, ast.Constant) or bool(each.value) for each in given)
