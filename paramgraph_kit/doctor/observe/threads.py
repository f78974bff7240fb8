"""Sees what the threads do that a function starts: a capture has none of it, unless their stream is forked from its."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paramgraph_kit.doctor.observe.given_to_operations import filled_by, made_by, written_by
from paramgraph_kit.doctor.observe.host_copies import blocks
from paramgraph_kit.doctor.observe.observer import Observer
from paramgraph_kit.doctor.observe.own_graphs import VIEWS
from paramgraph_kit.doctor.observe.places import Place
from paramgraph_kit.doctor.observe.refusals import Operation, operation
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.driver.replaced import replaced
from paramgraph_kit.driver.select import driver


class InThread(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Tells an observer of the operations of another thread."""

    def __init__(self, observer: Observer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._observer, self._device = observer, driver().device.type

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        op, given = operation(func), [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
        inside = driver().is_capturing()
        around = bool(self._observer.graphs) and op.name not in VIEWS and not inside
        place, written = self._observer.place_in_thread(), written_by(op, args)
        self._observer.graphs.between.has_learned |= place.in_backward
        if around:
            self._observer.graphs.read([t for t in given if id(t) not in written], place)
            self._observer.graphs.wrote((t for t in given if id(t) in written), place)
            self._observer.graphs.flow.wrote(op, args, kwargs or {}, place)
        found = func(*args, **(kwargs or {}))
        if inside and not self._observer.makes_graph:
            self._observer.graphs.saw(op.name, given, found, place)
            self._observer.graphs.follow(op, args, kwargs or {}, found, place)
        if around:
            keys = [storage_key(tensor) for tensor in given]
            self._observer.graphs.fed.saw(op.name, given, keys, written, made_by(found), place)
            self._is_done(op, given, written | filled_by(op, args), found, place, blocks(op, args, kwargs or {}))
        made = [v for v in tree_leaves(found) if isinstance(v, torch.Tensor)]
        if any(tensor.device.type == self._device for tensor in (*given, *made)):
            self._observer.in_thread(op.name, given, made)
        return found

    def _is_done(
        self, op: Operation, given: list[torch.Tensor], written: set[int], result: Any, place: Place, waits: bool
    ) -> None:
        """Work of a graph's surroundings is put on the stream that is this thread's current one."""
        observer, stream = self._observer, driver().current_stream()
        observer.on_stream(given, {id(t): storage_key(t) for t in given}, written, result, place)
        order = observer.unordered.order
        if waits:
            order.host_waits(stream=stream, by_work=True)
        made = [result] if op.name == "_to_copy" and isinstance(result, torch.Tensor) else []
        observer.unordered.hosts.saw(op, [*given, *made], written, waits, order, stream, place)


@contextmanager
def threads_watched(observer: Observer) -> Iterator[None]:
    """Watch threads that are started meanwhile, and what is given to pools of threads."""
    seen = set[int]()

    def under(function: Callable[..., Any]) -> Callable[..., Any]:
        place = observer.places.here()

        def run(*args: Any, **kwargs: Any) -> Any:
            observer.given_work[own := threading.get_ident()] = place
            if own in seen:  # a thread of a pool, which is watched from its start
                return function(*args, **kwargs)
            seen.add(own)
            with InThread(observer):
                try:
                    return function(*args, **kwargs)
                finally:
                    seen.discard(own)

        return run

    def starting(start: Any) -> Any:
        def call(thread: threading.Thread) -> None:
            observer.threads += 1
            thread.run = under(thread.run)  # type: ignore[method-assign]
            start(thread)

        return call

    def submitting(submit: Any) -> Any:
        def call(pool: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
            return submit(pool, under(function), *args, **kwargs)

        return call

    with ExitStack() as stack:
        stack.enter_context(replaced(threading.Thread, "start", starting))
        stack.enter_context(replaced(ThreadPoolExecutor, "submit", submitting))
        yield
