"""Generators and other shapes of model: DCGAN, a VAE, DLRM, FlexAttention, int8 weights, a recurrent network."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.corpus.case import (
    Case,
    Step,
    adamw_fused,
    buffers,
    built,
    finish,
    inference,
    integers,
    joined,
    normal,
    sgd,
    training,
)


class DCGAN(nn.Module):
    """A generator and a discriminator of 16 x 16 images."""

    def __init__(self, width: int = 16, latent: int = 16) -> None:
        super().__init__()
        self.latent = latent
        self.generator = nn.Sequential(
            nn.ConvTranspose2d(latent, 2 * width, 4, 1, 0, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(True),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(True),
            nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False),
            nn.Tanh(),
        )
        self.discriminator = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(width, 2 * width, 4, 2, 1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(2 * width, 1, 4, 1, 0, bias=False),
        )

    def forward(self, real: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(logits of real images, logits of made images for the discriminator, the same for the generator)."""
        made = self.generator(noise)
        return self.discriminator(real), self.discriminator(made.detach()), self.discriminator(made)


def _dcgan(model: nn.Module, inputs: list[Tensor], optimizer: torch.optim.Optimizer | None) -> list[Tensor]:
    real, fake, fooled = model(*inputs)
    one, zero = torch.ones_like(real), torch.zeros_like(real)
    loss = F.binary_cross_entropy_with_logits
    return finish(model, loss(real, one) + loss(fake, zero) + loss(fooled, one), optimizer)


class VAE(nn.Module):
    """An autoencoder that draws its latent with torch's generator inside the compiled region."""

    def __init__(self, size: int = 64, latent: int = 8) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(size, 2 * latent), nn.Linear(latent, size)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (batch, size); returns the loss of each row."""
        mean, log_variance = self.encoder(x).chunk(2, -1)
        drawn = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1)
        loss: Tensor = (self.decoder(drawn) - x).square().sum(-1) + divergence
        return loss


NO_BAGS = "the simulated device does not know the shape of an embedding bag"


class DLRM(nn.Module):
    """Embedding bags and a bottom network, their pairwise products, and a top network."""

    def __init__(self, tables: int = 4, rows: int = 100, dim: int = 16, dense: int = 13) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, dim, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(dense, 32), nn.ReLU(), nn.Linear(32, dim), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(dim + pairs, 32), nn.ReLU(), nn.Linear(32, 1))
        lower = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("rows", lower[0])
        self.register_buffer("columns", lower[1])

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        """``dense``: (batch, features); ``sparse``: (batch, tables, indices of one bag)."""
        bottom = self.bottom(dense)
        found = torch.stack([bottom, *(bag(sparse[:, i]) for i, bag in enumerate(self.bags))], 1)
        products = found @ found.transpose(1, 2)
        assert isinstance(self.rows, Tensor)
        assert isinstance(self.columns, Tensor)
        logits: Tensor = self.top(torch.cat((bottom, products[:, self.rows, self.columns]), 1))
        return logits.squeeze(1)


class Flex(nn.Module):
    """FlexAttention with a causal block mask and a bias by distance."""

    def __init__(self, dim: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.masks: dict[tuple[torch.device, int], Any] = {}

    def mask(self, device: torch.device, length: int) -> Any:
        """The block mask of a length, made once."""
        from torch.nn.attention.flex_attention import create_block_mask

        if (device, length) not in self.masks:
            self.masks[device, length] = create_block_mask(_causal, None, None, length, length, device=str(device))
        return self.masks[device, length]

    def forward(self, x: Tensor, mask: Any) -> Tensor:
        """``x``: (batch, tokens, dim)."""
        from torch.nn.attention.flex_attention import flex_attention

        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = flex_attention(q, k, v, score_mod=_distance, block_mask=mask)
        assert isinstance(y, Tensor)
        out: Tensor = self.out(y.transpose(1, 2).reshape(b, t, d))
        return out


def _causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def _distance(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return score + 0.01 * (k - q)


def _flex(train: bool) -> Step:
    def step(model: nn.Module, inputs: list[Tensor], optimizer: torch.optim.Optimizer | None) -> list[Tensor]:
        (x,) = inputs
        flex: Any = getattr(model, "_orig_mod", model)
        mask = flex.mask(x.device, x.shape[1])
        with torch.set_grad_enabled(train):
            y = model(x, mask)
        return finish(model, y.square().mean(), optimizer) if train else [y]

    return step


class Int8Linear(nn.Module):
    """A linear layer whose weight is int8 with a scale for each row."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        scale = weight.abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (weight / scale).round().to(torch.int8))
        self.register_buffer("scale", scale.squeeze(1))
        self.register_buffer("bias", linear.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (..., in); returns (..., out)."""
        assert isinstance(self.weight, Tensor)
        assert isinstance(self.scale, Tensor)
        assert isinstance(self.bias, Tensor)
        result: Tensor = F.linear(x, self.weight.to(x.dtype)) * self.scale + self.bias
        return result


def _int8() -> nn.Module:
    layers = [nn.Linear(64, 128), nn.Linear(128, 64)]
    return nn.Sequential(Int8Linear(layers[0]), nn.GELU(), Int8Linear(layers[1]))


class Int8MM(nn.Module):
    """The same through torch's own operation for int8 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 127, (64, 64), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(64, dtype=torch.bfloat16) / 127)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (rows, 64) of bfloat16."""
        return torch.ops.aten._weight_int8pack_mm(x, self.weight, self.scale).relu()  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """An LSTM of torch's own, which Dynamo leaves alone unless told otherwise, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (batch, tokens, 16)."""
        result: Tensor = self.head(self.lstm(x)[0][:, -1])
        return result


class Unrolled(nn.Module):
    """A GRU cell, step by step, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(16, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (batch, tokens, 16)."""
        state = x.new_zeros(len(x), 32)
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        result: Tensor = self.head(state)
        return result


class Mixture(nn.Module):
    """A mixture of experts that computes all of them, so that nothing depends on the routing."""

    def __init__(self, experts: int = 4, dim: int = 32) -> None:
        super().__init__()
        self.router = nn.Linear(dim, experts)
        self.inward = nn.Parameter(torch.randn(experts, dim, 2 * dim) / 8)
        self.outward = nn.Parameter(torch.randn(experts, 2 * dim, dim) / 8)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (tokens, dim)."""
        weight, chosen = self.router(x).softmax(-1).topk(2, -1)
        gate = torch.zeros(len(x), len(self.inward), device=x.device).scatter(1, chosen, weight)
        hidden = torch.einsum("td,edh->eth", x, self.inward).relu()
        return torch.einsum("eth,ehd,te->td", hidden, self.outward, gate)


def _codes(model: nn.Module, inputs: list[Tensor], _: torch.optim.Optimizer | None) -> list[Tensor]:
    with torch.no_grad():
        return [model(*inputs), *buffers(model)]


def cases() -> list[Case]:
    """The generative family and its neighbours."""
    dlrm = joined(normal((8, 13)), integers(100, (8, 4, 3)))
    gan = normal((4, 3, 16, 16), (4, 16, 1, 1))
    return [
        Case("dcgan training", built(DCGAN, train=True), gan, _dcgan, training=True, optimizer=adamw_fused),
        Case("dcgan inference", built(DCGAN), gan, inference()),
        Case("vae training", built(VAE, train=True), normal((8, 64)), training(), training=True, optimizer=sgd),
        Case("dlrm inference", built(DLRM), dlrm, inference(), unsimulated=NO_BAGS),
        Case(
            "dlrm training",
            built(DLRM, train=True),
            dlrm,
            training(),
            training=True,
            optimizer=sgd,
            unsimulated=NO_BAGS,
        ),
        Case("flex-attention inference", built(Flex), normal((2, 128, 64)), _flex(False), needs=("cuda",)),
        Case(
            "flex-attention training",
            built(Flex, train=True),
            normal((2, 128, 64)),
            _flex(True),
            training=True,
            optimizer=adamw_fused,
            needs=("cuda",),
        ),
        Case("int8 weight-only inference", built(_int8), normal((4, 64)), _codes),
        Case("int8 packed inference", built(Int8MM), normal((4, 64), dtype=torch.bfloat16), _codes),
        Case("lstm inference", built(Recurrent), normal((2, 8, 16)), inference(), unsimulated="nothing is compiled"),
        Case("gru by hand training", built(Unrolled, train=True), normal((2, 6, 16)), training(), training=True),
        Case("mixture-of-experts training", built(Mixture, train=True), normal((16, 32)), training(), training=True),
    ]
