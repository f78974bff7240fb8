"""A branch of the device's that also counts on the host, cut in two: what it computes, and then what it counts."""

from __future__ import annotations

import ast
import types

import torch

from paramgraph_kit.rewrite.expressions.decisions.branches import condition_on_device
from paramgraph_kit.rewrite.source.edits import Edit, locals_of, path_of
from paramgraph_kit.rewrite.source.place import NUMBER, Place, fresh
from paramgraph_kit.rewrite.source.writes import paths, touches

_CHANGED = (ast.Assign, ast.AugAssign)


def count_behind_it(place: Place) -> list[Edit]:
    """``if c: x = a; missed = 0`` becomes ``near = c``, ``if near: x = a`` and ``if near: missed = 0``.

    The first is a choice of the device's then, and the second a line that can be done behind the launch.
    """
    node = place.statement
    if not isinstance(node, ast.If):
        return []
    ways = [parted(place, node.body), parted(place, node.orelse)]
    if None in ways or not all(any(way[part] for way in ways if way) for part in (0, 1)):
        return []
    name = fresh("chosen", place.taken)
    lines = [f"{name} = {condition_on_device(place, node.test)}"]
    for part in (0, 1):
        yes, no = (way[part] for way in ways if way is not None)
        lines.append(f"if {name}:" if yes else f"if not {name}:")
        lines += [f"    {place.text(each)}" for each in yes or no]
        if yes and no:
            lines += ["else:", *(f"    {place.text(each)}" for each in no)]
    return [place.source.replace(node, f"\n{place.source.indent(node)}".join(lines))]


def parted(
    place: Place, block: list[ast.stmt], kinds: tuple[type[ast.stmt], ...] = _CHANGED
) -> tuple[list[ast.stmt], list[ast.stmt]] | None:
    """What a block computes and what it counts, where it is the same to count behind all that is computed."""
    counts = [each for each in block if _counts(place, each)]
    computes = [each for each in block if each not in counts]
    if not all(isinstance(each, kinds) for each in computes):
        return None
    for each in counts:
        later = [part for part in computes if part.lineno > each.lineno]
        if any(_may_read(place, part, path_of(_base(each))) for part in later):
            return None
    return computes, counts


def _base(node: ast.stmt) -> ast.expr:
    """``state`` of ``state["missed"] = 0``."""
    target: ast.expr = node.targets[0] if isinstance(node, ast.Assign) else node.target  # type: ignore[attr-defined]
    return target.value if isinstance(target, ast.Subscript) else target


def _counts(place: Place, node: ast.stmt) -> bool:
    """Whether a statement gives a number of the host's, which outlives the function, a number that it knows."""
    if not isinstance(node, _CHANGED) or not isinstance(node.value, ast.Constant) or not _is_one_target(node):
        return False
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    path, function = path_of(_base(node)), place.source.function_of(place.statement)
    if not path or ("." not in path and function is not None and path in locals_of(function)):
        return False
    held = place.value(path)
    if isinstance(target, ast.Subscript):
        key = target.slice.value if isinstance(target.slice, ast.Constant) else None
        held = held.get(key) if type(held) is dict else None
    return isinstance(held, NUMBER)


def _is_one_target(node: ast.stmt) -> bool:
    return not isinstance(node, ast.Assign) or len(node.targets) == 1


def _may_read(place: Place, node: ast.stmt, path: str) -> bool:
    """Whether a statement may ask for what a path names, also by a function or a property of the user's."""
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
    own = (types.FunctionType, types.MethodType)
    owner = path.rpartition(".")[0]
    called = [n.func for n in calls if isinstance(n.func, ast.Attribute) and owner and path_of(n.func.value) == owner]
    return (
        bool(called)
        or any(isinstance(n, ast.Attribute) and _is_property(place, n) for n in ast.walk(node))
        or any(isinstance(place.value(path_of(n.func)), own) for n in calls)
        or any(touches(each, path) for each in paths(node))
    )


def _is_property(place: Place, node: ast.Attribute) -> bool:
    """``self.trust`` that a method answers."""
    owner = place.value(path_of(node.value)) if path_of(node.value) else None
    return isinstance(getattr(type(owner), node.attr, None), property) and not isinstance(owner, torch.Tensor)
