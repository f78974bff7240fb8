"""The part of a tensor that a line fills, where it has another length each time: ``x[:n]``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import CodeType

from paramgraph_kit.doctor.explain.syntax import nodes_of, tree_of
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
        if (cut := as_slice(node)) is not None and _ends(cut, tree):
            nodes = ast.walk(tree) if tree is not None else ()
            name = ast.unparse(cut.value).rpartition(".")[2]
            others = (n for each in nodes if (n := as_slice(each)) is not None and _begins(n))
            if not alone or all(ast.unparse(n.value).rpartition(".")[2] != name for n in others):
                return cut
    return None


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


def _parts(node: ast.Subscript) -> list[ast.Slice]:
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return [part for part in parts if isinstance(part, ast.Slice)]


def _ends(node: ast.Subscript, tree: ast.Module | None) -> bool:
    ends = [p.upper for p in _parts(node) if p.lower is None and p.upper is not None]
    return any(not isinstance(upper, (ast.Constant, ast.UnaryOp)) and not is_set_once(upper, tree) for upper in ends)


def _begins(node: ast.Subscript) -> bool:
    return any(part.lower is not None for part in _parts(node))
