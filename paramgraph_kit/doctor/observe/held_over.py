"""What a step takes of a graph's memory ahead of its replays, for what is there then: behind them it is another thing.

``old = state``, a replay, ``state - old``: who compares memory with itself has meant what was there before.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, pairwise
from types import CodeType, FrameType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of, pairs_of, spans
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.captured_values import path_value
from paramgraph_kit.doctor.observe.copied_names import cloned_at
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.held_beside import LOOKS, held_beside
from paramgraph_kit.doctor.observe.places import frames_of_the_user
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.trace.model import Failure

_SAID = "it is kept as it is, and each further replay writes to the same memory"
_DEEP = 3  # functions that hand on what is compared
_COMPARE = frozenset(
    """sub rsub mse_loss l1_loss smooth_l1_loss huber_loss dist cdist pairwise_distance cosine_similarity eq ne lt le gt
    ge equal isclose allclose is_close kl_div assert_close""".split()  # noqa: SIM905 - shorter so
)
_PATHS = (ast.Name, ast.Attribute)
_EACH_BY_ITSELF = ("cosine_similarity",)
_MOST = 4096  # entries of a list


class HeldOver:
    """Names, and lists, that had memory of a graph's when it was replayed, in one call."""

    def __init__(self) -> None:
        self._names: dict[tuple[CodeType, str], set[int]] = {}
        self._lists: dict[int, _Begun] = {}
        self.beside: dict[tuple[CodeType, str], Failure] = {}  # what is read beside what it was

    def look(
        self,
        frame: FrameType,
        name: str,
        value: Any,
        owns: Callable[[torch.Tensor], bool],
        moved: Collection[int],
    ) -> None:
        """A graph is replayed, and a variable of a function that runs now has this.

        ``owns``: whether a tensor is one that it fills; ``moved``: memory of before that it writes in any way.
        """

        def is_written(part: Any) -> bool:
            return is_a(part, torch.Tensor) and (owns(part) or storage_key(part) in moved)

        if is_written(value):
            self._names.setdefault((frame.f_code, name), set()).add(key := storage_key(value))
            for node, what in held_beside(frame, name, key):
                self.beside[frame.f_code, f"{ast.unparse(node)} {node.lineno}"] = _told_at(frame.f_code, node, what)
        elif type(value) is list and id(value) not in self._lists and name.isidentifier():
            mine = [
                each
                for each in value[:_MOST]
                if is_a(each, torch.Tensor) and (owns(each) or storage_key(each) in moved)
            ]
            keys = {storage_key(each) for each in mine}
            told = [*_first_of_list(frame, name, keys)] if mine else []
            self._lists[id(value)] = _Begun(len(value), {each.shape for each in mine}, keys, told)

    def of_list(self, held: Any) -> list[Failure]:
        """The lines with which a list began that has got more since, of what a graph writes over."""
        begun = self._lists.pop(id(held), None)
        if begun is None or not begun.told or type(held) is not list:
            return []
        new = [each for each in held[begun.size : _MOST] if is_a(each, torch.Tensor)]
        still = any(is_a(each, torch.Tensor) and storage_key(each) in begun.keys for each in held[: begun.size])
        return begun.told if still and any(each.shape in begun.shapes for each in new) else []

    def against_itself(self, tensors: list[torch.Tensor]) -> Iterator[tuple[CodeType, str, Failure]]:
        """An operation is given the same memory twice: the lines that hold what a graph writes by another name."""
        if not self._names or not tensors:
            return
        twice = any(_is_same(a, b) for a, b in pairwise(tensors[:3])) or _is_alone(next(frames_of_the_user(), None))
        keys = {storage_key(each) for each in tensors} if twice else set()
        for deep, frame in enumerate(islice(frames_of_the_user(), _DEEP) if keys else ()):
            held = {name: mine & keys for (code, name), mine in self._names.items() if code is frame.f_code}
            nodes = [*nodes_of(frame.f_code)] if any(held.values()) else []
            for both in _compared(nodes, frame.f_lineno, deep):
                memory = {_memory(path, frame) for path in both}
                if len({*map(ast.unparse, both)}) == 1 or len(memory) > 1 or memory.isdisjoint(keys):
                    continue
                own = [path.id for path in both if isinstance(path, ast.Name) and held.get(path.id)]
                lines = filter(None, (_holding(nodes, name, frame, keys) for name in own))
                for node, *what in min(lines, key=lambda each: each[0][0].lineno, default=[]):
                    yield frame.f_code, f"{ast.unparse(node)} {node.lineno}", _told_at(frame.f_code, node, *what)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A list, as it was at the first replay."""

    size: int
    shapes: set[torch.Size]
    keys: set[int]
    told: list[Failure]


def _told_at(code: CodeType, node: ast.stmt, *what: ast.expr) -> Failure:
    """What is told of a line that holds memory as it is, which needs a copy of it."""
    before, after = cloned_at(node, *what)
    failure = BY_ID["output-alias"].failure(_SAID, frame_at(code, node.lineno))
    return replace(failure, fix=f"before  {before}\nafter   {after}")


def _first_of_list(frame: FrameType, name: str, keys: set[int]) -> Iterator[Failure]:
    """The lines with which a function begins a list of its own: ``rows = [state]``, or ``rows.append(state)`` ahead."""
    code = frame.f_code
    for node in nodes_of(code):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            entries = node.value.elts if isinstance(node.value, ast.List) else []
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and node.lineno < frame.f_lineno:
            func = node.value.func
            adds = isinstance(func, ast.Attribute) and func.attr == "append" and ast.unparse(func.value) == name
            entries = node.value.args if adds else []
        else:
            continue
        if held := [each for each in entries if _memory(_looked_at(each), frame) in keys]:
            yield _told_at(code, node, *held)


@lru_cache(256)
def _similar_lines(code: CodeType) -> frozenset[int]:
    """The lines of a function that ask for a similarity: torch computes it of each side by itself."""
    calls = [n for n in nodes_of(code) if isinstance(n, ast.Call) and last_name(n.func) in _EACH_BY_ITSELF]
    return frozenset(line for n in calls for line in range(n.lineno, (n.end_lineno or n.lineno) + 1))


def _is_alone(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_lineno in _similar_lines(frame.f_code)


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    same = storage_key(one) == storage_key(other) and one.numel() == other.numel()
    return same and one.data_ptr() == other.data_ptr()


def _compared(nodes: list[ast.AST], line: int, deep: int) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What a line compares with what: paths, without what only looks at them; of callers, what they hand on."""
    for node in nodes:
        if not isinstance(node, ast.expr) or not spans(node, line):
            continue
        parts: list[ast.expr] = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            parts = [node.left, node.right]
        elif isinstance(node, ast.Compare) and len(node.comparators) == 1:
            parts = [node.left, node.comparators[0]]
        elif isinstance(node, ast.Call):
            name = last_name(node.func)
            own = [node.func.value] if isinstance(node.func, ast.Attribute) else []
            parts = [*own, *node.args] if deep or name in _COMPARE else []
        paths = [path for path in map(_looked_at, parts) if isinstance(path, _PATHS)]
        yield from ((a, b) for n, a in enumerate(paths) for b in paths[n + 1 :])


def _looked_at(node: ast.expr) -> ast.expr:
    """What calls that give another look at a tensor begin with."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOKS:
        node = node.func.value
    return node


def _memory(path: ast.expr, frame: FrameType) -> int:
    """What names the memory of a path's tensor; 0 for anything else."""
    value = path_value(path, frame.f_locals, frame.f_globals)
    return storage_key(value) if is_a(value, torch.Tensor) else 0


def _holding(nodes: list[ast.AST], name: str, frame: FrameType, keys: set[int]) -> list[tuple[Any, ast.expr]]:
    """The lines of a function that give a variable of its own what another path has, with that."""
    pairs = [(node, target, value) for node in nodes for target, value in pairs_of(node)]
    own = [(node, value) for node, target, value in pairs if isinstance(target, ast.Name) and target.id == name]
    return [(node, value) for node, value in own if _memory(_looked_at(value), frame) in keys]
