"""States that lines of a capture make of themselves: by one line, or through variables between, or as an entry."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable

from paramgraph_kit.doctor.explain.syntax import elements_of
from paramgraph_kit.doctor.observe.short_names import first_of

_ABOUT = ("shape", "device", "dtype", "size", "ndim", "dim", "numel")  # no numbers of a tensor


def is_place(node: ast.expr) -> bool:
    """Whether a target is a name, an attribute, or an entry under a constant key."""
    is_entry = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
    return is_entry or isinstance(node, (ast.Name, ast.Attribute))


def named_as(place: ast.expr) -> str:
    """What a variable can be called that has what such a place gets: ``h`` for ``self.cache["h"]``."""
    if isinstance(place, ast.Attribute):
        return place.attr
    return re.sub(r"\W", "_", str(place.slice.value)) if isinstance(place, ast.Subscript) else ast.unparse(place)  # type: ignore[attr-defined]


def outlives(target: ast.expr, inside: Collection[ast.AST]) -> bool:
    """Whether an attribute, or an entry, is of what was there before the lines: they make no dictionary for it."""
    if isinstance(target, ast.Attribute):
        return True
    if not isinstance(target, ast.Subscript):
        return False
    holder = ast.unparse(target.value)
    assigns = (node for node in inside if isinstance(node, ast.Assign) and not first_of(node.value))
    made = (each for node in assigns for t in node.targets for each in elements_of(t))
    return all(ast.unparse(each) != holder for each in made)


def made_of_itself(node: ast.Assign, path: str, inside: Iterable[ast.AST]) -> bool:
    """Whether what a line gives a place is computed from what the place had, also through variables of other lines."""
    assigns = [n for n in inside if isinstance(n, ast.Assign) and n.lineno < node.lineno]
    derived = set[str]()
    for each in sorted(assigns, key=lambda n: n.lineno):
        targets = [t for target in each.targets for t in elements_of(target)]
        if any(ast.unparse(t) == path for t in targets):
            return False  # it goes on from what the lines themselves have put there
        names = {t.id for t in targets if isinstance(t, ast.Name)}
        derived = derived | names if _reads(each.value, path, derived) else derived - names
    return _reads(node.value, path, derived)


def begins_anew(inside: Collection[ast.AST], path: str) -> bool:
    """Whether another function of the same capture gives a place, in each of its calls, what is not made of it."""
    parents = {child: node for node in inside for child in ast.iter_child_nodes(node)}
    assigns = [n for n in inside if isinstance(n, ast.Assign)]
    for node in (n for n in assigns if any(ast.unparse(t) == path for each in n.targets for t in elements_of(each))):
        above = parents.get(node)
        while above is not None and not isinstance(above, (ast.If, ast.IfExp, ast.Try)):
            above = parents.get(above)
        if above is None and not made_of_itself(node, path, inside):
            return True
    return False


def _reads(value: ast.AST, path: str, derived: Collection[str]) -> bool:
    """Whether the numbers of a place, or of variables, are read in an expression."""
    if isinstance(value, ast.Attribute) and value.attr in _ABOUT:
        return False
    is_path = isinstance(value, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(value.ctx, ast.Load)
    if is_path and (ast.unparse(value) == path or (isinstance(value, ast.Name) and value.id in derived)):
        return True
    return any(_reads(part, path, derived) for part in ast.iter_child_nodes(value))
