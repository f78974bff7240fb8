"""Advice for a number of the host's that scales a tensor of few bits: ``x * s`` where ``x`` is of bfloat16.

Eager multiplies by the whole number and rounds once. A tensor without dimensions takes the other's dtype, and is
rounded before; one of a single element does not, and the product is rounded as eager's.
"""

from __future__ import annotations

import ast
from copy import deepcopy

import torch

from paramgraph_kit.rewrite.source.edits import heads, path_of
from paramgraph_kit.rewrite.source.place import Form, Place, called

_NARROW = (torch.bfloat16, torch.float16)
_BY = (ast.Mult, ast.Div)  # in sums eager itself rounds the number, on the CPU
_CALLED = ("mul", "div", "multiply", "divide", "true_divide")


def scales_narrow(place: Place, name: str, given: str) -> str:
    """What stands for ``x * s`` with a tensor for ``s``: bit for bit what eager gives with the number; else ""."""
    uses = [n for n in heads(place.statement) if isinstance(n, ast.Name) and n.id == name and _is_read(n)]
    found = list[str]()
    for use in uses:
        above = place.source.parents.get(use)
        if isinstance(above, ast.AugAssign) and above.value is use and isinstance(above.op, _BY):
            if not _is_narrow(place, above.target, above):
                return ""
            found.append(f"`{given}[None]` for `{name}`")
        elif isinstance(above, ast.expr) and (tensor := _scaled(above, use)) is not None:
            if not _is_narrow(place, tensor, above):
                return ""
            new = _with(above, use, given)
            if isinstance(above, ast.Call) and called(above).endswith("_"):
                found.append(f"`{new}` for `{place.text(above)}`")
            else:
                found.append(f"`({new}).to({place.source.bracketed(tensor)}.dtype)` for `{place.text(above)}`")
        else:
            return ""
    return f"here {' and '.join(dict.fromkeys(found))}" if found else ""


def _is_read(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)


def _scaled(above: ast.AST | None, use: ast.expr) -> ast.expr | None:
    """The other operand of a product, or of a quotient by the number."""
    if isinstance(above, ast.BinOp) and isinstance(above.op, _BY):
        return above.left if above.right is use else above.right if isinstance(above.op, ast.Mult) else None
    if not isinstance(above, ast.Call) or above.keywords or not isinstance(above.func, ast.Attribute):
        return None
    if called(above).removesuffix("_") not in _CALLED:
        return None
    every = above.args if path_of(above.func.value) == "torch" else [above.func.value, *above.args]
    return every[0] if len(every) == 2 and every[1] is use else None


def _is_narrow(place: Place, node: ast.expr, scaled: ast.AST) -> bool:
    """Whether it is a tensor of few bits with a dimension: an attribute, or a name that was nothing else before."""
    path = path_of(node)
    if isinstance(node, ast.Name):
        function = place.source.function_of(place.statement)
        every = list(ast.walk(function)) if function is not None else []
        given = [n for n in every if isinstance(n, ast.arg) and n.arg == path]
        written = [n for n in every if isinstance(n, ast.Name) and n.id == path and not _is_read(n)]
        own = place.statement.value is scaled if isinstance(place.statement, ast.Assign) else scaled is place.statement
        own_targets = set(map(id, ast.walk(place.statement))) if own else set[int]()
        if len(given) + sum(id(n) not in own_targets for n in written) > 1:
            return False
        form = place.form(path)
    else:
        known = place.value(path) if isinstance(node, ast.Attribute) else None
        form = Form.of(known) if isinstance(known, torch.Tensor) else None
    return form is not None and form.dtype in _NARROW and bool(form.shape)


def _with(node: ast.expr, use: ast.Name, given: str) -> str:
    """A product with a tensor of one element for its number."""
    new = deepcopy(node)
    for old, part in zip(ast.walk(node), ast.walk(new), strict=True):
        if old is use and isinstance(part, ast.Name):
            part.id = f"{given}[None]"
    return ast.unparse(new)
