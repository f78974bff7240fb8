"""What a round does behind ``if err < tol: break``, ahead of that: it has new names, which it gives away at the end.

``if n < tol: break`` stands before ``x = x - solve(J, r)``, the most of a round, and ``x`` is returned. With
``x_next = x - solve(J, r)`` all of it can be one launch, and ``x = x_next`` is done where the loop has gone on.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Sequence

from paramgraph_kit.rewrite.loops.spans import Block, may_end_later
from paramgraph_kit.rewrite.source.edits import Edit, Source, names_in
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import fresh


def rest_ahead(
    source: Source, loop: Block, function: ast.AST, is_pure: Callable[[ast.stmt], bool]
) -> tuple[list[Edit], dict[int, int]]:
    """The edits for a loop, and how many statements are new behind one of its; nothing where that is not needed.

    Args:
        is_pure: whether a statement gives names what it computes, and does nothing else.
    """
    for at, node in enumerate(loop.body[:-1]):
        rest = loop.body[at + 1 :]
        if not isinstance(node, ast.If) or not all(map(is_pure, rest)):
            continue
        if may_end_later(node, rest, loop, function, is_pure):
            break
        if not may_end_later(node, rest, loop, function, is_pure, renamed=stored(rest)):
            break
        names = sorted(stored(rest) & _read_around(function, rest))
        taken = names_in(source.tree)
        called = {name: fresh(f"{name}_next", taken) for name in names}
        if not called or any(isinstance(part, ast.arg) and part.arg in called for n in rest for part in ast.walk(n)):
            break
        edits = _renamed(source, rest, called)
        edits.append(source.after(rest[-1], [f"{name} = {new}" for name, new in called.items()]))
        return edits, {len(loop.body) - 1: len(called)}
    return [], {}


def _read_around(function: ast.AST, rest: Sequence[ast.stmt]) -> set[str]:
    """Names that are read anywhere but in what a round does last, or there before they have a value."""
    inside = {id(part) for node in rest for part in ast.walk(node)}
    names = (n for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
    found, given = {n.id for n in names if id(n) not in inside}, set[str]()
    for node in rest:
        found |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)} - given
        given |= stored([node])
    return found


def _renamed(source: Source, rest: Sequence[ast.stmt], called: dict[str, str]) -> list[Edit]:
    edits, given = list[Edit](), set[str]()
    for node in rest:
        own = stored([node])
        edits += [source.replace(n, called[n.id]) for n in _names(node, called) if n.id in _of(n, own, given)]
        given |= own
    return edits


def _of(node: ast.Name, own: Collection[str], given: Collection[str]) -> Collection[str]:
    return own if isinstance(node.ctx, ast.Store) else given


def _names(node: ast.stmt, called: dict[str, str]) -> list[ast.Name]:
    return [n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in called]
