"""Numbers that are the same in every call: of numbers, and of what loops count or go through."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import path_of
from paramgraph_kit.rewrite.source.place import NUMBER, Place, called, is_number


def is_fixed(place: Place, node: ast.expr) -> bool:
    """Whether an expression is a number that is the same in every call."""
    if isinstance(node, ast.BinOp):
        return is_fixed(place, node.left) and is_fixed(place, node.right)
    if isinstance(node, ast.Name):
        function = place.source.function_of(place.statement) or place.statement
        stores = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == node.id and _is_store(n)]
        loops = [n for n in ast.walk(function) if isinstance(n, ast.For) and any(s in _targets(n) for s in stores)]
        return bool(loops) and len(stores) == len(loops) and all(_goes_through(place, n, node.id) for n in loops)
    return is_number(node)


def _is_store(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _targets(loop: ast.For) -> list[ast.AST]:
    return list(ast.walk(loop.target))


def _goes_through(place: Place, loop: ast.For, name: str) -> bool:
    """Whether a loop gives a name the numbers of a range, or of a list that nothing changes."""
    source, target = loop.iter, loop.target
    call = source if isinstance(source, ast.Call) and isinstance(source.func, ast.Name) else None
    counted = call is not None and called(call) == "enumerate" and len(call.args) == 1
    if call is not None and counted and isinstance(target, ast.Tuple) and len(target.elts) == 2:
        number, target = target.elts
        if isinstance(number, ast.Name) and number.id == name:
            return True
        source = call.args[0]
        call = source if isinstance(source, ast.Call) and isinstance(source.func, ast.Name) else None
    if call is not None and called(call) == "reversed" and len(call.args) == 1:
        source = call.args[0]
        call = source if isinstance(source, ast.Call) and isinstance(source.func, ast.Name) else None
    if not isinstance(target, ast.Name) or target.id != name:
        return False
    return (call is not None and called(call) == "range") or _is_constant(place, source)


def _is_constant(place: Place, node: ast.expr) -> bool:
    path = path_of(node)
    root, _, last = path.rpartition(".")
    held = place.space.get(path) if not root else place.attributes.get(last)
    if not path or (not root and place.is_local(path)) or not isinstance(held, (list, tuple)):
        return False
    every = list(ast.walk(place.source.tree))
    written = [n.value for n in every if isinstance(n, ast.Subscript) and not isinstance(n.ctx, ast.Load)]
    written += [n.func.value for n in every if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    changed = {path_of(each).rpartition(".")[2] for each in written}
    given = [n for n in every if isinstance(n, (ast.Name, ast.Attribute)) and not isinstance(n.ctx, ast.Load)]
    times = sum(path_of(n).rpartition(".")[2] == last for n in given)
    return times == 1 and last not in changed and all(type(each) in NUMBER for each in held)
