"""A number of the host's that a capture reads as an index: the same lines with an index that lies on the device."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from paramgraph_kit.doctor.explain.syntax import tree_of
from paramgraph_kit.doctor.observe.captured_values import Use


def with_index(uses: Iterable[Use], held: str) -> list[tuple[str, str]] | None:
    """Each expression that reads a number as an index, and the same with the tensor ``held``; None for other reads."""
    found: dict[str, str] = {}
    for use in uses:
        pair = _indexed(use, held)
        if pair is None:
            return None
        found[pair[0]] = pair[1]
    return [*found.items()]


def _indexed(use: Use, held: str) -> tuple[str, str] | None:
    tree = tree_of(use.code.co_filename)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)} if tree else {}
    above: Any = parents.get(use.node)
    picks, node = [use.node], above
    if isinstance(above, ast.Tuple):
        picks, node = above.elts, parents.get(above)
    if not isinstance(node, ast.Subscript) or node.value is use.node:
        return None
    if any(each is not use.node and not _is_all(each) for each in picks):
        return None
    owner, dim = ast.unparse(node.value), next(i for i, each in enumerate(picks) if each is use.node)
    if isinstance(node.ctx, ast.Load):
        return ast.unparse(node), f"{owner}.index_select({dim}, {held}).squeeze({dim})"
    statement = parents.get(node)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    value = ast.unparse(statement.value)
    if isinstance(statement.value, ast.Constant):
        return ast.unparse(statement), f"{owner}.index_fill_({dim}, {held}, {value})"
    value = value if isinstance(statement.value, (ast.Name, ast.Attribute, ast.Call)) else f"({value})"
    return ast.unparse(statement), f"{owner}.index_copy_({dim}, {held}, {value}.unsqueeze({dim}))"


def _is_all(node: ast.expr) -> bool:
    return isinstance(node, ast.Slice) and node.lower is node.upper is node.step is None
