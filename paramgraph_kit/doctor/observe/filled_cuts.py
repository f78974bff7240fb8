"""The part of a tensor that a line fills, where it has another length each time: ``x[:n]``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of, tree_of
from paramgraph_kit.doctor.observe.narrowed import as_slice
from paramgraph_kit.doctor.observe.places import Place, line_of
from paramgraph_kit.doctor.observe.set_once import is_set_once


def line_at(place: Place) -> tuple[str, int]:
    """The file and the line of a place."""
    user = place.user
    return (user[0].co_filename, line_of(*user)) if user is not None else ("", 0)


def cut_in(place: Place, *, alone: bool = True) -> ast.Subscript | None:
    """``x[:, :n]`` of the line that writes, where `n` is not the same each time; ``alone``: none fills the rest."""
    if (user := place.user) is None:
        return None
    (_, line), tree = line_at(place), tree_of(user[0].co_filename)
    own = [n for n in nodes_of(user[0]) if getattr(n, "lineno", 0) == line]
    own += [each for n in own for each in _named_ahead(n, user)]
    into = {id(n.func.value) for n in own if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)}
    # What is written goes first, and not what is given: `self.x[:n].copy_(x[:n])`.
    for node in sorted(own, key=lambda n: id(n) not in into and not isinstance(getattr(n, "ctx", None), ast.Store)):
        cut = as_slice(node)
        if cut is None or not _ends(cut, tree):
            continue
        if not alone or not any(_is_rest(n, cut, tree) for n in _may_be_written(tree)):
            return cut
    return None


@lru_cache(64)  # it is asked for each write of a call
def _may_be_written(tree: ast.Module | None) -> tuple[ast.Subscript, ...]:
    """Parts that lines write to, name or hand on: by what is only computed with or given back nobody fills them."""
    return tuple(part for part in _parts_in(tree) if _begins(part))


def _parts_in(tree: ast.Module | None) -> Iterator[ast.Subscript]:
    for node in ast.walk(tree) if tree is not None else ():
        parts: list[ast.AST | None] = []
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
            parts = [node.value, *getattr(node, "targets", [])]
        elif isinstance(node, ast.AugAssign):
            parts = [node.target]
        elif isinstance(node, (ast.For, ast.comprehension)):
            parts = [node.iter]
        elif isinstance(node, ast.Call):
            name = last_name(node.func)
            in_place = name.endswith("_") and isinstance(node.func, ast.Attribute)
            parts = [node] if name == "narrow" else []
            parts += [node.func] if in_place else [*node.args, *(each.value for each in node.keywords)]
        for part in parts:
            inner = [*getattr(part, "elts", [])] or [part]
            yield from (cut for each in inner if each is not None and (cut := as_slice(_owner(each))) is not None)


def _owner(node: ast.AST) -> ast.AST:
    """What the methods are called of by which a part is written: ``x[n:].view(-1).zero_``."""
    while as_slice(node) is None and isinstance(node, (ast.Attribute, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node


def _is_rest(part: ast.Subscript, cut: ast.Subscript, tree: ast.Module | None) -> bool:
    """Whether a part may be what is behind another one: of what is called the same."""
    one, other = ast.unparse(part.value), ast.unparse(cut.value)
    if one.rpartition(".")[2] != other.rpartition(".")[2]:
        return False
    if not one.startswith("self.") or not other.startswith("self."):
        return True
    kinds = [_class_at(tree, each.lineno) for each in (part, cut)]
    return kinds[0] is kinds[1] or any(each is not None and each.bases for each in kinds)


def _class_at(tree: ast.Module | None, line: int) -> ast.ClassDef | None:
    kinds = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)] if tree is not None else []
    return next((n for n in reversed(kinds) if n.lineno <= line <= (n.end_lineno or n.lineno)), None)


def _named_ahead(node: ast.AST, user: tuple[CodeType, int]) -> Iterator[ast.expr]:
    """What a variable is that a line writes to, where one line gives it a part: ``rows = self.x[:n]``."""
    written = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
    if written is None and isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        written = node.value
    if not isinstance(written, ast.Name):
        return
    nodes = [*nodes_of(user[0])]
    stores = [n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id == written.id]
    assigns = [n for n in nodes if isinstance(n, ast.Assign) and n.targets[0] in stores]
    if len(stores) == len(assigns) == 1:
        yield assigns[0].value


def sizes_of(part: torch.Tensor, cut: ast.Subscript) -> set[int]:
    """How many entries a part has in the dimensions that its slice ends: 3 and 4 of ``x[i, :n, :m]``."""
    keys = cut.slice.elts if isinstance(cut.slice, ast.Tuple) else [cut.slice]
    slices = [key for key in keys if isinstance(key, ast.Slice)]
    return {size for key, size in zip(slices, part.shape, strict=False) if key.upper is not None}


def _parts(node: ast.Subscript) -> list[ast.Slice]:
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return [part for part in parts if isinstance(part, ast.Slice)]


def _ends(node: ast.Subscript, tree: ast.Module | None) -> bool:
    ends = [p.upper for p in _parts(node) if p.lower is None and p.upper is not None]
    return any(not isinstance(upper, (ast.Constant, ast.UnaryOp)) and not is_set_once(upper, tree) for upper in ends)


def _begins(node: ast.Subscript) -> bool:
    return any(part.lower is not None for part in _parts(node))
