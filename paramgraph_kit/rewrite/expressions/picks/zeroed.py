"""Rows that a mask leaves out of what weights are multiplied with, as zeros: a row's own inf or nan would come back.

Where a pick becomes all rows, what is left out is masked behind the weights too. Its gradient is 0 there, and 0 times
inf is nan in the gradients of the weights.
"""

from __future__ import annotations

import ast

import torch

from paramgraph_kit.doctor.explain.syntax import elements_of
from paramgraph_kit.rewrite.expressions.picks.shapes import form_of
from paramgraph_kit.rewrite.source.edits import names_in, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called

_MULTIPLIES = frozenset(("linear", "matmul", "mm", "bmm", "einsum", "conv1d", "conv2d", "bilinear", "addmm"))


def kept_rows(place: Place, node: ast.Subscript, whole: str) -> str:
    """All rows of a pick ``x[mask]``, whose text is ``whole``, as zeros where weights would get gradients of them."""
    if not place.trains or isinstance(node.slice, ast.Tuple) or not _meets_weights(place, node):
        return whole
    form, one = form_of(place, node.value), form_of(place, node.slice)
    if form is None or one is None or not form.dtype.is_floating_point or one.dtype is not torch.bool:
        return whole
    more = ", None" * (len(form.shape) - len(one.shape))
    mask = f"{place.source.bracketed(node.slice)}[...{more}]" if more else place.text(node.slice)
    return f"torch.where({mask}, {whole}, 0)"


def _meets_weights(place: Place, node: ast.Subscript) -> bool:
    """Whether a pick, or the name that it gets, is an argument of a module or a factor of a product."""
    function = place.source.function_of(place.statement)
    statement = place.source.statement_of(node)
    names: set[str] = set()
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            pairs = zip(elements_of(target), elements_of(statement.value), strict=False)
            names |= {place.text(name) for name, value in pairs if value is node}
    every = [each for part in getattr(function, "body", ()) for each in within(part)]
    factors: list[ast.AST] = []
    for each in every:
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.MatMult):
            factors += [each.left, each.right]
        elif isinstance(each, ast.Call) and (called(each) in _MULTIPLIES or _has_weights(place, each)):
            factors += each.args
    return any(names & names_in(factor) or node in ast.walk(factor) for factor in factors)


def _has_weights(place: Place, call: ast.Call) -> bool:
    known = place.value(path_of(call.func))
    return isinstance(known, torch.nn.Module) and next(known.parameters(), None) is not None
