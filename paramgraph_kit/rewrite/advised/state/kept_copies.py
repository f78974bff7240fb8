"""Advice for what a step keeps of its results or arguments: copies are kept, behind each launch."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import locals_of, names_in
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.place import Place, fresh, renamed


def kept_copies(place: Place) -> str:
    """``buffer.append((x, y))``: whose memory the next launch writes, and no replay runs the line."""
    node, function = place.statement, place.source.function_of(place.statement)
    if place.failure.code != "output-alias" or function is None or not isinstance(node, (ast.Expr, ast.Assign)):
        return ""
    read = [n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    held = sorted({n.id for n in read} & {*place.tensors, *place.seen} & locals_of(function))
    if not held or node.lineno != node.end_lineno:
        return ""
    line, given = place.text(node), dict[str, str]()
    for call in _of_the_step(place, node, {*held, *arguments_of(function)}):
        name = fresh("kept", place.taken | given.keys())
        given[name] = place.text(call)
        line = line.replace(given[name], f"{name}.clone()")
    left = {n.id for n in ast.walk(ast.parse(line)) if isinstance(n, ast.Name)}
    held = [name for name in held if name in left]
    line = renamed(line, {name: f"{name}.clone()" for name in held})
    made = [f"`{name} = {text}`" for name, text in given.items()]
    made += [f"`{name}`" for name in held if name not in arguments_of(function)]
    above = [n for n in place.source.above(node) if isinstance(n, ast.If)]
    asked = f", as the `if` of line {above[-1].lineno} decides," if above else ""
    return (
        f"take it out{', return ' * bool(made)}{', '.join(made)}, and behind each launch{asked} `{line}`, which keeps "
        "today's"
    )


def _of_the_step(place: Place, node: ast.stmt, known: set[str]) -> list[ast.Call]:
    """Calls of what only the step has, as ``dist.log_prob(a)``: what they give leaves the graph under a name."""
    calls = (n for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute))
    own = (n for n in calls if n is not getattr(node, "value", None))
    return [n for n in own if place.local(n.func) - known and not names_in(n.func) & place.space.keys()]
