"""What else is written where a number is read more than once, and a tensor takes its place at each of these."""

from __future__ import annotations

import ast
from typing import Any

from paramgraph_kit.doctor.explain.syntax import nodes_of
from paramgraph_kit.doctor.observe.captured_values import Use
from paramgraph_kit.doctor.observe.multiplied import multiplied
from paramgraph_kit.doctor.observe.takes_tensors import takes_a_tensor


def with_tensors_beside(use: Use, then: Any) -> str | None:
    """Of the other reads of it in its function: "" where they stay, None where one takes a number alone."""
    nodes = [*nodes_of(use.code)]
    parents: dict[Any, Any] = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    told = dict[str, None]()
    for node in (n for n in nodes if isinstance(n, (ast.Name, ast.Attribute, ast.Subscript)) and n is not use.node):
        each = Use(use.code, node, False, use.names)
        if not isinstance(node.ctx, ast.Load) or each.text != use.text or takes_a_tensor(each, then):
            continue
        whole: Any = node
        while isinstance(parents.get(whole), (ast.BinOp, ast.UnaryOp)):
            whole = parents[whole]
        if (said := multiplied(whole, parents, each)) is None:
            return None
        told |= {f"in line {node.lineno} {said}": None} if said else {}
    return ", ".join(told)
