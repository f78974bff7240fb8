"""A fork and a join: activations leave for pinned host memory on a second stream, and come back for the backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from paramgraph_kit.backend.tracing import trace_of_graph
from paramgraph_kit.bench.record.workbench import Workbench, clones
from paramgraph_kit.ledger import Snapshots
from paramgraph_kit.trace.model import PoolEvent, Trace

LAYERS = 4
REPLAYS = 3


class Offloaded:
    """A small network with its backward by hand, so that every copy and every wait can be seen."""

    def __init__(self, layers: int, rows: int, width: int, device: torch.device, cuda: Any) -> None:
        self.cuda, self.device = cuda, device
        self.side = cuda.Stream()
        generator = torch.Generator().manual_seed(0)
        self.weights = [
            (torch.randn(width, width, generator=generator) * (2 / width) ** 0.5).to(device) for _ in range(layers)
        ]
        self.host = [torch.zeros(rows, width).pin_memory() for _ in range(layers)]

    def step(self, x: Tensor) -> list[Tensor]:
        """The last activation, and the gradient of each weight for the sum of its squares."""
        main, side = self.cuda.current_stream(), self.side
        leaving: list[Any] = []  # (event, activation): memory may be used again only after the copy
        for weight, host in zip(self.weights, self.host, strict=True):
            side.wait_stream(main)  # fork: x is complete
            with self.cuda.stream(side):
                host.copy_(x, non_blocking=True)
                gone = self.cuda.Event()
                gone.record()
            leaving.append((gone, x))
            x = torch.relu(x @ weight)
            if len(leaving) > 1:
                main.wait_event(leaving.pop(0)[0])
        for gone, _ in leaving:
            main.wait_event(gone)  # join
        leaving.clear()
        output, gradient = x, 2 * x
        gradients: list[Tensor] = []
        for weight, host in zip(reversed(self.weights), reversed(self.host), strict=True):
            side.wait_stream(main)
            with self.cuda.stream(side):
                back = torch.empty_like(host, device=self.device).copy_(host, non_blocking=True)
            gradient = gradient * (x > 0)  # does not need what comes back: both run at once
            main.wait_stream(side)
            gradients.append(back.t() @ gradient)
            gradient = gradient @ weight.t()
            x = back
        return [output, *gradients]


def fork_join() -> Trace:
    """The step captured by hand, replayed on new inputs, and compared with eager."""
    bench = Workbench()
    rows, width = (4096, 1024) if bench.real else (8, 16)
    work = Offloaded(LAYERS, rows, width, bench.device, bench.cuda)
    inputs = [torch.randn(rows, width, generator=torch.Generator().manual_seed(n)).to(bench.device) for n in range(4)]
    expected = [clones(work.step(x)) for x in inputs]
    bench.rest()
    events: list[PoolEvent] = []
    memory = Snapshots(events, bench.cuda.memory_snapshot)
    memory.mark()
    graph, static = bench.cuda.CUDAGraph(keep_graph=True), inputs[0].clone()
    with bench.cuda.graph(graph):
        results = work.step(static)
    memory.mark(0)
    trace = trace_of_graph(graph, f"fork and join: {LAYERS} layers, activations offloaded to pinned memory")
    for call in range(1, REPLAYS + 1):
        static.copy_(inputs[call])
        graph.replay()
        bench.cuda.synchronize()
        memory.mark(call)
        trace.compare(f"replay {call} against eager", results, expected[call])
    trace.pool_events += events
    return trace
