"""A part of a tensor that ``narrow`` names, as the slice that it is: ``x.narrow(0, 0, n)`` is ``x[:n]``."""

from __future__ import annotations

import ast

from paramgraph_kit.doctor.explain.syntax import last_name

_MOST_DIMS = 8


def as_slice(node: ast.AST) -> ast.Subscript | None:
    """The slice that an expression is, with its place in the file; None for what is none."""
    if isinstance(node, ast.Subscript):
        return node
    if not isinstance(node, ast.Call) or last_name(node.func) != "narrow" or not isinstance(node.func, ast.Attribute):
        return None
    given = dict(zip(("dim", "start", "length"), node.args, strict=False))
    of: ast.expr = node.func.value
    if isinstance(of, ast.Name) and of.id == "torch" and len(node.args) > 1:
        of, given = node.args[0], dict(zip(("dim", "start", "length"), node.args[1:], strict=False))
    given |= {each.arg: each.value for each in node.keywords if each.arg}
    dim, start, length = (given.get(name) for name in ("dim", "start", "length"))
    if not isinstance(dim, ast.Constant) or type(dim.value) is not int or not 0 <= dim.value < _MOST_DIMS:
        return None
    if start is None or length is None:
        return None
    begin = ast.unparse(start)
    part = f":{ast.unparse(length)}" if begin == "0" else f"{begin}:{begin} + {ast.unparse(length)}"
    made = ast.parse(f"{ast.unparse(of)}[{', '.join([':'] * dim.value + [part])}]", mode="eval").body
    for each in ast.walk(made):
        ast.copy_location(each, node)
    return made if isinstance(made, ast.Subscript) else None
