"""A branch that the count of a loop's rounds decides: ``if it % 5 == 0:``, the same in round n of each call.

Where it ran more often in one call than in the next, that call had more rounds: what ends them has decided.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import CodeType

from paramgraph_kit.doctor.explain.syntax import nodes_of, tree_of

_LEAVES = (ast.Break, ast.Return, ast.Raise)


def ends_of_rounds(code: CodeType, line: int) -> int | None:
    """The line of what ends the rounds that the branch at a line counts; None where something else decides that."""
    nodes = list(nodes_of(code))
    asked = [n for n in nodes if isinstance(n, ast.If) and n.test.lineno <= line <= (n.test.end_lineno or 0)]
    branch = asked[0] if asked else None
    loops = [n for n in nodes if isinstance(n, (ast.For, ast.While)) and branch is not None and _holds(n.body, branch)]
    if branch is None or not loops:
        return None
    loop = max(loops, key=lambda n: n.lineno)
    if not _is_counted(branch.test, loop, nodes, code):
        return None
    asks = [n for n in _own(loop.body) if isinstance(n, ast.If) and any(isinstance(e, _LEAVES) for e in n.body)]
    asks = [n for n in asks if not _is_counted(n.test, loop, nodes, code)]
    if asks:
        return asks[0].lineno
    own = loop.test if isinstance(loop, ast.While) else loop.iter
    return None if _is_counted(own, loop, nodes, code) else loop.lineno


def _own(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a loop's rounds, but for those of loops within."""
    for node in body:
        yield node
        if isinstance(node, ast.If):
            yield from _own([*node.body, *node.orelse])
        elif isinstance(node, ast.With):
            yield from _own(node.body)


def _holds(body: list[ast.stmt], node: ast.AST) -> bool:
    return any(part is node for each in body for part in ast.walk(each))


def _is_counted(test: ast.expr, loop: ast.For | ast.While, nodes: list[ast.AST], code: CodeType) -> bool:
    """Whether it computes of the round's number, and of what no line changes, alone."""
    counts = set(_counts(loop, nodes))
    names = {n.id for n in ast.walk(test) if isinstance(n, ast.Name)}
    held = {n.attr for n in ast.walk(test) if isinstance(n, ast.Attribute)}
    owners = {n.value.id for n in ast.walk(test) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}
    constants = {name for name in names if name.isupper() and name not in code.co_varnames} | (owners & {"self"})
    calls = any(isinstance(n, (ast.Call, ast.Subscript)) for n in ast.walk(test))
    return not calls and names <= counts | constants and not any(_is_set(attr, code) for attr in held)


def _counts(loop: ast.For | ast.While, nodes: list[ast.AST]) -> Iterator[str]:
    """Names for the round's number: of ``range`` or ``enumerate``, or from a number on, one more in each round."""
    targets = loop.target if isinstance(loop, ast.For) else None
    call = loop.iter if isinstance(loop, ast.For) else None
    by = call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""
    given = call.args if isinstance(call, ast.Call) and by == "range" else []
    plain = all(isinstance(n, ast.Constant) for n in (*given[:1], *given[2:]) if given[1:])  # from a number on
    if isinstance(targets, ast.Name) and given and plain:
        yield targets.id
    if isinstance(targets, ast.Tuple) and by == "enumerate" and isinstance(targets.elts[0], ast.Name):
        yield targets.elts[0].id
    for node in loop.body:
        if not isinstance(node, ast.AugAssign) or not isinstance(node.target, ast.Name):
            continue
        name = node.target.id
        stores = [n for n in nodes if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)]
        begins = [n for n in nodes if isinstance(n, ast.Assign) and any(t in stores for t in n.targets)]
        plain = isinstance(node.op, (ast.Add, ast.Sub)) and isinstance(node.value, ast.Constant)
        if plain and len(stores) == 2 and len(begins) == 1 and isinstance(begins[0].value, ast.Constant):
            yield name


def _is_set(attr: str, code: CodeType) -> bool:
    """Whether something else than the making of an object gives an attribute a value, as far as the file tells."""
    tree = tree_of(code.co_filename)
    every = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)) if tree is not None else ()
    inside = (n for f in every if f.name != "__init__" for n in ast.walk(f) if isinstance(n, ast.Attribute))
    return any(n.attr == attr and isinstance(n.ctx, ast.Store) for n in inside)
