"""Numbers that a line gives to ``math.exp``, or to a function of the user's that asks by it: no tensor goes there."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.advised.host.several_numbers import computes_a_number
from paramgraph_kit.rewrite.source.edits import Function, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called

_ASK = ("int", "float", "round", "min", "max")


def whole_call(place: Place, path: str) -> ast.Call | None:
    """The outermost call of the host's in which a statement reads a number, where it reads that nowhere else.

    ``ricker(self.n * DT)``, where ``ricker`` has ``math.exp(-a)``: all of it is one number.
    """
    read = [n for n in ast.walk(place.statement) if _is_read(n, path)]
    found = [_outermost(place, n) for n in read]
    texts = {place.text(each) for each in found if each is not None}
    return found[0] if found and None not in found and len(texts) == 1 else None


def is_asked(place: Place, path: str) -> bool:
    """Whether a line of the function gives a number to what would ask a tensor for it."""
    function = place.source.function_of(place.statement)
    nodes = [n for part in (function.body if function is not None else ()) for n in within(part)]
    return any(_is_read(n, path) and _outermost(place, n) is not None for n in nodes)


def counting_line(place: Place, path: str) -> ast.AugAssign | None:
    """The one line of the function that counts it, in no loop and no branch."""
    function = place.source.function_of(place.statement)
    body = function.body if function is not None else []
    found = [n for n in body if isinstance(n, ast.AugAssign) and path_of(n.target) == path]
    return found[0] if len(found) == 1 else None


def _is_read(node: ast.AST, path: str) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load) and path_of(node) == path


def _outermost(place: Place, node: ast.AST) -> ast.Call | None:
    """The outermost call around a number which the host answers by numbers alone."""
    found: ast.Call | None = None
    above: ast.AST | None = place.source.parents.get(node)
    while isinstance(above, (ast.BinOp, ast.UnaryOp, ast.Call)):
        if isinstance(above, ast.Call):
            if not _asks(place, above):
                break
            found = above
        node, above = above, place.source.parents.get(above)
    return found if found is not None and all(_is_number(place, n) for n in _reads(found)) else None


def _reads(call: ast.Call) -> list[ast.expr]:
    """Names and attributes that the arguments of a call read, as they are written."""
    nodes = [n for each in (*call.args, *(k.value for k in call.keywords)) for n in ast.walk(each)]
    functions = {part for n in nodes if isinstance(n, ast.Call) for part in ast.walk(n.func)}
    inner = {n.value for n in nodes if isinstance(n, ast.Attribute)}
    return [n for n in nodes if isinstance(n, (ast.Name, ast.Attribute)) and n not in functions and n not in inner]


def _is_number(place: Place, node: ast.expr) -> bool:
    path = path_of(node)
    return path.startswith(("math.", "np.")) or type(place.value(path)) in (int, float)


def _asks(place: Place, call: ast.Call) -> bool:
    if path_of(call.func).startswith("math.") or (isinstance(call.func, ast.Name) and call.func.id in _ASK):
        return True
    named = [n for n in ast.walk(place.source.tree) if isinstance(n, Function) and n.name == called(call)]
    if len(named) != 1 or not path_of(call.func) or not computes_a_number(place, named[0]):
        return False
    inside = [n for part in named[0].body for n in within(part)]
    calls = (n for n in inside if isinstance(n, ast.Call))
    asks = any(path_of(n.func).startswith("math.") or called(n) in _ASK for n in calls)
    return asks or any(isinstance(n, (ast.If, ast.IfExp, ast.Compare)) for n in inside)
