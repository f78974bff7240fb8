"""The lists, dictionaries and queues that a function can name, and whether lines take from them what waits there."""

from __future__ import annotations

import ast
import asyncio
import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, TypeVar

import torch

from paramgraph_kit.doctor.explain.syntax import every, last_name, nodes_of, tree_of
from paramgraph_kit.doctor.observe.held import attributes_of, is_a
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.doctor.restore.simple_queues import list_of
from paramgraph_kit.trace.model import Frame

MOST = 4096  # entries of what is looked at
_NO_HOLDERS = (torch.nn.Module, torch.Tensor, ModuleType, FunctionType, type)
Key = TypeVar("Key")
TAKES = ("pop", "popleft", "get", "get_nowait")


def named_in(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """What a function can name, with the lists that a dictionary, or an object of the user's, has: ``log["out"]``."""
    for name, value in ((name, _waiting_in(value)) for name, value in _variables(frame)):
        yield name, value
        inner = value if type(value) is dict else {} if is_a(value, _NO_HOLDERS) else attributes_of(value)
        for key, part in islice(inner.items(), MOST):
            if type(held := _waiting_in(part)) in (list, deque):
                yield (f"{name}[{key!r}]" if type(value) is dict else f"{name}.{key}"), held


def _variables(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """What a function can name: its variables, the globals that it reads, and what its object has."""
    own = dict(frame.f_locals)
    yield from own.items()
    yield from ((name, frame.f_globals[name]) for name in frame.f_code.co_names if name in frame.f_globals)
    first = next(iter(frame.f_code.co_varnames[:1]), "")
    yield from ((f"{first}.{name}", value) for name, value in attributes_of(own.get(first)).items())


def _waiting_in(value: Any) -> Any:
    """The list, or the deque, that a queue keeps its entries in; anything else as it is."""
    if is_a(value, queue.Queue):  # also one that is a stack, or has an order
        return value.queue
    if is_a(value, queue.SimpleQueue):
        return list_of(value)
    return getattr(value, "_queue", value) if is_a(value, asyncio.Queue) else value


def bound_at(code: CodeType, name: str) -> Iterator[Frame]:
    """The lines of a function, or else of its file, that give a list's name what a call makes of what it was given.

    A list that is written out has what it has twice on purpose: ``pair = [state, state]``.
    """
    tree, last = tree_of(code.co_filename), name.rpartition(".")[2]
    for nodes in ([*nodes_of(code)], [*every(tree)] if tree is not None else []):
        given = [n for n in nodes if isinstance(n, ast.Assign) and last in [last_name(t) for t in n.targets]]
        lines = [n.lineno for n in given if isinstance(n.value, ast.Call) and (n.value.args or n.value.keywords)]
        yield from (frame_at(code, line) for line in lines)
        if lines:
            return


class HostsThatWait:
    """Memory of the host's in lists: another of a ring may be filled next, so that a replay alone is not late."""

    def __init__(self) -> None:
        self._had: dict[int, dict[tuple[int, torch.Size], int]] = {}  # how often each was filled

    def untouched(
        self, held: Any, tensors: Iterable[torch.Tensor], times: Callable[[torch.Tensor], int]
    ) -> set[tuple[int, torch.Size]]:
        """What no copy has filled since it was seen there; ``times``: how often copies have filled a tensor."""
        now = {(t.data_ptr(), t.shape): times(t) for t in tensors if t.device.type == "cpu"}
        had = self._had.get(id(held), {})
        self._had[id(held)] = now
        return {key for key, often in now.items() if had.get(key, often) == often}


def taken_of(late: set[Key], code: CodeType, name: str) -> set[Key]:
    """What is written over while it waits under this name, where a line takes such entries, and does not drop them."""
    tree = tree_of(code.co_filename) if late else None
    return late if tree is not None and name.rpartition(".")[2] in _taken(tree) else set()


@lru_cache(64)
def _taken(tree: ast.Module) -> frozenset[str]:
    nodes = every(tree)
    dropped = {id(n.value) for n in nodes if isinstance(n, ast.Expr)}
    dropped |= {id(n.value) for n in nodes if isinstance(n, ast.Await) and id(n) in dropped}
    calls = [n for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    taken = [n.func.value for n in calls if last_name(n.func) in TAKES and id(n) not in dropped]  # type: ignore[attr-defined]
    return frozenset(name for each in taken if (name := last_name(each)))


def emptied_by(loop: ast.While) -> str:
    """What a loop goes on with until that is empty, ``while waiting:``, taking what it has; "" of any other."""
    held, inside = ast.unparse(loop.test), [n for s in loop.body for n in ast.walk(s)]
    takes = (n.func for n in inside if isinstance(n, ast.Call))
    taken = any(isinstance(f, ast.Attribute) and f.attr in TAKES and ast.unparse(f.value) == held for f in takes)
    return held if taken and not any(isinstance(n, ast.Break) for n in inside) else ""


def emptied_behind(added: ast.Call, nodes: Iterable[ast.AST]) -> bool:
    """Whether lines of the same round take all that a list has, behind the one that adds to it."""
    held = ast.unparse(added.func.value) if isinstance(added.func, ast.Attribute) else ""
    loops = (n for n in nodes if isinstance(n, ast.While) and n.lineno > added.lineno)
    return any(emptied_by(each) == held for each in loops)
