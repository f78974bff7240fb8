"""A fork and a join on two streams, captured by hand: ``offload`` with its activations in host memory, or kept."""

from __future__ import annotations

import torch

from paramgraph_kit.backend.tracing import trace_of_graph
from paramgraph_kit.doctor.restore.repair import capture
from paramgraph_kit.ledger import Snapshots
from paramgraph_kit.trace.model import PoolEvent, Trace
from scripts.record.program import run_program
from scripts.record.workbench import Workbench, clones

LAYERS = 8
REPLAYS = 3
PROGRAM = "offload.py"


def fork_join(*, offload: bool) -> Trace:
    """The step captured by hand, replayed on new inputs, and compared with eager."""
    bench = Workbench()
    rows, width = (4096, 1024) if bench.real else (8, 16)
    work = run_program(PROGRAM)["Offloading"](bench.cuda, bench.device, LAYERS, rows, width, offload)
    inputs = [torch.randn(rows, width, generator=torch.Generator().manual_seed(n)).to(bench.device) for n in range(4)]
    expected = [[x.cpu() for x in work.step(x)] for x in inputs]
    static = clones(inputs[:1])[0]
    bench.rest()
    events: list[PoolEvent] = []
    memory = Snapshots(events, bench.cuda.memory_snapshot)
    memory.mark()
    graph = bench.cuda.CUDAGraph(keep_graph=True)
    with capture(graph, lines=True):
        results = work.step(static)
    memory.mark(0)
    where = "offloaded to pinned memory on a second stream" if offload else "kept on the device"
    trace = trace_of_graph(graph, f"{LAYERS} layers forward and backward, activations {where}")
    for call in range(1, REPLAYS + 1):
        static.copy_(inputs[call])
        graph.replay()
        bench.cuda.synchronize()
        memory.mark(call)
        trace.compare(f"replay {call} against eager", [x.cpu() for x in results], expected[call])
    trace.pool_events += events
    return trace
