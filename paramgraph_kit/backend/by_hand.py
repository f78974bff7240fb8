"""Graphs that the user captures and replays by hand, seen while somebody watches."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

from paramgraph_kit.driver.replaced import replaced
from paramgraph_kit.driver.select import driver, twin

NOT_BY_HAND = "torch._inductor"  # CUDAGraph Trees are nobody's own captures
NOT_THE_USERS = ("torch.", "paramgraph_kit.driver")  # ``torch.cuda.graph``, told of as a whole, and what we record
Captured = Callable[[Any, int], None]  # a graph, and how many nodes were recorded into it
Failed = Callable[[BaseException], None]
Replayed = Callable[[Any], None]


@contextmanager
def by_hand(captured: Captured, failed: Failed, replayed: Replayed) -> Iterator[None]:
    """Tell of every capture that ends or fails, and of every replay, in any thread."""
    cuda, target = twin(), driver()

    def leaving(leave: Any) -> Any:
        @functools.wraps(leave)
        def told(manager: Any, kind: Any, error: Any, traceback: Any) -> Any:
            try:
                nodes = target.recorded_nodes() if error is None else 0
                left = leave(manager, kind, error, traceback)
            except BaseException as last:
                failed(last)
                raise
            if error is not None:
                failed(error)
            elif not _is_torchs(sys._getframe(1)):
                captured(manager.cuda_graph, nodes)
            return left

        return told

    def ending(end: Any) -> Any:
        @functools.wraps(end)
        def told(graph: Any) -> Any:
            if _module(sys._getframe(1)).startswith(NOT_THE_USERS):
                return end(graph)
            nodes = target.recorded_nodes()
            try:
                ended = end(graph)
            except BaseException as last:
                failed(last)
                raise
            captured(graph, nodes)
            return ended

        return told

    def replaying(replay: Any) -> Any:
        @functools.wraps(replay)
        def told(graph: Any) -> Any:
            result = replay(graph)
            if not _is_torchs(sys._getframe(1)):
                replayed(graph)
            return result

        return told

    with ExitStack() as stack:
        stack.enter_context(replaced(cuda.graph, "__exit__", leaving))
        stack.enter_context(replaced(cuda.CUDAGraph, "capture_end", ending))
        stack.enter_context(replaced(cuda.CUDAGraph, "replay", replaying))
        yield


def _is_torchs(caller: FrameType) -> bool:
    return _module(caller).startswith(NOT_BY_HAND)


def _module(caller: FrameType) -> str:
    return str(caller.f_globals.get("__name__", ""))
