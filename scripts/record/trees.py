"""What CUDA Graph Trees do while a ``with`` block runs: their graphs, replays, and the inputs that they copy."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from paramgraph_kit.backend.tracing import captured_graph
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.trace.model import Launch, NodeKind, Partition, Trace


@contextmanager
def watching_trees(trace: Trace) -> Iterator[None]:
    """Append each tree node's graph to ``trace`` at its first replay, and every replay with the bytes that it copies.

    Trees throw a graph away once it can be launched; here every graph is kept, which changes nothing on the device.
    """
    tree_node = torch_name("CUDAGraphNode")
    run, make = tree_node.run, torch.cuda.CUDAGraph
    numbers: dict[int, int] = {}
    calls: dict[int, int] = {}
    kept: list[Any] = []  # whatever has an id above must not die before the end

    def watched(self: Any, new_inputs: list[Any]) -> Any:
        if id(self) not in numbers:
            number = numbers[id(self)] = len(trace.captures)
            kept.append(self)
            capture = captured_graph(self.graph, number, number)
            kernels = sum(node.kind is NodeKind.KERNEL for node in capture.nodes)
            trace.partitions.append(Partition(number, f"graph tree, node {number}", True, (), kernels))
            trace.captures.append(capture)
        number = numbers[id(self)]
        copied = [new_inputs[at] for at in self.non_static_input_idx]
        nbytes = sum(x.untyped_storage().nbytes() if _spread(x) else x.nbytes for x in copied if _is_tensor(x))
        trace.launches.append(Launch(number, calls.get(number, 0), 0, 0, nbytes))
        calls[number] = calls.get(number, 0) + 1
        return run(self, new_inputs)

    tree_node.run = watched
    torch.cuda.CUDAGraph = functools.partial(make, keep_graph=True)  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        tree_node.run = run
        torch.cuda.CUDAGraph = make  # type: ignore[misc]


def _is_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor)


def _spread(x: torch.Tensor) -> bool:
    """Whether a tensor is expanded, so that trees copy what it stores and not what it shows."""
    return x.untyped_storage().nbytes() < x.nbytes
