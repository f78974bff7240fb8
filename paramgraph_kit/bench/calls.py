"""``bench --calls``: what a call costs around the launch: inference with each kind of guards, training, decoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import paramgraph_kit as pgk
from paramgraph_kit.bench.decoding import TOKENS, decoding_ways
from paramgraph_kit.bench.frozen import captured_by_hand
from paramgraph_kit.bench.generate import generating_ways
from paramgraph_kit.bench.small_models import SmallModel
from paramgraph_kit.bench.ways import COMPILERS, FROZEN, NO_GRAPHS, OURS, THREE, TREES, Compared, Make, Ready, mark
from paramgraph_kit.bench.workloads import Llama

LLAMA = "8 Llama-like layers, 64 tokens"
VOCAB = 1024  # of the tokens that go in; the models know at least as many
Compiling = Callable[[Any], Any]


def calls(device: str = "cuda") -> list[Compared]:
    """What is measured."""
    model, bfloat16 = Llama, torch.bfloat16
    return [
        Compared(f"{LLAMA}, inference", inference_ways(model, device, bfloat16)),
        Compared(
            f"8 layers with a static cache, {TOKENS} tokens decoded", decoding_ways(COMPILERS, device), tokens=TOKENS
        ),
        Compared(
            f"transformers' generate with a static cache, {TOKENS} tokens",
            generating_ways(device),
            tokens=TOKENS,
            warm_up=4,
        ),
        Compared(f"{LLAMA}, forward and backward", training_ways(model, device, bfloat16)),
        Compared(f"{LLAMA}, forward and backward by block", training_ways(model, device, bfloat16, by_block=True)),
        *(
            Compared(
                f"3 layers like {name}'s, forward and backward",
                training_ways(partial(SmallModel, gemma=gemma), device, torch.float32),
            )
            for name, gemma in (("Gemma 2", True), ("StarCoder 2", False))
        ),
        Compared("one kernel on 1024 numbers, which no graph makes quicker", single_ways(device), warm_up=16),
    ]


def inference_ways(
    make_model: Callable[[], nn.Module], device: str, dtype: torch.dtype, *, vocab: int = VOCAB
) -> dict[str, Make]:
    """One forward call without gradients; the frozen graph of it reads one input for ever."""

    def way(name: str, compiling: Compiling) -> Ready:
        model, ids = _made(make_model, device, dtype), _ids(device, vocab)
        compiled = compiling(model)

        def call() -> Any:
            with torch.no_grad():
                return compiled(ids)

        if name != FROZEN:
            return Ready(call, lambda: "" if name == TREES else reasons(compiled))
        return Ready(captured_by_hand([call], held=(model, compiled, ids)))

    everything = COMPILERS | {FROZEN: COMPILERS[NO_GRAPHS]}
    return {name: partial(way, name, compiling) for name, compiling in everything.items()}


def training_ways(
    make_model: Callable[[], nn.Module],
    device: str,
    dtype: torch.dtype,
    *,
    by_block: bool = False,
    vocab: int = VOCAB,
) -> dict[str, Make]:
    """Forward, loss and backward; gradients are set to None in each call, and are no sums."""

    def way(name: str, compiling: Compiling) -> Ready:
        model: Any = _made(make_model, device, dtype)
        ids = _ids(device, vocab)
        if by_block:
            for k, block in enumerate(model.layers):
                model.layers[k] = compiling(block)
        run = model if by_block else compiling(model)
        parameters = list(model.parameters())  # walking through a model is no part of a step

        def step() -> None:
            mark(name)
            for parameter in parameters:
                parameter.grad = None
            run(ids).float().square().mean().backward()

        return Ready(step, lambda: "" if name == TREES else reasons(run))

    return {name: partial(way, name, compiling) for name, compiling in THREE.items()}


def single_ways(device: str) -> dict[str, Make]:
    """What a graph may not pay for, and what is told of it where graphs are measured."""

    def way(**options: Any) -> Ready:
        x = torch.randn(1024, device=device)
        compiled = pgk.compile(lambda x: x.sin() * 2 + 1, **options)

        def step() -> None:
            with torch.no_grad():
                compiled(x)

        return Ready(step, lambda: "; ".join(f"{r.code}: {r.message}" for r in pgk.report(compiled).reasons))

    options: Mapping[str, dict[str, Any]] = {
        NO_GRAPHS: {"select": "never"},
        OURS: {},
        'paramgraph, select="measure"': {"select": "measure"},
    }
    return {name: partial(way, **given) for name, given in options.items()}


def reasons(compiled: Any) -> str:
    """Why something of ours ran without a graph, but where that was asked for."""
    found = dict.fromkeys(reason.code for reason in pgk.report(compiled).reasons)
    return "; ".join(code for code in found if code != "not-selected")


def _made(make_model: Callable[[], nn.Module], device: str, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return make_model().to(device, dtype)


def _ids(device: str, vocab: int) -> Tensor:
    return torch.randint(0, vocab, (1, 64), generator=torch.Generator().manual_seed(1)).to(device)
