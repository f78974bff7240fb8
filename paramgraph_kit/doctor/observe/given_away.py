"""Results that nobody is seen to keep, as in a queue or by a method of another object: the lines that get them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from inspect import CO_COROUTINE
from types import CodeType, FrameType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of, spans
from paramgraph_kit.doctor.observe.captured_values import path_value
from paramgraph_kit.doctor.observe.copied_names import copy_of
from paramgraph_kit.doctor.observe.held import is_a

_COPIES = ("clone", "deepcopy", "float", "str", "print", "bool", "int")
_LOOKS = ("detach", "flatten", "view", "reshape", "squeeze", "unsqueeze", "t", "transpose", "permute", "ravel", "items")
_RESULT = "RESULT"
_LISTS = ("list", "tuple")


class GivenAway:
    """What functions that replay return, and where they are called."""

    def __init__(self) -> None:
        self._copies: dict[CodeType, str] = {}  # how one copies what it returns; "" where that is no result
        self.ran = set[CodeType]()  # functions of the user's within which a graph was replayed

    def replayed(self, frames: Iterable[FrameType]) -> None:
        """A graph is replayed now."""
        for frame in frames:
            self.ran.add(frame.f_code)
            if frame.f_code not in self._copies:
                self._copies[frame.f_code] = _copied(frame)

    def lines(self, code: CodeType, lines: Mapping[CodeType, set[int]]) -> Iterator[tuple[CodeType, ast.expr, str]]:
        """The calls in a function that give results, each with what is written in its place.

        Args:
            code: the function that reads them in the end, or one that it calls.
            lines: by function, those at which a graph was replayed again.
        """
        names = {each.co_name: each for each in self._copies if each is not code}
        nodes = [*nodes_of(code)]
        parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
        calls = [n for n in nodes if isinstance(n, ast.Call) and any(spans(n, at) for at in lines.get(code, ()))]
        for call in calls:
            by_map = last_name(call.func) == "map" and bool(call.args)
            called = names.get(last_name(call.args[0] if by_map else call.func) or "")
            above = parents.get(call)
            if called is None or isinstance(above, ast.Expr) or _computes(above, parents):
                continue
            if copy := self._copies[called]:
                text = ast.unparse(call)
                whole = above if by_map and isinstance(above, ast.Call) and last_name(above.func) in _LISTS else call
                yield (
                    (code, whole, f"[{copy.replace(_RESULT, 'y')} for y in {text}]")
                    if by_map
                    else (code, call, copy.replace(_RESULT, text))
                )

    def of_coroutine(self, name: str = "") -> tuple[CodeType, ast.Return, ast.expr] | None:
        """The one line by which a coroutine gives its result, within which a graph was replayed; ``name``: of it.

        Where several have replayed it, that which awaits none of the others.
        """
        own = [code for code in self.ran if code.co_flags & CO_COROUTINE and not code.co_name.startswith("<")]
        names = {code.co_name for code in own}
        asked = [c for c in own if name in ("", c.co_name)]
        last = [c for c in asked if names.isdisjoint(last_name(n) for n in nodes_of(c))]
        returns = ((c, n) for c in last for n in nodes_of(c) if isinstance(n, ast.Return))
        found = [(code, node, node.value) for code, node in returns if node.value is not None]
        return found[0] if len(found) == 1 else None


def _copied(frame: FrameType) -> str:
    """How one copies what a function returns, as far as that has a name while it replays; "" for none."""
    returns = [n.value for n in nodes_of(frame.f_code) if isinstance(n, ast.Return) and n.value is not None]
    values: list[Any] = [path_value(each, frame.f_locals, frame.f_globals) for each in returns]
    found = [v for v in values if is_a(v, torch.Tensor) or (type(v) in (dict, list, tuple) and _has_tensors(v))]
    return copy_of(_RESULT, found[0]) if found and len(found) == len(returns) else ""


def _has_tensors(row: Any) -> bool:
    parts = [*row.values()] if type(row) is dict else [*row]
    return bool(parts) and all(is_a(each, torch.Tensor) for each in parts)


def _computes(above: ast.AST | None, parents: Mapping[ast.AST, ast.AST]) -> bool:
    """Whether something else is made of a result at once."""
    if isinstance(above, ast.Attribute) and isinstance(parents.get(above), ast.Call):
        return above.attr not in _LOOKS
    is_copy = isinstance(above, ast.Call) and last_name(above.func) in _COPIES
    return is_copy or isinstance(above, (ast.BinOp, ast.Compare))
