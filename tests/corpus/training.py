"""Ways to train: optimizers, accumulation, checkpointing, shared parameters, autocast."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from paramgraph_kit.bench.workloads import Block, Llama
from tests.corpus.case import (
    Case,
    adam_capturable,
    adamw_fused,
    built,
    finish,
    integers,
    mean_square,
    normal,
    sgd,
    training,
)


class MLP(nn.Module):
    """Three linear layers, with dropout where ``p`` is not 0."""

    def __init__(self, dim: int = 32, p: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(p), nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, dim)
        )

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (..., dim)."""
        result: Tensor = self.layers(x)
        return result


class Checkpointed(nn.Module):
    """Two blocks whose activations are computed again in the backward, dropout included."""

    def __init__(self, p: float = 0.1) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(MLP(p=p) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (rows, 32)."""
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x


class Twins(nn.Module):
    """Two models, compiled apart, that share an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.models = nn.ModuleList(nn.Sequential(nn.Embedding(50, 32), MLP()) for _ in range(2))
        first, second = self.models
        assert isinstance(first, nn.Sequential)
        assert isinstance(second, nn.Sequential)
        second[0].weight = first[0].weight

    def forward(self, ids: Tensor) -> Tensor:
        """The difference of the two."""
        first, second = self.models
        result: Tensor = first(ids) - second(ids)
        return result


class Tied(nn.Module):
    """A head that is the embedding, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mlp = nn.Embedding(50, 32), MLP()

    def forward(self, ids: Tensor) -> Tensor:
        """``ids``: (batch, tokens); returns logits."""
        return F.linear(self.mlp(self.embed(ids)), self.embed.weight)


def _accumulated(model: nn.Module, inputs: list[Tensor], optimizer: torch.optim.Optimizer | None) -> list[Tensor]:
    for x in inputs[:-1]:
        (model(x).square().mean() / len(inputs)).backward()
    return finish(model, model(inputs[-1]).square().mean() / len(inputs), optimizer)


def _clipped(model: nn.Module, inputs: list[Tensor], optimizer: torch.optim.Optimizer | None) -> list[Tensor]:
    model(*inputs).square().mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    return finish(model, model(*inputs).abs().mean(), optimizer)


def _autocast(model: nn.Module, inputs: list[Tensor], optimizer: torch.optim.Optimizer | None) -> list[Tensor]:
    with torch.autocast(inputs[0].device.type, torch.bfloat16):
        loss = mean_square(model(*inputs), inputs)
    return finish(model, loss, optimizer)


def _input_gradient(model: nn.Module, inputs: list[Tensor], optimizer: torch.optim.Optimizer | None) -> list[Tensor]:
    x = inputs[0].requires_grad_()
    found = finish(model, mean_square(model(x), inputs), optimizer)
    assert x.grad is not None
    return [*found, x.grad]


def _both_passes_kept(model: nn.Module, inputs: list[Tensor], _: torch.optim.Optimizer | None) -> list[Tensor]:
    loss = mean_square(model(*inputs), inputs)
    loss.backward(retain_graph=True)
    return finish(model, loss, None)  # a second backward through the same saved activations


class Blocks(nn.Module):
    """Llama-like blocks, to be compiled one by one: they share one graph."""

    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(64, 4, 128) for _ in range(count))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """``x``: (batch, tokens, 64); ``cos`` and ``sin``: (tokens, 8)."""
        for layer in self.layers:
            x = layer(x, cos, sin)
        return x


def _logits(output: Tensor, inputs: list[Tensor]) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1).float(), inputs[0].flatten())


def cases() -> list[Case]:
    """The training family."""
    rows = normal((16, 32))
    mlp, dropping = built(MLP, train=True), built(lambda: MLP(p=0.2), train=True)
    ids = integers(50, (4, 8))
    step, words = training(), training(loss=_logits)
    llama = built(lambda: Llama(2, 64, 4, 128, 50), train=True, dtype=torch.bfloat16)
    return [
        Case("adamw fused", mlp, rows, step, training=True, optimizer=adamw_fused),
        Case("adam capturable", mlp, rows, step, training=True, optimizer=adam_capturable),
        Case(
            "adam capturable compiled",
            mlp,
            rows,
            step,
            training=True,
            optimizer=adam_capturable,
            compiled_optimizer=True,
            needs=("cuda",),
        ),
        Case("sgd with momentum", mlp, rows, step, training=True, optimizer=sgd),
        Case(
            "sgd with momentum compiled",
            mlp,
            rows,
            step,
            training=True,
            optimizer=sgd,
            compiled_optimizer=True,
            needs=("cuda",),
        ),
        Case(
            "gradient accumulation",
            mlp,
            normal((16, 32), (16, 32), (16, 32)),
            _accumulated,
            training=True,
            optimizer=sgd,
        ),
        Case("gradient clipping", mlp, rows, _clipped, training=True, optimizer=sgd),
        Case("dropout", dropping, rows, step, training=True, optimizer=adamw_fused),
        Case(
            "activation checkpointing",
            built(Checkpointed, train=True),
            rows,
            step,
            training=True,
            unsimulated="torch traces checkpoints for devices that it knows",
        ),
        Case("two models that share", built(Twins, train=True), ids, step, blocks="models", training=True),
        Case("tied embedding", built(Tied, train=True), ids, words, training=True, optimizer=sgd),
        Case("autocast", mlp, rows, _autocast, training=True, optimizer=adamw_fused),
        Case("gradient of an input", mlp, rows, _input_gradient, training=True),
        Case("backward twice", mlp, rows, _both_passes_kept, training=True),
        Case(
            "blocks with one graph",
            built(Blocks, train=True),
            normal((2, 16, 64), (16, 8), (16, 8)),
            step,
            blocks="layers",
            training=True,
            optimizer=adamw_fused,
        ),
        Case("llama small training", llama, ids, words, training=True, optimizer=adamw_fused),
    ]
