"""State and memory: caches, buffers, aliases, views, constants, numbers, held outputs, moved parameters."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.corpus.case import (
    Case,
    Step,
    adamw_fused,
    buffers,
    built,
    in_turn,
    inference,
    integers,
    joined,
    normal,
    sgd,
    tensors,
    training,
)
from tests.corpus.training import MLP


class Decoder(nn.Module):
    """Attention with a cache of keys and values that every call writes one token of, in place."""

    def __init__(self, dim: int = 32, heads: int = 4, length: int = 16, batch: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.register_buffer("keys", torch.zeros(batch, heads, length, dim // heads))
        self.register_buffer("values", torch.zeros(batch, heads, length, dim // heads))
        self.register_buffer("filled", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (batch, 1, dim), the next token."""
        b, _, d = x.shape
        q, k, v = self.qkv(x).view(b, 1, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        assert isinstance(self.keys, Tensor)
        assert isinstance(self.values, Tensor)
        assert isinstance(self.filled, Tensor)
        length = self.keys.shape[2]
        place = self.filled.clamp(max=length - 1)
        self.keys.index_copy_(2, place, k)
        self.values.index_copy_(2, place, v)
        seen = torch.arange(length, device=x.device) <= self.filled
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen[None, None, None])
        self.filled.add_(1)
        result: Tensor = self.out(y.transpose(1, 2).reshape(b, 1, d))
        return result


class Normed(nn.Module):
    """Convolutions with BatchNorm, whose buffers every training call changes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (batch, 3, height, width)."""
        result: Tensor = self.layers(x)
        return result


class Aliases(nn.Module):
    """Outputs that are views of one another, of an input, and an input itself."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """``x`` and ``y``: (8, 32)."""
        made = (x * 2 + y).relu()
        return made, made[1:3], made.t(), x.view(4, -1), y, made.detach()


class Mutates(nn.Module):
    """Writes into its inputs, one of them through a view."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """``x`` and ``y``: (8, 32)."""
        x.add_(1)
        y[2:4].mul_(3)
        return (x * y).sum(1)


class Numbers(nn.Module):
    """Python numbers and tensors on the host among what a kernel computes with."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)
        self.host_scale = torch.tensor(0.5)  # no buffer: it stays on the host

    def forward(self, x: Tensor, scale: float = 2.0) -> Tensor:
        """``x``: (rows, 32)."""
        result: Tensor = self.linear(x) * self.host_scale + scale
        return result.sin()


class Constants(nn.Module):
    """Tensors that the compiled code itself makes or holds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (rows, 32)."""
        weights = torch.tensor([1.0, 0.5, 0.25, 0.125], device=x.device)
        result: Tensor = self.linear(x).view(-1, 4) * weights + torch.linspace(0, 1, 4, device=x.device)
        return result.cumsum(0)


class Many(nn.Module):
    """Sorting, scatter, gather, cumulative sums, a convolution in one dimension, copies and fills."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 3, padding=1)

    def forward(self, x: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        """``x``: (8, 32); ``index``: (8, 32) below 32."""
        ordered, places = x.sort(-1)
        moved = torch.zeros_like(x).scatter_add_(1, index, x)
        picked = ordered.gather(1, index).cumsum(1)
        wide = self.conv(picked[:, None]).flatten(1)
        return places, moved, wide, torch.cat((x.flip(0), moved.roll(1, 0))), x.topk(3).indices


def _decoded(model: nn.Module, inputs: list[Tensor], _: torch.optim.Optimizer | None) -> list[Tensor]:
    with torch.no_grad():
        return [model(x) for x in inputs] + buffers(model)


def _mutated(model: nn.Module, inputs: list[Tensor], _: torch.optim.Optimizer | None) -> list[Tensor]:
    with torch.no_grad():
        return [model(*inputs), *inputs]


def _held(model: nn.Module, inputs: list[Tensor], _: torch.optim.Optimizer | None) -> list[Tensor]:
    """Nothing is copied between the calls: what the first returned must survive the others."""
    with torch.no_grad():
        return tensors([model(x) for x in inputs])


def _fed_back(model: nn.Module, inputs: list[Tensor], _: torch.optim.Optimizer | None) -> list[Tensor]:
    with torch.no_grad():
        x = inputs[0]
        found = [x := model(x) for _ in range(4)]
    return tensors(found)


def _moved(training_step: Step) -> Step:
    """Every parameter lies elsewhere in each step, as those of a sharded model do."""

    def step(model: nn.Module, inputs: list[Tensor], optimizer: torch.optim.Optimizer | None) -> list[Tensor]:
        keep = []
        for p in model.parameters():
            keep.append(p.data)
            p.data = p.data.clone()
        return training_step(model, inputs, optimizer)

    return step


def _views(model: nn.Module, inputs: list[Tensor], _: torch.optim.Optimizer | None) -> list[Tensor]:
    """The same shapes from one storage at several offsets, with strides, and expanded."""
    base = inputs[0]
    with torch.no_grad():
        return [model(base[4:20]), model(base[1:17]), model(base[:32:2]), model(base[:1].expand(16, 32))]


def _unaligned(model: nn.Module, inputs: list[Tensor], _: torch.optim.Optimizer | None) -> list[Tensor]:
    flat = inputs[0].flatten()
    with torch.no_grad():
        return [model(flat[i : i + 512].view(16, 32)) for i in (0, 1, 2, 4, 3)]


def _numbers(model: nn.Module, inputs: list[Tensor], _: torch.optim.Optimizer | None) -> list[Tensor]:
    with torch.no_grad():
        return [model(inputs[0], scale) for scale in (2.0, 3.0, 0.5)]


def _random(model: nn.Module, inputs: list[Tensor], _: torch.optim.Optimizer | None) -> list[Tensor]:
    """Numbers drawn before, in and after the compiled call come from one sequence."""
    x = inputs[0]
    before = torch.rand(4, device=x.device)
    with torch.no_grad():
        first, second = model(x), model(x)
    return [before, first, second, torch.rand(4, device=x.device)]


def _grad_modes(model: nn.Module, inputs: list[Tensor], _: torch.optim.Optimizer | None) -> list[Tensor]:
    found = []
    for enabled in (False, True, False):
        with torch.set_grad_enabled(enabled):
            found.append(model(*inputs).detach())
    return found


def cases() -> list[Case]:
    """The state family."""
    rows, pair = normal((16, 32)), normal((8, 32), (8, 32))
    mlp, train = built(MLP), built(MLP, train=True)
    tokens = normal((2, 1, 32), (2, 1, 32), (2, 1, 32))
    images = normal((2, 3, 8, 8))
    drop = built(lambda: MLP(p=0.3), train=True)
    index = integers(32, (8, 32))
    return [
        Case("kv-cache decoding", built(Decoder), tokens, _decoded),
        Case("batch norm training", built(Normed, train=True), images, training(), training=True, optimizer=sgd),
        Case("batch norm without gradients", built(Normed, train=True), images, inference()),
        Case("outputs that alias", built(Aliases), pair, inference()),
        Case("mutated inputs", built(Mutates), pair, _mutated),
        Case("numbers and host scalars", built(Numbers), rows, _numbers),
        Case("constants", built(Constants), rows, inference()),
        Case("sort scatter gather", built(Many), joined(normal((8, 32)), index), inference()),
        Case("held outputs", mlp, normal(*[(16, 32)] * 4), _held),
        Case("outputs fed back", mlp, rows, _fed_back),
        Case("moved parameters", mlp, rows, _moved(inference())),
        Case("moved parameters training", train, rows, _moved(training()), training=True, optimizer=adamw_fused),
        Case("views of one storage", mlp, normal((40, 32)), _views),
        Case("less aligned inputs", mlp, normal((17, 32)), _unaligned),
        Case("random numbers around a call", drop, rows, _random),
        Case("with and without gradients", mlp, rows, _grad_modes),
        Case(
            "empty and small in turn", mlp, in_turn(rows, normal((0, 32)), normal((1, 32))), inference(), dynamic=False
        ),
    ]
