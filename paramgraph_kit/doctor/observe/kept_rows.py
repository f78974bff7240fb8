"""What is kept as several at once, ``(x, y)`` or ``{"loss": x}``: the same with a copy of each tensor."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from types import FrameType
from typing import Any, TypeGuard

import torch

from paramgraph_kit.doctor.explain.syntax import LOOPS, last_name, nodes_of
from paramgraph_kit.doctor.observe.held import attributes_of, is_a

_MOST = 4096  # entries that are looked at
_PATHS = (ast.Name, ast.Attribute, ast.Subscript)
_NUMBERS = ("item", "tolist", "float", "int", "bool", "len", "str")  # what calls of these give is no tensor


def row_with_clones(row: ast.expr, held: Any) -> str:
    """A tuple, a list or a dictionary with copies of its tensors; "" for anything else.

    Args:
        row: what is kept.
        held: what has such rows already, and shows which of their parts are tensors.
    """
    rows = [*islice(held, _MOST)] if type(held) in (list, deque) else []  # one of the user's goes its own way
    rows = [*islice(held.values(), _MOST)] if type(held) is dict else rows
    if isinstance(row, (ast.Tuple, ast.List)):
        alike = [each for each in rows if type(each) in (tuple, list) and len(each) == len(row.elts)]
        known = [[each[number] for each in alike] for number in range(len(row.elts))]
        if isinstance(row, ast.List) and not alike and all(is_a(each, torch.Tensor) for each in rows):
            known = [rows[number :: len(row.elts)] for number in range(len(row.elts))]  # kept += [x]
        parts = [_part(*pair) for pair in zip(row.elts, known, strict=True)]
        return f"[{', '.join(parts)}]" if isinstance(row, ast.List) else f"({', '.join(parts)})"
    named = [each for each in rows if type(each) is dict]
    if isinstance(row, ast.Dict):
        parts = []
        for key, value in zip(row.keys, row.values, strict=True):
            constant = isinstance(key, ast.Constant)
            known = [each[key.value] for each in named if constant and key.value in each]  # type: ignore[union-attr]
            parts.append(f"{ast.unparse(key)}: {_part(value, known)}" if key is not None else f"**{ast.unparse(value)}")
        return f"{{{', '.join(parts)}}}"
    if (
        isinstance(row, ast.Call)
        and ast.unparse(row.func) == "dict"
        and not row.args
        and all(k.arg for k in row.keywords)
    ):
        parts = [f"{k.arg}={_part(k.value, [each[k.arg] for each in named if k.arg in each])}" for k in row.keywords]
        return f"dict({', '.join(parts)})"
    return ""


def row_of(row: ast.expr, results: Collection[str]) -> Any:
    """What a list of such rows shows, where the text tells which parts are results; None for no row.

    Args:
        row: what is kept.
        results: the parts that are results, as they are written.
    """
    one = torch.empty(0)
    if isinstance(row, (ast.Tuple, ast.List)) and results:
        made: Any = [one if ast.unparse(each) in results else None for each in row.elts]
        return [made] * 2
    if isinstance(row, ast.Dict) and results:
        pairs = [(key, value) for key, value in zip(row.keys, row.values, strict=True) if isinstance(key, ast.Constant)]
        return [{key.value: one if ast.unparse(value) in results else None for key, value in pairs}] * 2
    return None


def may_be_kept(what: ast.expr | None) -> TypeGuard[ast.expr]:
    """Whether what a line adds can be another tensor's memory: what is computed there has its own."""
    if isinstance(what, ast.Call) and last_name(what.func) in _NUMBERS:
        return False
    return what is not None and not isinstance(what, (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Constant, ast.JoinedStr))


def lists_in(part: Any, deep: int = 3) -> Iterator[tuple[str, Any]]:
    """The lists that objects of the user's in an entry have as attributes, with these attributes' names."""
    if not deep or is_a(part, (torch.Tensor, torch.nn.Module)):
        return
    if type(part) in (list, tuple, deque):
        for each in islice(part, _MOST):
            yield from lists_in(each, deep - 1)
    for name, each in attributes_of(part).items():
        if type(each) in (list, deque):
            yield name, each
        yield from lists_in(each, deep - 1)


@dataclass(frozen=True, slots=True)
class Row:
    """A line that keeps several things as one, with which of them are a graph's memory."""

    node: ast.Assign
    held: list[Any]


def result_in_row(frame: FrameType, name: str, value: Any, owns: Callable[[torch.Tensor], bool]) -> Row | None:
    """The line of a loop that has kept a result behind a replay beside other things: ``best = (score, out)``.

    Args:
        frame: of the function whose loop replays a graph now.
        name: of what is kept.
        value: what it is.
        owns: whether a tensor is memory that the graph writes.
    """
    parts = [*value.values()] if type(value) is dict else [*value] if type(value) in (list, tuple) else []
    is_own = [is_a(each, torch.Tensor) and owns(each) for each in parts[:_MOST]]
    if len(parts) > _MOST or not any(is_own):
        return None
    mine = [each if own else None for each, own in zip(parts, is_own, strict=True)]
    held: Any = dict(zip(value, mine, strict=True)) if type(value) is dict else type(value)(mine)
    nodes, line = [*nodes_of(frame.f_code)], frame.f_lineno
    for loop in (n for n in nodes if isinstance(n, LOOPS) and n.lineno <= line <= (n.end_lineno or line)):
        for node in (n for n in ast.walk(loop) if isinstance(n, ast.Assign) and n.lineno > line):
            is_row = isinstance(node.value, (ast.Tuple, ast.List, ast.Dict)) and len(node.targets) == 1
            if is_row and ast.unparse(node.targets[0]) == name and row_with_clones(node.value, [held]):
                return Row(node, [held])
    return None


def _part(part: ast.expr, known: list[Any]) -> str:
    text, tensors = ast.unparse(part), [is_a(each, torch.Tensor) for each in known]
    if isinstance(part, ast.Call) and all(tensors) and len({t.data_ptr() for t in known}) < len(known):
        return f"{text}.clone()"  # calls have given the same memory, of one graph or of some in turn
    if not isinstance(part, _PATHS) or (known and not any(tensors)):
        return text  # a call makes another one, and a number has no clone()
    return f"{text}.clone()" if all(tensors) else f"{text}.clone() if torch.is_tensor({text}) else {text}"
