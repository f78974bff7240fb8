"""``group["lr"] = f(it)`` where rates are tensors, and the words of a log, ``log["lr"] = f(it)``, which are none."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

from paramgraph_kit.rewrite.source.edits import Edit, Source, locals_of, path_of, within
from paramgraph_kit.rewrite.source.place import called


def rates(
    source: Source, statements: Iterable[ast.stmt], value: Callable[[str], Any] = lambda path: None
) -> list[Edit]:
    """Fill a rate that is a tensor; what is no optimizer's group keeps numbers. ``value``: what a path is."""
    edits = []
    for node in (part for top in statements for part in within(top)):
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if not isinstance(node, ast.Assign) or not isinstance(target, ast.Subscript):
            continue
        if not isinstance(target.slice, ast.Constant) or target.slice.value != "lr":
            continue
        left, right = source.replace(target, ""), source.replace(node.value, "")
        before = Edit(left.end_line, left.end_column, right.line, right.column, ".fill_(")
        if is_of_no_group(source, target.value, value):
            if not isinstance(node.value, ast.Call) or called(node.value) == "float":
                continue
            if any(isinstance(n, ast.Subscript) for n in ast.walk(node.value)):
                continue  # it is made a number where it is read
            before = Edit(right.line, right.column, right.line, right.column, "float(")
        edits += [before, Edit(right.end_line, right.end_column, right.end_line, right.end_column, ")")]
    return edits


def is_of_no_group(source: Source, held: ast.expr, value: Callable[[str], Any]) -> bool:
    """Whether a dictionary is no group of an optimizer, by what it is or where its function makes it."""
    path, function = path_of(held), source.function_of(held)
    first = path.partition(".")[0]
    if not path or function is None or first not in locals_of(function):
        if (found := value(path) if path else None) is not None:
            return isinstance(found, dict) and "params" not in found
        function = None
    every = within(function) if function is not None else source.tree.body
    made = [n.value for n in every if isinstance(n, ast.Assign) and any(_is(t, path) for t in n.targets)]
    return bool(made) and all(_makes_a_log(each) for each in made)


def _is(target: ast.expr, path: str) -> bool:
    return path_of(target) == path and isinstance(target, (ast.Name, ast.Attribute))


def _makes_a_log(made: ast.expr) -> bool:
    """``{"loss": 0.0}`` and ``dict(loss=0.0)``, which have no parameters."""
    if isinstance(made, ast.Dict):
        keys = [each.value if isinstance(each, ast.Constant) else None for each in made.keys]
        return None not in keys and "params" not in keys
    plain = isinstance(made, ast.Call) and called(made) in ("dict", "defaultdict", "OrderedDict")
    return plain and not any(option.arg in ("params", None) for option in getattr(made, "keywords", ()))
