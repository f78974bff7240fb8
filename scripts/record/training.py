"""A Llama-like training step without graphs, under graph trees and under paramgraph, with its memory."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paramgraph_kit.bench.measure import MODES
from paramgraph_kit.bench.workloads import Workload, compile_workload
from paramgraph_kit.ledger import Snapshots
from paramgraph_kit.trace.model import Trace
from scripts.record.program import run_program
from scripts.record.trees import watching_trees
from scripts.record.workbench import Workbench, clones

CALLS = 6
# Short sequences and many of them: with long ones the backward of attention adds up in an order that varies, with or
# without graphs, and no two runs have the same bits.
LARGE = {"layers": 8, "dim": 1024, "tokens": 64, "batch": 64, "vocab": 4096}
SMALL = {"layers": 8, "dim": 32, "tokens": 16, "batch": 2, "hidden": 64, "heads": 4, "vocab": 64}


def training(mode: str, *, blocks: bool) -> Trace:
    """Six steps; memory after the forward, after the backward and after the step, and at rest."""
    bench = Workbench()
    size: dict[str, Any] = LARGE if bench.real else SMALL | {"dtype": torch.float32}
    llama = run_program("workloads.py", "paramgraph_kit.bench")["llama"]  # its lines are to be seen
    workload: Workload = llama("llama", **size, blocks=blocks, training=True)
    shape = f"8 layers, d={size['dim']}, {size['batch']} x {size['tokens']} tokens"
    title = f"Llama-like training step, {shape}, {'block by block' if blocks else 'whole model'}, {mode}"
    base = workload.build(bench.device)
    model = compile_workload(workload, base, **MODES[mode])
    trees = mode == "graph trees"
    with bench.watch(title) as (trace, memory), watching_trees(trace) if trees else nullcontext():
        memory.mark()
        for call in range(CALLS):
            _step(model, _tokens(size, call, bench), memory, call, trees)
        bench.rest()
        memory.mark(CALLS)
    _prove(trace, bench, workload, base, model, _tokens(size, CALLS, bench), trees)
    return trace


def _tokens(size: dict[str, Any], seed: int, bench: Workbench) -> Tensor:
    """No token twice, so that no two gradients of the embedding are added, in whatever order."""
    every = torch.randperm(size["vocab"], generator=torch.Generator().manual_seed(seed))
    return every[: size["batch"] * size["tokens"]].view(size["batch"], size["tokens"]).to(bench.device)


def _step(
    model: nn.Module, tokens: Tensor, memory: Snapshots | None, call: int, trees: bool
) -> tuple[Tensor, list[Tensor]]:
    """One step; returns loss and gradients, which the model does not keep."""
    if trees:
        torch.compiler.cudagraph_mark_step_begin()
    logits = model(tokens)
    if memory is not None:
        memory.mark(call)
    loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
    del logits
    loss.backward()
    if memory is not None:
        memory.mark(call)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    for parameter in model.parameters():
        parameter.grad = None
    if memory is not None:
        gradients.clear()
        memory.mark(call)
    return loss.detach(), gradients


def _prove(
    trace: Trace, bench: Workbench, workload: Workload, base: nn.Module, model: nn.Module, tokens: Tensor, trees: bool
) -> None:
    """Loss and gradients of one more step against the same step without graphs; of no graphs, against itself."""
    loss, gradients = _step(model, tokens.clone(), None, CALLS, trees)
    got = clones([loss, *gradients])
    if trees:  # the trees' own code cannot be run without them: Inductor makes the same again
        torch._dynamo.reset()
        if workload.blocks:  # compiled in place: begin again from the same weights
            base = workload.build(bench.device)
        model = compile_workload(workload, base)
    with bench.ungraphed():
        loss, gradients = _step(model, tokens.clone(), None, CALLS, False)
    trace.compare("loss and gradients against no graphs", got, [loss, *gradients])
