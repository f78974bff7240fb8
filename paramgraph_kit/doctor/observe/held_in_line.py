"""Results that one line holds over a further replay, without a name: ``run(x) - run(y)``, ``total += run(x)``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from types import CodeType, FrameType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from paramgraph_kit.doctor.explain.syntax import nodes_of
from paramgraph_kit.doctor.observe.captured_values import path_value
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.places import Span, call_at, span_of
from paramgraph_kit.doctor.observe.read_later import statement_at

_LOOKS = (
    "flatten",
    "view",
    "reshape",
    "squeeze",
    "unsqueeze",
    "detach",
    "t",
    "transpose",
    "permute",
    "ravel",
    "values",
)
_DISPLAYS = (ast.Tuple, ast.List, ast.Set, ast.Dict, ast.Starred, ast.keyword)
_PATHS = (ast.Name, ast.Attribute)
Owns = Callable[[torch.Tensor], bool]


@dataclass(frozen=True, slots=True)
class Held:
    """A result that is evaluated ahead of another call of its line, and read behind it."""

    code: CodeType
    line: ast.stmt
    what: ast.expr
    reader: ast.expr | ast.stmt
    least: int  # how many of the reader's arguments are memory of graphs if this one is


class HeldInLines:
    """Such results of one call that is examined."""

    def __init__(self) -> None:
        self._launched: dict[tuple[CodeType, Span], set[int]] = {}
        self.waiting: list[Held] = []

    def replayed(self, graph: int, frames: list[FrameType], owns: Owns) -> Iterator[tuple[FrameType, str]]:
        """A graph is replayed now: gives the variables which the line of a caller goes on reading behind that."""
        for frame in frames[1:]:
            nodes = [*nodes_of(frame.f_code)]
            call, line = call_at(frame.f_code, frame.f_lasti), statement_at(nodes, frame.f_lineno)
            if call is None or line is None:
                continue
            self._launched.setdefault((frame.f_code, span_of(call)), set()).add(graph)
            for what, reader in held_over(call, line):
                base = of_what(what)
                if isinstance(base, _PATHS) and any(map(owns, _tensors(_value(base, frame)))):
                    yield frame, ast.unparse(base)
                elif isinstance(base, ast.Call) and graph in self._launched.get((frame.f_code, span_of(base)), ()):
                    others = sum(self._may_be_owned(each, frame, owns) for each in _arguments(reader) if each != what)
                    self.waiting.append(Held(frame.f_code, line, what, reader, 1 + others))

    def read(self, frames: list[FrameType], tensors: list[torch.Tensor], owns: Owns) -> Iterator[Held]:
        """An operation reads tensors: gives what is held by a line that reads it now."""
        above: list[FrameType] = []
        for frame in frames if self.waiting else ():
            at = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
            for held in [each for each in self.waiting if each.code is frame.f_code and span_of(each.reader) == at]:
                inside = _tensors([*above[-1].f_locals.values()]) if above else []
                if max(sum(map(owns, tensors)), sum(map(owns, inside))) >= held.least:
                    self.waiting.remove(held)
                    yield held
            above.append(frame)

    def _may_be_owned(self, node: ast.expr, frame: FrameType, owns: Owns) -> bool:
        base = of_what(node)
        if isinstance(base, _PATHS):
            return any(map(owns, _tensors(_value(base, frame))))
        return isinstance(base, ast.Call) and (frame.f_code, span_of(base)) in self._launched


def held_over(call: ast.Call, line: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr | ast.stmt]]:
    """What a line has evaluated ahead of one of its calls and reads behind that, with what reads it."""
    parents = {child: node for node in ast.walk(line) for child in ast.iter_child_nodes(node)}
    node: ast.AST = call
    while node is not line and node in parents:
        above = parents[node]
        for each in _evaluated_before(above, node):
            reader = above
            while isinstance(reader, _DISPLAYS) and reader in parents:
                reader = parents[reader]
            if isinstance(reader, (ast.expr, ast.AugAssign)):
                yield each, reader
        node = above


def of_what(node: ast.expr) -> ast.expr:
    """What an expression is a part of, or another look at: ``run(x)`` of ``run(x)[0].view(-1)``."""
    while True:
        is_part = isinstance(node, ast.Attribute) and not _is_path(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LOOKS:
            node = node.func.value
        elif is_part or isinstance(node, (ast.Subscript, ast.Starred, ast.NamedExpr)):
            node = node.value  # type: ignore[attr-defined]
        else:
            return node


def _is_path(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and _is_path(node.value))


def _evaluated_before(above: ast.AST, node: ast.AST) -> list[ast.expr]:
    """The parts of an expression that Python evaluates ahead of one of them, and keeps until all are there."""
    parts, inner = _arguments(above), node.value if isinstance(node, ast.keyword) else node
    return parts[: parts.index(inner)] if isinstance(inner, ast.expr) and inner in parts else []


def _arguments(node: ast.AST) -> list[ast.expr]:
    """What an operation, a call or a display has evaluated before it reads any of it, in that order."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.AugAssign):
        return [node.target, node.value]
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    if isinstance(node, ast.Subscript):
        return [node.value, node.slice]
    if isinstance(node, ast.Call):
        bound = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        return [*bound, *node.args, *(each.value for each in node.keywords)]
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return node.elts
    return node.values if isinstance(node, ast.Dict) else []


def _value(node: ast.expr, frame: FrameType) -> Any:
    return path_value(node, frame.f_locals, frame.f_globals)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(value) if is_a(each, torch.Tensor)]
