"""What every recording needs: the device, a trace that fills while code runs, and the allocator's state at moments."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from paramgraph_kit.backend.registry import compiled_graphs
from paramgraph_kit.backend.watch import watching
from paramgraph_kit.doctor import explain
from paramgraph_kit.driver.select import device as find_device
from paramgraph_kit.driver.select import twin
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.ledger import Snapshots
from paramgraph_kit.trace.model import PoolEvent, Trace
from paramgraph_kit.verbs._device import check_backward


class Workbench:
    """The device of this process; everything in here is the same on a GPU and on the simulator."""

    def __init__(self) -> None:
        self.device = find_device()
        self.cuda: Any = twin()
        self.real = self.device.type == "cuda"
        if self.real:
            torch.backends.cudnn.deterministic = True
            # Each block in a snapshot then has the line that asked for it.
            torch_name("_record_memory_history")("all", context="alloc", stacks="python", max_entries=100_000)
        else:
            check_backward(self.device)

    @contextmanager
    def watch(self, title: str) -> Iterator[tuple[Trace, Snapshots]]:
        """A trace of the block, and the allocator's snapshots that go into it."""
        events: list[PoolEvent] = []
        with watching(title, explain) as trace:
            yield trace, Snapshots(events, self.cuda.memory_snapshot)
        trace.pool_events += events

    def rest(self) -> None:
        """Give back all that nobody holds, as one does between two phases of a job."""
        self.cuda.synchronize()
        gc.collect()
        self.cuda.empty_cache()

    @contextmanager
    def ungraphed(self) -> Iterator[None]:
        """Run the very same compiled code without graphs in the block."""
        launchers = [launcher for graph in compiled_graphs() for launcher in graph.launchers]
        for launcher in launchers:
            launcher.pause()
        try:
            yield
        finally:
            for launcher in launchers:
                launcher.resume()


def clones(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies that stay what they are."""
    return [tensor.detach().clone() for tensor in tensors]
