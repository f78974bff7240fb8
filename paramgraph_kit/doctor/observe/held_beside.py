"""What a step names ahead of a replay and gives, or computes with, beside what the same path has behind it.

``old = self.x``, a replay, ``return old, self.x.clone()``: who names memory twice has meant what was there before.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FrameType

import torch

from paramgraph_kit.doctor.explain.syntax import nodes_of, pairs_of
from paramgraph_kit.doctor.observe.captured_values import path_value
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.read_later import is_about
from paramgraph_kit.doctor.restore.keeper import storage_key

LOOKS = ("detach", "view", "reshape", "flatten", "squeeze", "unsqueeze", "view_as", "contiguous", "ravel", "t")
_COPIES = (*LOOKS, "clone", "cpu", "item", "float", "numpy", "tolist")
_OF_BEFORE = re.compile(r"(?:^|[._])(?:old|prev|previous|before|last|start|first|initial)(?:_|$)")
_PATHS = (ast.Name, ast.Attribute, ast.Subscript)


def held_beside(frame: FrameType, name: str, key: int) -> Iterator[tuple[ast.stmt, ast.expr]]:
    """The line that names memory which a replay writes, with what it names, where another reads both behind it.

    Args:
        frame: of the function, in the line that replays.
        name: of a variable, or an attribute.
        key: of the memory that it has.
    """
    for node, value, path in _pairs(frame.f_code, name):
        if node.lineno >= frame.f_lineno or not _reads_both(frame.f_code, name, path, node.lineno, frame.f_lineno):
            continue
        meant = path_value(ast.parse(path, mode="eval").body, frame.f_locals, frame.f_globals)
        if is_a(meant, torch.Tensor) and storage_key(meant) == key:
            yield node, value


@lru_cache(4096)
def _pairs(code: CodeType, name: str) -> list[tuple[ast.stmt, ast.expr, str]]:
    """The only line of a function that gives a name a path's memory, which nothing writes to by that name."""
    nodes = [*nodes_of(code)]
    given = [(n, value) for n in nodes for target, value in pairs_of(n) if ast.unparse(target) == name]
    if len(given) != 1 or _writes(nodes, name):
        return []
    node, value = given[0]
    path = _looked_at(value, LOOKS)
    if not isinstance(path, _PATHS) or ast.unparse(path) == name or not isinstance(node, ast.stmt):
        return []
    return [(node, value, ast.unparse(path))]


def _writes(nodes: list[ast.AST], name: str) -> bool:
    """Whether a name is a short one, by which memory is filled: ``x.copy_(batch)``, ``x[:n] = batch``, ``x += 1``."""
    for node in nodes:
        filled: ast.AST | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
            filled = _looked_at(node.func.value, LOOKS)
            filled = filled.value if isinstance(filled, ast.Subscript) else filled
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            filled = node.value
        elif isinstance(node, ast.AugAssign):
            filled = node.target
        elif isinstance(node, ast.keyword) and node.arg == "out":
            filled = node.value
        if filled is not None and ast.unparse(filled) == name:
            return True
    return False


@lru_cache(4096)
def _reads_both(code: CodeType, name: str, path: str, first: int, line: int) -> bool:
    """Whether a statement behind a replay gives on a name, and beside it what the path has whose memory that is.

    Of a name that says that it is of before, any statement that reads both.
    """
    nodes = [*nodes_of(code)]
    behind = [n for n in nodes if isinstance(n, ast.stmt) and not hasattr(n, "body") and n.lineno > line]
    stored = (n for n in nodes if isinstance(n, _PATHS) and isinstance(n.ctx, ast.Store) and first < n.lineno)
    if any(ast.unparse(n) == path for n in stored):
        return False  # it is given something else
    parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    others = {path}
    for node in behind:
        for target, value in pairs_of(node):
            if ast.unparse(_looked_at(value, _COPIES)) == path:
                others.add(ast.unparse(target))

    def reads(node: ast.AST, text: str) -> bool:
        inside = (n for n in ast.walk(node) if isinstance(n, _PATHS) and isinstance(n.ctx, ast.Load))
        whole = (n for n in inside if not _is_part(n, parents) and not is_about(n, parents))
        return any(ast.unparse(n) == text for n in whole)

    if _OF_BEFORE.search(name):
        return any(reads(n, name) and any(reads(n, each) for each in others) for n in behind)
    rows = (row for n in behind for row in _rows(n))
    return any(name in row and not others.isdisjoint(row) for row in rows)


def _rows(node: ast.stmt) -> Iterator[set[str]]:
    """What a line puts beside one another: entries of a tuple, a list or a dictionary, arguments of a call."""
    for each in ast.walk(node):
        parts: list[ast.expr] = []
        if isinstance(each, (ast.Tuple, ast.List)) and isinstance(each.ctx, ast.Load):
            parts = each.elts
        elif isinstance(each, ast.Dict):
            parts = each.values
        elif isinstance(each, ast.Call):
            parts = [*each.args, *(k.value for k in each.keywords)]
        yield {ast.unparse(_looked_at(part, _COPIES)) for part in parts}


def _is_part(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether only an entry of it is read."""
    above = parents.get(node)
    return isinstance(above, ast.Subscript) and above.value is node


def _looked_at(node: ast.expr, looks: tuple[str, ...]) -> ast.expr:
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in looks:
        node = node.func.value
    return node
