"""The workloads that the launcher is proved and measured on, all with random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """A Llama-like block: RMSNorm, rotary attention, RMSNorm, SwiGLU; ``kv_heads`` fewer heads of keys and values."""

    def __init__(self, dim: int, heads: int, hidden: int, kv_heads: int | None = None) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        width = dim // heads * (heads + 2 * self.kv_heads)
        self.qkv, self.out = nn.Linear(dim, width, bias=False), nn.Linear(dim, dim, bias=False)
        self.gate, self.up = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """``x``: (batch, tokens, dim); ``cos`` and ``sin``: (tokens, head_dim / 2)."""
        b, t, d = x.shape
        q, k, v = self._heads_of(self.qkv(self.norm1(x)))
        y = F.scaled_dot_product_attention(_rotate(q, cos, sin), _rotate(k, cos, sin), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        h = self.norm2(x)
        mixed: Tensor = self.down(F.silu(self.gate(h)) * self.up(h))
        return x + mixed

    def _heads_of(self, qkv: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values, each (batch, heads, tokens, head_dim)."""
        b, t, _ = qkv.shape
        if self.kv_heads == self.heads:
            return tuple(qkv.view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4))
        both = qkv.view(b, t, self.heads + 2 * self.kv_heads, -1).transpose(1, 2)
        q, *few = both.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        each = self.heads // self.kv_heads
        return q, *(x[:, :, None].expand(-1, -1, each, -1, -1).flatten(1, 2) for x in few)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)


class Llama(nn.Module):
    """``layers`` blocks between an embedding and a head."""

    def __init__(
        self,
        layers: int = 8,
        dim: int = 1024,
        heads: int = 16,
        hidden: int = 2816,
        vocab: int = 4096,
        kv_heads: int | None = None,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Block(dim, heads, hidden, kv_heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(dim), nn.Linear(dim, vocab, bias=False)
        self.half_head = dim // heads // 2

    def forward(self, tokens: Tensor) -> Tensor:
        """``tokens``: (batch, tokens) of int64; returns logits."""
        t = torch.arange(tokens.shape[1], device=tokens.device, dtype=torch.float32)
        freq = 1e4 ** (-torch.arange(self.half_head, device=tokens.device, dtype=torch.float32) / self.half_head)
        angle = t[:, None] * freq
        x, cos, sin = self.embed(tokens), angle.cos(), angle.sin()
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits: Tensor = self.head(self.norm(x))
        return logits


@dataclass(frozen=True)
class Workload:
    """A model and one step of its use.

    ``step(model, inputs, optimizer)`` returns the tensors that are compared bit for bit: the outputs, or in training
    the loss, every gradient and every buffer.
    """

    name: str
    build: Callable[[torch.device], nn.Module]
    inputs: Callable[[int, torch.device], list[Tensor]]  # (seed, device)
    step: Callable[[nn.Module, list[Tensor], torch.optim.Optimizer | None], list[Tensor]]
    blocks: str = ""  # compile each module of this ModuleList instead of the whole model
    training: bool = False
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None
    note: str = ""


def compile_workload(workload: Workload, model: nn.Module, **how: Any) -> nn.Module:
    """The model compiled whole, or block by block in place."""
    if not workload.blocks:
        return torch.compile(model, **how)  # type: ignore[return-value]
    layers = model.get_submodule(workload.blocks)
    assert isinstance(layers, nn.ModuleList)
    for i, layer in enumerate(layers):
        layers[i] = torch.compile(layer, **how)  # type: ignore[assignment]
    return model


# Walking through a model takes a millisecond, which is no part of a step.
_members: WeakKeyDictionary[nn.Module, tuple[list[nn.Parameter], list[Tensor]]] = WeakKeyDictionary()


def _gradients(model: nn.Module, loss: Tensor, optimizer: torch.optim.Optimizer | None) -> list[Tensor]:
    """Backward and update; whoever compares the buffers among the results copies them before the next step."""
    if model not in _members:
        _members[model] = list(model.parameters()), [b for b in model.buffers() if b.is_floating_point()]
    parameters, buffers = _members[model]
    loss.backward()
    found = [loss.detach()] + [p.grad for p in parameters if p.grad is not None] + buffers
    if optimizer is not None:
        optimizer.step()
    for p in parameters:
        p.grad = None
    return found


def _tokens(vocab: int, batch: int, length: int) -> Callable[[int, torch.device], list[Tensor]]:
    def inputs(seed: int, device: torch.device) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [torch.randint(0, vocab, (batch, length), generator=generator).to(device)]

    return inputs


def _next_token(logits_of: Callable[[nn.Module, Tensor], Tensor], training: bool) -> Any:
    def step(model: nn.Module, inputs: list[Tensor], optimizer: torch.optim.Optimizer | None) -> list[Tensor]:
        (x,) = inputs
        if training:
            logits = logits_of(model, x)
            return _gradients(model, F.cross_entropy(logits.flatten(0, 1).float(), x.flatten()), optimizer)
        with torch.no_grad():
            return [logits_of(model, x)]

    return step


def llama(
    name: str,
    layers: int,
    dim: int,
    tokens: int,
    *,
    batch: int = 1,
    blocks: bool,
    training: bool,
    hidden: int = 2816,
    heads: int = 16,
    vocab: int = 4096,
    dtype: torch.dtype = torch.bfloat16,
) -> Workload:
    """A Llama-like model of the given size."""

    def build(device: torch.device) -> nn.Module:
        torch.manual_seed(0)
        return Llama(layers, dim, heads, hidden, vocab).to(device=device, dtype=dtype).train(training)

    step = _next_token(lambda model, x: model(x), training)
    return Workload(name, build, _tokens(vocab, batch, tokens), step, "layers" if blocks else "", training)


def gpt2(name: str, *, training: bool, batch: int = 2, tokens: int = 128, **config: int) -> Workload:
    """GPT-2 from transformers, with its own dropout in training."""

    def build(device: torch.device) -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(use_cache=False, **config)).to(device=device, dtype=torch.bfloat16)
        return model.train(training)  # type: ignore[no-any-return]

    step = _next_token(lambda model, x: model(x).logits, training)
    adamw = (lambda model: torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)) if training else None
    return Workload(name, build, _tokens(50257, batch, tokens), step, "", training, adamw)


def resnet50(name: str, *, training: bool, batch: int = 16) -> Workload:
    """ResNet-50 from torchvision; in training its BatchNorm buffers are compared too."""

    def build(device: torch.device) -> nn.Module:
        from torchvision.models import resnet50 as make

        torch.manual_seed(0)
        return make().to(device=device).train(training)  # type: ignore[no-any-return]

    def inputs(seed: int, device: torch.device) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(batch, 3, 224, 224, generator=generator)
        return [images.to(device), torch.randint(0, 1000, (batch,), generator=generator).to(device)]

    def step(model: nn.Module, inputs: list[Tensor], optimizer: torch.optim.Optimizer | None) -> list[Tensor]:
        x, labels = inputs
        if training:
            return _gradients(model, F.cross_entropy(model(x), labels), optimizer)
        with torch.no_grad():
            return [model(x)]

    sgd = (lambda model: torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)) if training else None
    return Workload(name, build, inputs, step, "", training, sgd)


def proof_workloads() -> list[Workload]:
    """What the results in this repository are measured on."""
    small = {"layers": 8, "dim": 1024, "tokens": 64}
    large = {"layers": 16, "dim": 4096, "tokens": 2048, "batch": 2, "hidden": 14336, "heads": 32}
    return [
        llama("llama 8x1024 inference", **small, blocks=False, training=False),  # type: ignore[arg-type]
        llama("llama 8x1024 inference by block", **small, blocks=True, training=False),  # type: ignore[arg-type]
        llama("llama 8x1024 training", **small, blocks=False, training=True),  # type: ignore[arg-type]
        llama("llama 8x1024 training by block", **small, blocks=True, training=True),  # type: ignore[arg-type]
        gpt2("gpt2 small inference", training=False),
        gpt2("gpt2 small training", training=True),
        resnet50("resnet50 inference", training=False),
        resnet50("resnet50 training", training=True),
        llama("llama 16x4096 training by block", **large, blocks=True, training=True),  # type: ignore[arg-type]
    ]
