"""A copy behind a replay: the line of who came to both, and whether it is how a state goes on."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import CodeType

from paramgraph_kit.doctor.explain.syntax import elements_of, last_name, tree_of
from paramgraph_kit.doctor.observe.own_managers import captured_in
from paramgraph_kit.doctor.observe.places import Place, frame_of, line_of
from paramgraph_kit.trace.model import Frame


def shared_line(replay: Place, copy: Place) -> tuple[Frame | None, str]:
    """The line of the replay in the innermost function that came to both, and its line of the copy."""
    for one, other in zip(replay.stack, copy.stack, strict=False):
        if one[0] is not other[0]:
            break
        if one != other:
            line = frame_of(other)
            return frame_of(one), line.text if line is not None else ""
    return None, ""


def goes_on(copy: Place, code: CodeType) -> bool:
    """Whether other lines copy a result of the graph to what this line fills: a state, of which this is a beginning."""
    if copy.user is None or (tree := tree_of(copy.user[0].co_filename)) is None:
        return False
    at, copies = line_of(*copy.user), [*_copies(tree)]
    into = {last_name(target) for target, node in copies if node.lineno <= at <= (node.end_lineno or 0)}
    assigns = (n for block in captured_in(code) for s in block for n in ast.walk(s) if isinstance(n, ast.Assign))
    results = {last_name(each) for n in assigns for t in n.targets for each in elements_of(t)} - {""}
    given = (node for target, node in copies if last_name(target) in into)
    return any(last_name(part) in results for node in given for each in node.args for part in ast.walk(each))


def _copies(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "copy_":
            yield node.func.value, node
