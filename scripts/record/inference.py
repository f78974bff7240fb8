"""Inference of models as their libraries have them, with random weights, under paramgraph."""

from __future__ import annotations

import importlib

import torch

from paramgraph_kit.backend import paramgraph
from paramgraph_kit.bench.workloads import Workload, gpt2, resnet50
from paramgraph_kit.trace.errors import UnsupportedError
from paramgraph_kit.trace.model import Trace
from scripts.record.workbench import Workbench, clones

CALLS = 5


def gpt2_inference() -> Trace:
    """GPT-2 small of transformers."""
    if Workbench().real:
        return _inference(gpt2("gpt2", training=False), "GPT-2 small, inference, 2 x 128 tokens", "transformers")
    small = {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 32, "tokens": 8}
    return _inference(gpt2("gpt2", training=False, **small), "GPT-2, 2 layers, inference", "transformers")


def resnet50_inference() -> Trace:
    """ResNet-50 of torchvision."""
    batch = 16 if Workbench().real else 1
    return _inference(resnet50("resnet50", training=False, batch=batch), "ResNet-50, inference", "torchvision")


def _inference(workload: Workload, title: str, library: str) -> Trace:
    bench = Workbench()
    try:
        version = importlib.import_module(library).__version__
    except ImportError:
        raise UnsupportedError(f"this recording needs {library}: pip install {library}") from None
    base = workload.build(bench.device)
    with bench.watch(f"{title} ({library} {version}, random weights)") as (trace, memory):
        model = torch.compile(base, backend=paramgraph)
        memory.mark()
        kept = []  # so that the allocator gives no address twice, and each call has its own
        for call in range(CALLS):
            kept.append(clones(workload.inputs(call, bench.device)))
            workload.step(model, kept[-1], None)  # type: ignore[arg-type]
            memory.mark(call)
        kept.clear()
        bench.rest()
        memory.mark(CALLS)
    got = clones(workload.step(model, workload.inputs(CALLS, bench.device), None))  # type: ignore[arg-type]
    with bench.ungraphed():
        expected = workload.step(model, workload.inputs(CALLS, bench.device), None)  # type: ignore[arg-type]
    trace.compare("outputs against the same code without graphs", got, expected)
    return trace
