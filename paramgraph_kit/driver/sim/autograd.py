"""Which stream a backward belongs to.

CUDA's engine runs every backward node on the stream on which it was made. For an operation's node a log of (sequence
number, stream) per thread answers that; what accumulates the gradient of a leaf is made by the first operation that
uses it, and lives as long as anything that was computed from it.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from paramgraph_kit.driver.torch_names import torch_name

task_id: Callable[[], int] = torch_name("_current_graph_task_id")
current_node: Callable[[], Any] = torch_name("_current_autograd_node")
sequence_number: Callable[[], int] = torch_name("_get_sequence_nr")

S = TypeVar("S")  # a stream: this file looks into none
Log = list[tuple[int, S]]  # (sequence number, stream chosen before it), oldest first

_TAG = "paramgraph_kit sim stream"
_AUTOGRAD = torch_name("DispatchKey").AutogradFunctionality
_above = torch_name("_SetExcludeDispatchKeyGuard")
_asking = threading.local()


def made_on(node: Any, log: Log[S]) -> S | None:
    """The stream on which a node was made; None stands for the default stream."""
    if node.name() == "torch::autograd::AccumulateGrad":
        found: S | None = node.metadata.get(_TAG)
        return found
    i = bisect_right(log, node._sequence_nr(), key=lambda entry: entry[0])
    return log[i - 1][1] if i else None


def note_leaf(tensor: torch.Tensor, stream: object) -> None:
    """A leaf is used on a stream: if nothing accumulates its gradient yet, what does is made there."""
    if getattr(_asking, "now", False):
        return  # torch makes a view to find the node
    _asking.now = True
    try:
        with _above(_AUTOGRAD, False):  # a kernel runs below autograd
            node: Any = torch.autograd.graph.get_gradient_edge(tensor).node
    finally:
        _asking.now = False
    node.metadata.setdefault(_TAG, stream)


def all_behind(node: Any) -> Iterator[Any]:
    """A node and every one that its gradients flow to."""
    seen, todo = {node}, [node]
    while todo:
        node = todo.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                todo.append(following)
