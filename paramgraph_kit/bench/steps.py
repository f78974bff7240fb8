"""``bench --whole-steps``: a whole training step as one graph, beside none, graph trees and the frozen graph of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import paramgraph_kit as pgk
from paramgraph_kit.bench.calls import LLAMA, reasons
from paramgraph_kit.bench.frozen import captured_by_hand
from paramgraph_kit.bench.ways import FROZEN, NO_GRAPHS, TREES, WHOLE, Compared, Make, Ready, mark
from paramgraph_kit.bench.workloads import Llama

SIZES = tuple(range(128, 128 + 16 * 11, 16))  # of images, eleven
LARGE = "16 Llama-like layers, d=4096, 2 x 2048 tokens"


@dataclass(frozen=True, slots=True)
class Made:
    """A model with batches, and how their loss is computed."""

    model: nn.Module
    logits_of: Callable[[Any], Tensor]
    batches: Sequence[tuple[Tensor, Tensor]]
    adam: bool = True
    blocks: str = ""  # compile each module of this list instead of the whole model


def whole_steps(device: str = "cuda") -> list[Compared]:
    """What is measured: compiled in bfloat16, eager in float32, images of many sizes in turn, and a large model.

    What takes long to compile comes first, and then what fits beside one another.
    """
    adamw = "whole step with fused AdamW"
    models = {
        "ResNet-50, batch 8": partial(resnet50, device),
        "GPT-2 small, 2 x 128 tokens": partial(gpt2, device),
        LLAMA: partial(llama, device, (1, 64)),
    }
    compiled = [
        Compared(f"{name}, {adamw}, compiled, bfloat16", step_ways(make, torch.bfloat16, {}))
        for name, make in models.items()
    ]
    eager = [
        Compared(f"{name}, {adamw}, eager, float32", step_ways(make, torch.float32)) for name, make in models.items()
    ]
    images = f"ResNet-18, {len(SIZES)} sizes of images in turn, whole step with SGD"
    sizes = partial(resnet18, device)
    in_turn = {
        f"{images}, compiled": step_ways(sizes, torch.float32, {"dynamic": True}, in_turn=True),
        f"{images}, eager": step_ways(sizes, torch.float32, in_turn=True),
    }
    make = partial(llama, device, (2, 2048), blocks="layers", layers=16, dim=4096, heads=32, hidden=14336)
    # What it holds is the point: comparing its first launch would copy 31 GB to the host and back.
    ways = step_ways(make, torch.bfloat16, {}, verify="off")
    large = partial(Compared, f"{LARGE}, {adamw}, compiled by block, bfloat16", warm_up=5)
    return [
        *compiled,
        *(Compared(name, found, warm_up=4) for name, found in in_turn.items()),
        large({way: ways[way] for way in (NO_GRAPHS, WHOLE)}, gib=36),
        *eager,
        *(large({way: ways[way]}, gib=48) for way in (TREES, FROZEN)),
    ]


def step_ways(
    make: Callable[[torch.dtype], Made],
    dtype: torch.dtype,
    compiling: dict[str, Any] | None = None,
    *,
    in_turn: bool = False,
    **options: Any,
) -> dict[str, Make]:
    """Ways of a step; ``compiling``: what ``torch.compile`` is given, None for eager. ``in_turn``: a call is one pass
    through all batches, and each has a frozen graph. ``options`` are those of ``parameterize``.
    """

    def way(name: str) -> Ready:
        made = make(dtype)
        how = None if compiling is None else compiling | ({"mode": "reduce-overhead"} if name == TREES else {})
        step, optimizer = _step(made, how)
        batches = made.batches
        if name == FROZEN:
            calls = [partial(step, *batch) for batch in (batches if in_turn else batches[:1])]
            return Ready(captured_by_hand(calls, held=(made, optimizer)))
        call = step
        if name == WHOLE:
            call = pgk.parameterize(step, state=(made.model, optimizer), **options)
        numbers = iter(range(sys.maxsize))

        def each() -> None:
            # Arguments lie elsewhere at each call, as those of a loader do.
            for batch in batches if in_turn else [batches[next(numbers) % len(batches)]]:
                mark(name)
                call(*batch)

        return Ready(each, lambda: reasons(call) if name == WHOLE else "")

    trees = [] if compiling is None else [TREES]
    return {name: partial(way, name) for name in (NO_GRAPHS, *trees, WHOLE, FROZEN)}


def _step(made: Made, compiling: dict[str, Any] | None) -> tuple[Callable[[Tensor, Tensor], Tensor], Any]:
    """Forward, loss, backward, optimizer; and the optimizer."""
    model: Any = made.model
    parameters = list(model.parameters())
    rate = torch.tensor(1e-4, device=parameters[0].device)
    if made.adam:
        optimizer: Any = torch.optim.AdamW(parameters, lr=rate, fused=True, capturable=True)
    else:  # not fused, SGD reads such a rate back to the host in each step
        optimizer = torch.optim.SGD(parameters, lr=rate, momentum=0.9, fused=True)
    run = model
    if compiling is not None and made.blocks:
        blocks = model.get_submodule(made.blocks)
        for k, block in enumerate(blocks):
            blocks[k] = torch.compile(block, **compiling)
    elif compiling is not None:
        run = torch.compile(model, **compiling)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(made.logits_of(run(x)), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, optimizer


def llama(device: str, batch: tuple[int, int], dtype: torch.dtype, *, blocks: str = "", **size: int) -> Made:
    """A Llama-like model that is trained on ``batch``, (how many, tokens)."""
    vocab = size.get("vocab", 4096)
    with torch.device(device):  # a large one is not made on the host
        torch.manual_seed(0)
        model = Llama(**size).to(dtype)
    return Made(model, _flat, _tokens(device, batch, vocab), blocks=blocks)


def gpt2(device: str, dtype: torch.dtype) -> Made:
    """GPT-2 small of transformers, without dropout."""
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    model = transformers.GPT2LMHeadModel(config).to(device, dtype)
    return Made(model, lambda output: output.logits.flatten(0, 1), _tokens(device, (2, 128), 50257))


def resnet50(device: str, dtype: torch.dtype) -> Made:
    """ResNet-50 of torchvision."""
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.resnet50().to(device, dtype)
    return Made(model, lambda logits: logits, [_images(device, dtype, 8, 224) for _ in range(3)])


def resnet18(device: str, dtype: torch.dtype) -> Made:
    """ResNet-18 of torchvision, and images of many sizes."""
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.resnet18().to(device, dtype)
    return Made(model, lambda logits: logits, [_images(device, dtype, 16, n) for n in SIZES], adam=False)


def _flat(logits: Tensor) -> Tensor:
    return logits.flatten(0, 1)


def _tokens(device: str, batch: tuple[int, int], vocab: int) -> list[tuple[Tensor, Tensor]]:
    def drawn() -> Tensor:
        return torch.randint(0, vocab, batch, device=device)

    return [(drawn(), drawn().flatten()) for _ in range(3)]


def _images(device: str, dtype: torch.dtype, count: int, size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3, size, size, device=device, dtype=dtype), torch.randint(
        0, 1000, (count,), device=device
    )
