"""What one writes for values of the host's that a capture reads: an index, a list of numbers, one of an object's."""

from __future__ import annotations

import ast
import re
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


def of_entries(path: str, kind: str) -> str:
    """A list, or an array, of numbers."""
    held = held_for(path)
    made = f"before the capture `{held} = torch.tensor({path}, device={kind!r})`"
    read = f"what is captured reads `{held}` for `{path}`, without float()"
    return f"{made}, {read}, and behind this line `{held}.copy_(torch.tensor({path}))`, ahead of g.replay()"


def of_owner(path: str, kind: str) -> str:
    """A number of an object that is exchanged."""
    held = held_for(path)
    made = f"before the capture `{held} = torch.full((), float({path}), device={kind!r})`"
    return f"{made}, what is captured reads `{held}` for `{path}`, and ahead of g.replay() `{held}.fill_({path})`"


def of_none(path: str) -> str:
    """What is there only later."""
    ways = f"a graph for each way, one captured while {path} is None, and one while it is what comes here"
    return f"{ways}; a tensor stays the same then, written by {path}.copy_(...), and the one that fits is replayed"


def held_for(path: str) -> str:
    """``self.cfg_temp_in`` for ``self.cfg.temp``."""
    first, *rest = path.split(".")
    last = re.sub(r"\W+", "_", "_".join(rest)).strip("_")
    return f"{first}.{last}_in" if rest else f"{re.sub(r'[^0-9a-zA-Z_]+', '_', first).strip('_')}_in"
