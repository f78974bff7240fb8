"""Which line has given a variable the result that it holds: of a call that replays a graph, or of a part of one."""

from __future__ import annotations

import ast
from collections.abc import Collection
from types import FrameType
from typing import Any

from paramgraph_kit.doctor.explain.syntax import elements_of, nodes_of, spans
from paramgraph_kit.doctor.observe.copied_names import targets_of
from paramgraph_kit.doctor.observe.kept_if_better import may_be
from paramgraph_kit.doctor.observe.read_later import is_path, statement_at


def result_of(frame: FrameType, name: str, launched: Collection[int]) -> tuple[Any, Any] | None:
    """What gives a variable, or an attribute, that has the result of an earlier call, or a part of it, or None.

    With the part of a choice that is the result, where it is one: ``best = loss if loss < low else best``.

    Args:
        frame: of the function whose variable it is.
        name: the variable's, which holds memory that a graph writes.
        launched: the lines of that function during which a graph has been replayed.
    """
    nodes = [*nodes_of(frame.f_code)]
    now = statement_at(nodes, frame.f_lineno)
    running = {ast.unparse(n.func) for n in ast.walk(now) if isinstance(n, ast.Call)} if now is not None else set()
    node = _stored(nodes, name, frame.f_lineno)
    parts = [*may_be(node.value)] if node is not None else []
    for part in parts:
        is_other = isinstance(part, ast.Name) and part.id != name and "." not in name  # what objects keep is told there
        first = _stored(nodes, part.id, frame.f_lineno) if is_other else None  # type: ignore[attr-defined]
        made = first.value if first is not None else part  # previous = result
        calls = [n for n in ast.walk(made) if isinstance(n, ast.Call)]  # run(x)[0], run(x).logits.squeeze(1)
        if any(ast.unparse(call.func) in running or any(spans(call, line) for line in launched) for call in calls):
            return node, part if len(parts) > 1 else None
    return None


def _stored(nodes: list[ast.AST], path: str, line: int) -> Any:
    """What has given a variable, or an attribute, what it holds: the latest above the line, else the last of all."""
    plain = (ast.Constant, ast.Tuple, ast.List)  # prev, seen = None, []: it holds a result by now
    stores = (n for n in nodes if isinstance(n, (ast.Assign, ast.AnnAssign, ast.NamedExpr)))
    given = (n for n in stores if n.value is not None and not isinstance(n.value, plain))
    found = [n for n in given if any(is_path(each, path) for target in targets_of(n) for each in elements_of(target))]
    return max([n for n in found if n.lineno < line] or found, key=lambda n: n.lineno, default=None)
