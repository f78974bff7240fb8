"""What is trained: Llama-like layers, each compiled, the model sharded or replicated as torchtitan does it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from paramgraph_kit.bench.workloads import Llama
from tests.corpus.distributed import local

VOCAB = 4096
MOST_LAYERS = 12
KEPT_FREE = 12 << 30  # for gathered layers, gradients on their way, and what graphs hold
ADAMW_BYTES = 16  # of a parameter: itself, its gradient and two moments in float32
CHUNK = 1 << 24


@dataclass(frozen=True)
class Strategy:
    """How a model of which size is trained; ``layers`` 0: as many as fit."""

    sharded: bool
    dim: int = 1024
    heads: int = 16
    kv_heads: int = 16
    hidden: int = 2816
    layers: int = 8
    batch: int = 2
    tokens: int = 256
    alone: bool = False  # whether it fills a GPU, so that its modes must run one after the other

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer."""
        head = self.dim // self.heads
        return self.dim * (2 * self.dim + 2 * head * self.kv_heads + 3 * self.hidden + 2)

    def fitted(self, free_bytes: int, ranks: int) -> Strategy:
        """With as many layers as fit into ``free_bytes`` of each rank's GPU, where that was asked for.

        >>> llama = STRATEGIES["fsdp2-70b"]
        >>> llama.fitted(140 << 30, 2).layers, llama.fitted(79 << 30, 2).layers
        (11, 5)
        """
        if self.layers:
            return self
        activations = 2 * self.batch * self.tokens * (3 * self.hidden + 8 * self.dim)
        each = self.layer_parameters * ADAMW_BYTES // ranks + activations
        return replace(self, layers=max(1, min(MOST_LAYERS, int(0.7 * free_bytes - KEPT_FREE) // each)))

    def text(self) -> str:
        """In words, for the table."""
        return (
            f"{self.layers} layers, d={self.dim}, {self.heads}/{self.kv_heads} heads, ff={self.hidden}, "
            f"{self.batch} x {self.tokens} tokens a rank"
        )


LARGE: dict[str, Any] = {"dim": 8192, "heads": 64, "kv_heads": 8, "hidden": 28672}  # Llama 3.1 70B's
STRATEGIES = {
    "fsdp2-70b": Strategy(True, **LARGE, layers=0, batch=1, tokens=2048, alone=True),
    "fsdp2": Strategy(True),
    "ddp": Strategy(False),
}


def parallel(strategy: Strategy, compiling: dict[str, Any], device: torch.device) -> nn.Module:
    """Each block compiled, then the model sharded or replicated, its weights still to be drawn by ``draw``."""
    with torch.device("meta"):
        model: nn.Module = Llama(
            strategy.layers, strategy.dim, strategy.heads, strategy.hidden, VOCAB, strategy.kv_heads
        )
    layers = model.get_submodule("layers")
    assert isinstance(layers, nn.ModuleList)
    for i, layer in enumerate(layers):
        layers[i] = torch.compile(layer, **compiling)  # type: ignore[assignment]
    if not strategy.sharded:
        model = model.to_empty(device=device)
        if device.type == "cuda":
            model = model.to(torch.bfloat16)
        draw(model)
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    halves = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if device.type == "cuda" else MixedPrecisionPolicy()
    for i, layer in enumerate(layers):  # the last is needed again at once
        fully_shard(layer, mp_policy=halves, reshard_after_forward=i < len(layers) - 1)
    fully_shard(model, mp_policy=halves)
    model.to_empty(device=device)
    draw(model)
    return model


@torch.no_grad()
def draw(model: nn.Module) -> None:
    """The same weights each time, drawn where they lie; every rank draws its own part."""
    for number, parameter in enumerate(model.parameters()):
        mine = local(parameter)
        if parameter.dim() < 2:
            mine.fill_(1)  # a norm's
        else:
            mine.normal_(0, 0.02, generator=torch.Generator(mine.device).manual_seed(number))


def digest(tensor: Tensor) -> tuple[int, int]:
    """Two sums over all bits of this rank's part, one of them weighted by position: other bits, another digest.

    >>> digest(torch.tensor([0.0, 1.0])) == digest(torch.tensor([-0.0, 1.0]))
    False
    >>> digest(torch.tensor([1.0, 2.0])) == digest(torch.tensor([2.0, 1.0]))
    False
    """
    flat = local(tensor.detach()).contiguous().view(-1)
    bits = flat.view(torch.int32 if flat.nbytes % 4 == 0 else torch.uint8)
    sums = torch.zeros(2, dtype=torch.int64, device=bits.device)
    for start in range(0, bits.numel(), CHUNK):
        chunk = bits[start : start + CHUNK].long()
        places = torch.arange(start, start + chunk.numel(), device=bits.device)
        sums[0] += chunk.sum()
        sums[1] += (chunk * (places * 0x9E3779B1 + 1)).sum()
    plain, weighted = sums.tolist()
    return plain, weighted
