"""A backward pass, seen node by node: by itself it is one call of C++."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def at_each_node(tell: Callable[[], None]) -> Iterator[None]:
    """While the block runs, ``tell()`` before each node of each backward pass, on the thread that runs it.

    Nodes that accumulate gradients are left alone: a hook would have them copy what they may take.
    """
    autograd: Any = torch.autograd
    real = autograd._engine_run_backward

    def hook(_: Any) -> None:
        tell()

    def run(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        handles = [node.register_prehook(hook) for node in _behind(outputs)]
        try:
            return real(outputs, *args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()

    autograd._engine_run_backward = run
    try:
        yield
    finally:
        autograd._engine_run_backward = real


def _behind(outputs: Any) -> list[Any]:
    """The nodes that gradients of these pass through."""
    todo = [getattr(out, "grad_fn", None) or getattr(out, "node", None) for out in outputs]
    found: dict[Any, None] = {}
    while todo:
        node = todo.pop()
        if node is None or node in found or node.name() == "torch::autograd::AccumulateGrad":
            continue
        found[node] = None
        todo += [following for following, _ in node.next_functions]
    return list(found)
