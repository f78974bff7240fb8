"""More programs for ``steps``: training steps as papers and forums have them."""

# mypy: disable-error-code="no-untyped-call, no-any-return, index"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.integration.step_parts import Program, basic, batch, device, mlp, rate


def adamw(parameters: Any, **how: Any) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=rate(), capturable=True, **how)


def unscaled_and_clipped() -> Program:
    model = mlp()
    optimizer = adamw(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler(device().type, init_scale=2.0**10, growth_interval=3)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device().type, torch.float16):
            loss = F.mse_loss(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return Program(step, (model, optimizer, scaler), model, batch, extra=[scaler])


def adversarial() -> Program:
    torch.manual_seed(0)
    maker = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(device())
    critic = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1)).to(device())
    optimizers = adamw(maker.parameters()), adamw(critic.parameters())

    def step(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        optimizers[1].zero_grad()
        made = maker(torch.randn_like(x)).detach()
        critic_loss = F.softplus(critic(made)).mean() + F.softplus(-critic(y)).mean()
        critic_loss.backward()
        optimizers[1].step()
        critic.requires_grad_(False)
        optimizers[0].zero_grad()
        maker_loss = F.softplus(-critic(maker(torch.randn_like(x)))).mean()
        maker_loss.backward()
        optimizers[0].step()
        critic.requires_grad_(True)
        return {"maker": maker_loss.detach(), "critic": critic_loss.detach()}

    return Program(step, (maker, critic, optimizers), nn.ModuleList([maker, critic]), batch)


def with_closure() -> Program:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        loss: Any = optimizer.step(closure)
        return loss.detach()

    return Program(step, (model, optimizer), model, batch)


def sharpness_aware() -> Program:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        F.mse_loss(model(x), y).backward()
        climbed = []
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
            for p in model.parameters():
                assert p.grad is not None
                climbed.append(p.grad * (0.05 / (norm + 1e-12)))
                p.add_(climbed[-1])
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        with torch.no_grad():
            for p, e in zip(model.parameters(), climbed, strict=True):
                p.sub_(e)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Program(step, (model, optimizer), model, batch)


def functional() -> Program:
    model, lr = mlp(), rate()

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        def loss_of(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
            return F.mse_loss(torch.func.functional_call(model, parameters, (x,)), y)

        held = dict(model.named_parameters())
        gradients, loss = torch.func.grad_and_value(loss_of)({k: v.detach() for k, v in held.items()})
        with torch.no_grad():
            for name, p in held.items():
                p.sub_(lr * gradients[name])
        return loss.detach()

    return Program(step, (model, lr), model, batch)


def normalized() -> Program:
    torch.manual_seed(0)
    normal = nn.utils.parametrizations
    model = nn.Sequential(normal.spectral_norm(nn.Linear(8, 16)), nn.ReLU(), normal.weight_norm(nn.Linear(16, 4)))
    model = model.to(device())
    optimizer = adamw(model.parameters(), foreach=True)
    average = [p.detach().clone() for p in model.parameters()]
    inner = basic(model, optimizer)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = inner(x, y)
        with torch.no_grad():
            torch._foreach_lerp_(average, list(model.parameters()), 0.1)
        return loss

    return Program(step, (model, optimizer, average), model, batch, extra=[average])


def recurrent() -> Program:
    torch.manual_seed(0)

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells, self.out = nn.GRU(8, 6, num_layers=2, batch_first=True), nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.cells(x.unsqueeze(1))[0][:, -1])

    model = Recurrent().to(device())
    optimizer = adamw(model.parameters())
    return Program(basic(model, optimizer), (model, optimizer), model, batch)


def checkpointed_dropout() -> Program:
    model = mlp(0.3)
    optimizer = adamw(model.parameters())
    step = basic(lambda x: checkpoint(model, x, use_reentrant=False), optimizer)
    return Program(step, (model, optimizer), model, batch)


def queued() -> Program:
    model = mlp()
    optimizer = adamw(model.parameters())
    queue, place = torch.zeros(20, 4, device=device()), torch.zeros(1, dtype=torch.long, device=device())

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        out = model(x)
        loss = F.mse_loss(out, y) + (out @ queue.T).mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            queue.index_copy_(0, (place + torch.arange(5, device=x.device)) % 20, out.detach())
            place.add_(5).remainder_(20)
        return loss.detach()

    return Program(step, (model, optimizer, queue, place), model, batch, extra=[queue, place])


RECIPES: dict[str, Callable[[], Program]] = {
    "unscaled and clipped": unscaled_and_clipped,
    "two models": adversarial,
    "closure": with_closure,
    "sharpness aware": sharpness_aware,
    "functional": functional,
    "normalized": normalized,
    "recurrent": recurrent,
    "checkpointed dropout": checkpointed_dropout,
    "queue": queued,
}
