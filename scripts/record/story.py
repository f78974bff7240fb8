"""One model from a broken capture to a parameterized one: three traces, each with what its numbers came to."""

from __future__ import annotations

from typing import Any

import torch

from paramgraph_kit.backend import make_options
from paramgraph_kit.backend.parameterized import parameterize
from paramgraph_kit.backend.tracing import trace_of_graph
from paramgraph_kit.doctor.restore.repair import capture
from paramgraph_kit.ledger import Snapshots
from paramgraph_kit.trace.model import Launch, PoolEvent, Trace
from scripts.record.program import run_program
from scripts.record.workbench import Workbench, clones

CALLS = 3
NEW_TENSOR = "a call on a new tensor, against eager"


class _Scene:
    """The model, inputs, and what eager makes of them."""

    def __init__(self, name: str) -> None:
        self.bench = Workbench()
        rows, width = (4096, 1024) if self.bench.real else (8, 16)
        torch.manual_seed(0)
        self.model = run_program("clipping.py")[name](width).to(self.bench.device).requires_grad_(False)
        generator = torch.Generator().manual_seed(0)
        self.inputs = [torch.randn(rows, width, generator=generator).to(self.bench.device) for _ in range(CALLS + 1)]
        self.expected = [self.model(x).cpu() for x in self.inputs]
        self.bench.rest()
        self.events: list[PoolEvent] = []
        self.memory = Snapshots(self.events, self.bench.cuda.memory_snapshot)
        self.memory.mark()

    def capture(self) -> tuple[Any, torch.Tensor, torch.Tensor]:
        """(graph, static input, static output) of the model captured by hand."""
        graph, static = self.bench.cuda.CUDAGraph(keep_graph=True), clones(self.inputs[:1])[0]
        with capture(graph, lines=True):
            output = self.model(static)
        return graph, static, output


def broken() -> Trace:
    """The capture fails at the line that reads a value back."""
    scene = _Scene("Broken")
    title = "broken: a value is read back during capture"
    try:
        with scene.bench.watch(title) as (trace, _):
            scene.capture()
    except Exception:
        pass  # explained in the trace
    else:
        raise RuntimeError("the capture was to fail, and did not")
    return trace


def captured() -> Trace:
    """The fixed model captured by hand: right after a copy into the static input, wrong on a tensor of one's own."""
    scene = _Scene("Fixed")
    graph, static, output = scene.capture()
    scene.memory.mark(0)
    trace = trace_of_graph(graph, "fixed: captured by hand, with a static input")
    graph.replay()  # nobody tells it of the new tensor
    trace.compare(NEW_TENSOR, output.cpu(), scene.expected[1])
    for call in range(1, CALLS + 1):
        static.copy_(scene.inputs[call])
        graph.replay()
        trace.launches.append(Launch(0, call, 0, 0, static.nbytes))
        trace.compare("a call after a copy into the static input, against eager", output.cpu(), scene.expected[call])
    scene.memory.mark(CALLS)
    trace.pool_events += scene.events
    return trace


def parameterized() -> Trace:
    """The same model, launched at whatever addresses come."""
    scene = _Scene("Fixed")
    step = parameterize(scene.model, (), make_options({}))
    with scene.bench.watch("parameterized: any tensor, no copies") as (trace, _):
        for call in range(CALLS + 1):
            got = step(scene.inputs[call])
            if call:
                trace.compare(NEW_TENSOR, got.cpu(), scene.expected[call])
            del got
        scene.memory.mark(CALLS)
    trace.pool_events += scene.events
    return trace
