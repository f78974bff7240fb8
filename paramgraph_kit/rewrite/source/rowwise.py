"""Whether what is computed of rows is computed of each row alone, so that others beside them change nothing."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any

import torch

from paramgraph_kit.doctor.observe.held import attribute_of
from paramgraph_kit.rewrite.source.edits import path_of
from paramgraph_kit.rewrite.source.gone_through import gone_through
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import Place, called, integer
from paramgraph_kit.rewrite.source.row_modules import (
    ALONG,
    ELEMENTS,
    dim_of,
    given_to,
    is_function,
    is_rowwise_module,
)
from paramgraph_kit.rewrite.source.widths import takes_all

_PAIRS = frozenset(("max", "min", "topk", "sort", "median", "kthvalue", "mode", "cummax", "cummin"))  # give two
_LOSSES = frozenset(("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"))
IsRow = Callable[[ast.AST], bool]


def is_rowwise(place: Place, node: ast.expr, is_row: IsRow) -> bool:
    """Whether an expression computes each row of its own, as far as its names tell."""
    return all(_keeps_rows(place, part, is_row) for part in ast.walk(node))


def _keeps_rows(place: Place, part: ast.AST, is_row: IsRow) -> bool:
    if isinstance(part, ast.BinOp) and isinstance(part.op, ast.MatMult):
        return not any(is_row(n) for n in ast.walk(part.right))
    if isinstance(part, ast.Subscript) and not is_row(part) and any(is_row(n) for n in ast.walk(part.value)):
        if isinstance(part.value, ast.Call) and called(part.value) in _PAIRS and integer(part.slice) in (0, 1):
            return True  # of values and places, which the call itself finds for each row or not
        first = part.slice.elts[0] if isinstance(part.slice, ast.Tuple) else part.slice
        whole = takes_all(first)
        return whole or (isinstance(first, ast.Constant) and first.value is ...)
    if (
        isinstance(part, ast.Attribute)
        and part.attr in ("T", "mT", "H")
        and any(is_row(n) for n in ast.walk(part.value))
    ):
        return False
    if not isinstance(part, ast.Call) or not any(is_row(n) for n in ast.walk(part)):
        return True
    name = called(part)
    if name in ELEMENTS or name in _LOSSES:
        return True
    if name in ("max", "min") and path_of(part.func) == f"torch.{name}" and len(part.args) == 2 and not part.keywords:
        return integer(part.args[1]) is None and all(_has_rows(n, is_row) for n in part.args)  # of two tensors
    if name == "normalize" and path_of(part.func) in ("F.normalize", "torch.nn.functional.normalize"):
        dim = dim_of(part, 2) or 1
        return dim > 0 or (_rank(place, part.args[0]) or 0) + dim > 0
    if name in ("view", "reshape") and len(part.args) > 1:
        # How many rows there are is not said, and no two of them come together.
        return integer(part.args[0]) == -1 and (_parts_rows(place, part) or _lets_go_of_one(part))
    if name == "unsqueeze" and dim_of(part) == -1:
        return True
    if name in ("cat", "concat") and is_function(part) and isinstance(part.args[0], (ast.List, ast.Tuple)):
        dim, each = dim_of(part), part.args[0].elts  # side by side, each with a row for each
        return all(is_row(n) or _has_rows(n, is_row) for n in each) and (
            dim > 0 or (dim < 0 and all((_rank(place, n) or 0) + dim > 0 for n in each))
        )
    if name in ALONG and (dim := dim_of(part)):
        return dim > 0 or (_rank(place, given_to(part)) or 0) + dim > 0 or _is_module(place, part)
    if isinstance(part.func, ast.Subscript):  # ``experts[e](x[at])``
        at = part.func.slice
        return not any(is_row(n) for n in ast.walk(at)) and has_rowwise_modules(place, path_of(part.func.value) or "_")
    value = _value(place, path_of(part.func)) if path_of(part.func) else None
    given = [*part.args, *(option.value for option in part.keywords)]
    wide = all(_has_rows(n, is_row) and (_rank(place, n) or 0) > 1 for n in given)
    return isinstance(value, torch.nn.Module) and is_rowwise_module(place, value, wide=wide)


def _has_rows(node: ast.expr, is_row: IsRow) -> bool:
    """``x[row]`` and ``emb(row)``: something has a row for each."""
    return any(map(is_row, ast.walk(node)))


def _rank(place: Place, node: ast.AST | None) -> int | None:
    """How many dimensions the tensor has that an expression is, as far as that was seen."""
    if isinstance(node, ast.Name):
        known = place.tensors.get(node.id)
        value = None if place.is_local(node.id) else place.space.get(node.id)
        return len(known.shape) if known is not None else value.dim() if isinstance(value, torch.Tensor) else None
    if isinstance(node, ast.Subscript) and not isinstance(node.slice, (ast.Tuple, ast.Slice, ast.Constant)):
        index, whole = node.slice, _rank(place, node.value)
        while isinstance(index, (ast.UnaryOp, ast.Compare)):
            index = index.operand if isinstance(index, ast.UnaryOp) else index.left
        mask = _rank(place, index)
        return whole - mask + 1 if whole is not None and mask else None
    if isinstance(node, ast.BinOp):
        sides = (_rank(place, node.left), _rank(place, node.right))
        return max((each for each in sides if each is not None), default=None)
    if isinstance(node, ast.Call) and called(node) in ELEMENTS:
        return _rank(place, given_to(node))
    if isinstance(node, ast.Call) and len(node.args) == 1 and path_of(node.func):
        value = _value(place, path_of(node.func))
        return _rank(place, node.args[0]) if isinstance(value, torch.nn.Module) else None
    return None


def _parts_rows(place: Place, call: ast.Call) -> bool:
    """Whether a view has each row of what it is of in one row, or in several, as far as sizes are known."""
    sizes = [integer(each) for each in call.args[1:]]
    whole, wanted = _size_of_row(place, given_to(call)), math.prod(each or 0 for each in sizes)
    return whole is not None and wanted > 0 and whole % wanted == 0


def _lets_go_of_one(call: ast.Call) -> bool:
    """``x[None, rows].reshape(-1, width)``, as experts are given their rows."""
    x = call.func.value if isinstance(call.func, ast.Attribute) else None
    first = x.slice.elts[0] if isinstance(x, ast.Subscript) and isinstance(x.slice, ast.Tuple) else None
    one = isinstance(first, ast.Constant) and first.value is None and len(call.args) == 2
    return one and isinstance(x, ast.Subscript) and isinstance(x.slice, ast.Tuple) and len(x.slice.elts) == 2


def _size_of_row(place: Place, node: ast.AST | None) -> int | None:
    """How many elements a row has, as far as that was seen."""
    if isinstance(node, ast.Name):
        known = place.tensors.get(node.id)
        value = None if place.is_local(node.id) else place.space.get(node.id)
        shape = known.shape if known is not None else value.shape if isinstance(value, torch.Tensor) else None
        return math.prod(shape[1:]) if shape is not None else None
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        inside, left = place.tensors.get(node.value.id), _rank(place, node)
        return math.prod(inside.shape[len(inside.shape) - left + 1 :]) if inside is not None and left else None
    if isinstance(node, ast.BinOp):
        sides = (_size_of_row(place, node.left), _size_of_row(place, node.right))
        return max((each for each in sides if each is not None), default=None)
    if isinstance(node, ast.Call) and called(node) in ELEMENTS:
        return _size_of_row(place, given_to(node))
    return None


def _is_module(place: Place, call: ast.Call) -> bool:
    """Whether something is done with what a module gives, which has rows of its own."""
    inner = call.func.value if isinstance(call.func, ast.Attribute) else None
    path = path_of(inner.func) if isinstance(inner, ast.Call) else ""
    return bool(path) and isinstance(_value(place, path), torch.nn.Module)


def has_rowwise_modules(place: Place, path: str) -> bool:
    """Whether what a path holds is a list of modules, of which each computes each row alone."""
    held = _value(place, path)
    return isinstance(held, torch.nn.ModuleList) and is_rowwise_module(place, held)


def _value(place: Place, path: str) -> Any:
    first, *rest = path.split(".")
    if rest and place.is_local(first):
        return None if _may_be_tensor(place, first) else place.attributes.get(rest[-1])  # of an object of the user's
    found = _one_of(place, first) if place.is_local(first) else place.space.get(first)
    for name in rest:
        found = attribute_of(found, name, None)
    return found


def _may_be_tensor(place: Place, name: str) -> bool:
    """Whether ``h`` of ``h.norm()`` may be a tensor, whatever else has a ``norm``: also one that is gone at the end."""
    function = place.source.function_of(place.statement)
    made = [n for n in ast.walk(function or place.statement) if isinstance(n, (ast.Assign, ast.AugAssign))]
    return name in place.tensors or name in stored(made)


def _one_of(place: Place, name: str) -> Any:
    """The modules of which a name is one: ``for i, expert in enumerate(experts)`` and ``expert = experts[i]``."""
    function = place.source.function_of(place.statement)
    every = [n for n in ast.walk(function or place.statement) if isinstance(n, ast.Name) and n.id == name]
    made = [place.source.parents[n] for n in every if not isinstance(n.ctx, ast.Load)]
    only = made[0].value if len(made) == 1 and isinstance(made[0], ast.Assign) else None
    if isinstance(only, ast.Subscript) and path_of(only.value).partition(".")[0] not in ("", name):
        held = _value(place, path_of(only.value))
        return held if isinstance(held, torch.nn.ModuleList) else None
    above = place.source.parents.get(place.statement)
    while above is not None:
        if isinstance(above, ast.For) and name in {n.id for n in ast.walk(above.target) if isinstance(n, ast.Name)}:
            path = next((path_of(n) for each, n in gone_through(above.target, above.iter) if each.id == name), "")
            held = _value(place, path) if path.partition(".")[0] not in ("", name) else None
            return held if isinstance(held, torch.nn.ModuleList) else None
        above = place.source.parents.get(above)
    return None
