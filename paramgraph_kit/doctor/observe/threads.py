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

from paramgraph_kit.doctor.observe.observer import Observer
from paramgraph_kit.doctor.observe.refusals import operation
from paramgraph_kit.driver.replaced import replaced
from paramgraph_kit.driver.select import driver


class InThread(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Tells an observer of the operations of another thread."""

    def __init__(self, observer: Observer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._observer, self._device = observer, driver().device.type

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        given = [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
        made = [v for v in tree_leaves(found) if isinstance(v, torch.Tensor)]
        if any(tensor.device.type == self._device for tensor in (*given, *made)):
            self._observer.in_thread(operation(func).name, given, made)
        return found


@contextmanager
def threads_watched(observer: Observer) -> Iterator[None]:
    """Watch threads that are started meanwhile, and what is given to pools of threads."""

    def under(function: Callable[..., Any]) -> Callable[..., Any]:
        place = observer.places.here()

        def run(*args: Any, **kwargs: Any) -> Any:
            observer.given_work[threading.get_ident()] = place
            with InThread(observer):
                return function(*args, **kwargs)

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
