"""Pairs that a matrix of truths lists are all pairs, of which a mask picks: ``i, j = torch.where(near)``.

So do neighbours within a radius become edges that another rule leaves out where they are added up: the device computes
all of them, and those that are not near add zeros.
"""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.expressions.picks.listed import is_written, listed_by, of_call, unguarded
from paramgraph_kit.rewrite.expressions.picks.rows import asks_for_one
from paramgraph_kit.rewrite.source.edits import Edit, Function, path_of, within
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import Place, called, fresh, target_of
from paramgraph_kit.rewrite.source.pure import is_pure

_ADDS = frozenset(("index_add_", "index_add", "scatter_add_", "scatter_add"))


def pick_among_all(place: Place) -> list[Edit]:
    """``i, j = torch.where(near)`` and ``pairs = near.nonzero().t()``, of which something is added up at indices."""
    node, function = place.statement, place.source.function_of(place.statement)
    target = target_of(node)
    if not isinstance(node, ast.Assign) or function is None or target is None:
        return []
    names = [path_of(each) for each in getattr(target, "elts", [target])]
    mask = listed_by(node.value) if len(names) == 2 else _turned(place, node.value, names[0])
    adds = [n for n in ast.walk(function) if isinstance(n, ast.Call) and called(n) in _ADDS]
    if mask is None or not all(name.isidentifier() for name in names) or not adds:
        return []
    every = [n for top in function.body for n in within(top)]
    read = {n.id for n in every if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    if len(names) == 2 and not all(name in read and _is_flat(place, name) for name in names):
        return []  # rows alone are another rule's
    stays = isinstance(mask, ast.Name) and sum(mask.id in stored([n]) for n in function.body) == 1
    near = place.text(mask) if stays else fresh("near", place.taken)
    there = fresh("there", place.taken)
    size = f"{near}.shape[0]", f"{near}.shape[1]"
    ends = [f"torch.arange({each}, device={near}.device)" for each in size]
    lines = [f"{near} = {place.text(mask)}"] if not stays else []
    lines.append(f"{there} = {near}.flatten()" + ".clone()" * is_written(every, path_of(mask)))
    if len(names) == 2:
        i, j = names
        lines += [f"{i} = {ends[0]}.repeat_interleave({size[1]})", f"{j} = {ends[1]}.repeat({size[0]})"]
        lines.append(f"{i}, {j} = {i}[{there}], {j}[{there}]")
    else:
        lines.append(f"{names[0]} = torch.cartesian_prod({ends[0]}, {ends[1]}).t()")
        lines.append(f"{names[0]} = {names[0]}[:, {there}]")
    edits = [place.source.replace(node, f"\n{place.source.indent(node)}".join(lines))]
    guards = [n for n in ast.walk(function) if isinstance(n, ast.If) and n.lineno > node.lineno]
    for guard in (n for n in guards if any(asks_for_one(n.test, name) for name in names)):
        if not _adds_nothing_else(place, guard, function):
            return []
        edits.append(unguarded(place, guard))
    return edits


def _turned(place: Place, value: ast.expr, name: str) -> ast.expr | None:
    """``near`` of ``near.nonzero().t()``, which has two rows."""
    known = place.tensors.get(name)
    inner = value.value if isinstance(value, ast.Attribute) and value.attr == "T" else None
    if (
        isinstance(value, ast.Call)
        and not value.args
        and isinstance(value.func, ast.Attribute)
        and called(value) == "t"
    ):
        inner = value.func.value
    if known is None or len(known.shape) != 2 or known.shape[0] != 2 or not isinstance(inner, ast.Call):
        return None
    return of_call(inner) if called(inner) == "nonzero" and not inner.keywords else None


def _is_flat(place: Place, name: str) -> bool:
    known = place.tensors.get(name)
    return known is not None and len(known.shape) == 1


def _adds_nothing_else(place: Place, guard: ast.If, function: Function) -> bool:
    """Whether the lines behind a question do nothing where there is none: they make names of theirs, and add."""
    inside = {part for each in guard.body for part in ast.walk(each)}
    outside = {n.id for top in function.body for n in within(top) if isinstance(n, ast.Name) and n not in inside}
    for each in guard.body:
        call = each.value if isinstance(each, ast.Expr) else None
        if isinstance(call, ast.Call) and called(call) in ("index_add_", "scatter_add_"):
            if not all(is_pure(place, given) for given in call.args):
                return False
            continue
        if not isinstance(each, ast.Assign) or stored([each]) & outside or not stored([each]):
            return False
        if not is_pure(place, each.value):  # without any, it would still draw, or count
            return False
    return not guard.orelse
