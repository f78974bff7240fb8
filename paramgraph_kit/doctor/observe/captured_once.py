"""Programs that capture into a graph from around them, and are run once: called again, that holds a capture already."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from weakref import ref

from paramgraph_kit.doctor.explain.syntax import ROUNDS, every, last_name, tree_of
from paramgraph_kit.driver.files import is_cell, is_library
from paramgraph_kit.driver.replaced import replaced
from paramgraph_kit.driver.select import twin

NOTE = (
    "it captures into a graph that is made around it, once: called again it would raise, unless that is made in it, or "
    "`reset()` ahead of its capture"
)


def is_run_once(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a function is given nothing, and its file calls it at one place at most, outside of all loops."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if args or kwargs or code is None or is_cell(code.co_filename) or is_library(code.co_filename):
        return False
    tree = tree_of(code.co_filename)
    if tree is None:
        return False
    name = code.co_name
    calls = [n for n in every(tree) if isinstance(n, ast.Call) and last_name(n.func) == name]
    in_loops = {n for loop in every(tree) if isinstance(loop, ROUNDS) for n in ast.walk(loop)}
    return len(calls) <= 1 and not any(call in in_loops for call in calls)


class CapturedOnce:
    """Graphs that an earlier call of the doctor's has captured, and that a program's own run finds empty."""

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.applies = is_run_once(function, args, kwargs)
        self.has_reset = False
        self._before = dict[int, ref[Any]]()

    def __iter__(self) -> Iterator[str]:
        """What is noted of them."""
        yield from [NOTE] * self.has_reset

    @contextmanager
    def call(self) -> Iterator[None]:
        """In one call, of which the first capture in each such graph is as if it were the first of all."""
        now = dict[int, ref[Any]]()

        def begins(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(graph: Any, *args: Any, **kwargs: Any) -> Any:
                before = self._before.get(id(graph), lambda: None)()
                if before is not None and before is graph and id(graph) not in now:
                    graph.reset()
                    self.has_reset = True
                now[id(graph)] = ref(graph)
                return function(graph, *args, **kwargs)

            return call

        with replaced(twin().CUDAGraph, "capture_begin", begins) if self.applies else nullcontext():
            yield
        self._before |= now
