"""Lists that captures fill with a result each, and that replays read by the number of their graph."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from paramgraph_kit.doctor.explain.syntax import every, last_name, nodes_of, tree_of
from paramgraph_kit.doctor.observe.captured_values import Names, Use
from paramgraph_kit.doctor.observe.held import tensors_in
from paramgraph_kit.doctor.observe.one_graph import OneGraph
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.trace.model import Failure

_ADDS = ("append", "extend", "add", "insert")
_BY_NUMBER = ("zip", "enumerate")


def is_of_each(failure: Failure, region: Region) -> bool:
    """Whether a line that is captured gives such a list its entry: no replay has to do that again.

    A log gets an entry from each step, and is read as a whole.
    """
    if failure.code != "output-alias" or failure.frame is None or _replays(region):
        return False
    line = failure.frame.line
    paths = {last_name(each) for each in _filled(region.body, line)}
    tree = tree_of(region.code.co_filename)
    return tree is not None and any(last_name(each) in paths for each in _read_by_number(tree))


def results_at(region: Region, graph: OneGraph) -> Iterator[Any]:
    """What the lines of a capture of before assign, as it is now, and those entries of lists that lie in its pool."""
    yield from region.results()
    names = Names(region.space, own=region.own | region.names.keys(), known=region.names)
    made = [(first, size) for _, first, size, is_made in graph.pooled if is_made] or graph.pool
    for path in _filled(region.body, None):
        held = Use(region.code, path, False, names).value()
        for tensor in tensors_in(held):
            at = tensor.untyped_storage().data_ptr() if storage_key(tensor) else 0
            if any(first <= at < first + size for first, size in made):
                yield tensor


def _replays(region: Region) -> bool:
    calls = (n for n in nodes_of(region.code) if isinstance(n, ast.Call))
    return any(last_name(call.func) == "replay" for call in calls)


def _filled(body: list[ast.stmt], line: int | None) -> Iterator[ast.expr]:
    """What statements at a line, or anywhere, add entries to."""
    for node in (n for s in body for n in ast.walk(s) if isinstance(n, (ast.Expr, ast.AugAssign))):
        if line is not None and not node.lineno <= line <= (node.end_lineno or 0):
            continue
        if isinstance(node, ast.AugAssign) and isinstance(node.value, (ast.List, ast.ListComp)):
            yield node.target
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            func = node.value.func
            if isinstance(func, ast.Attribute) and func.attr in _ADDS:
                yield func.value


def _read_by_number(tree: ast.Module) -> Iterator[ast.expr]:
    """What is read by an index that moves, or beside other lists."""
    for node in every(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            if not isinstance(node.slice, (ast.Slice, ast.Constant, ast.UnaryOp, ast.Tuple)):
                yield node.value
        elif isinstance(node, ast.Call) and last_name(node.func) in _BY_NUMBER:
            yield from node.args
