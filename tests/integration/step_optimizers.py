"""Steps for ``test_step_sim_forums``: optimizers, averages and learning rates as people write them."""

# People write steps without types.
# mypy: ignore-errors
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.integration.step_parts import Program, basic, batch, device, mlp
from tests.integration.step_recipes import adamw


def sgd(parameters: Any, **how: Any) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.05, **how)


def lion_class() -> Program:
    class Lion(torch.optim.Optimizer):
        def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1):
            super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                b1, b2 = group["betas"]
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    state = self.state[p]
                    if len(state) == 0:
                        state["exp_avg"] = torch.zeros_like(p)
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    update = state["exp_avg"].mul(b1).add(p.grad, alpha=1 - b1).sign_()
                    p.add_(update, alpha=-group["lr"])
                    state["exp_avg"].lerp_(p.grad, 1 - b2)

    model = mlp()
    optimizer = Lion(model.parameters())
    return Program(basic(model, optimizer), (model, optimizer), model, batch)


def adafactor() -> Program:
    model = mlp()
    rows = {n: torch.zeros(p.shape[:-1], device=device()) for n, p in model.named_parameters()}
    cols = {n: torch.zeros(p.shape[-1:], device=device()) for n, p in model.named_parameters()}
    count = torch.zeros((), device=device())

    def step(x, y):
        model.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        with torch.no_grad():
            count.add_(1)
            decay = 1 - count.pow(-0.8)
            for n, p in model.named_parameters():
                square = p.grad.square() + 1e-30
                rows[n].mul_(decay).add_((1 - decay) * square.mean(-1))
                cols[n].mul_(decay).add_((1 - decay) * square.flatten(0, -2).mean(0) if p.dim() > 1 else square)
                factor = (rows[n] / rows[n].mean(-1, keepdim=True).clamp(min=1e-30)).rsqrt()
                update = p.grad * (factor.unsqueeze(-1) if p.dim() > 1 else factor) * cols[n].rsqrt()
                p.sub_(1e-3 * update / (update.square().mean().sqrt() / 1.0).clamp(min=1.0))
        return loss.detach()

    return Program(step, (model, rows, cols, count), model, batch, extra=[rows, cols, count])


def adafactor_of_torch() -> Program:
    model = mlp()
    optimizer = torch.optim.Adafactor(model.parameters())
    return Program(basic(model, optimizer), (model, optimizer), model, batch)


def muon() -> Program:
    model = mlp()
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = adamw([p for p in model.parameters() if p.dim() < 2])
    momentum = [torch.zeros_like(p) for p in matrices]

    def orthogonal(g: torch.Tensor) -> torch.Tensor:
        a, b, c = 3.4445, -4.7750, 2.0315
        x = g / (g.norm() + 1e-7)
        tall = x.shape[0] > x.shape[1]
        x = x.T if tall else x
        for _ in range(5):
            s = x @ x.T
            x = a * x + (b * s + c * s @ s) @ x
        return x.T if tall else x

    def step(x, y):
        loss = F.mse_loss(model(x), y)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p, m in zip(matrices, momentum, strict=True):
                m.mul_(0.95).add_(p.grad)
                p.add_(orthogonal(p.grad.add(m, alpha=0.95)), alpha=-0.02 * max(1, p.shape[0] / p.shape[1]) ** 0.5)
        others.step()
        return loss.detach()

    return Program(step, (model, others, momentum), model, batch, extra=[momentum])


def sam_class() -> Program:
    class SAM(torch.optim.Optimizer):
        def __init__(self, params, base, rho=0.05, **kwargs):
            super().__init__(params, {"rho": rho, **kwargs})
            self.base_optimizer = base(self.param_groups, **kwargs)
            self.param_groups = self.base_optimizer.param_groups

        @torch.no_grad()
        def first_step(self):
            norm = torch.norm(torch.stack([p.grad.norm(p=2) for g in self.param_groups for p in g["params"]]), p=2)
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p]["old_p"] = p.data.clone()
                    p.add_(p.grad * (group["rho"] / (norm + 1e-12)))
            self.zero_grad()

        @torch.no_grad()
        def second_step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    p.data = self.state[p]["old_p"]
            self.base_optimizer.step()
            self.zero_grad()

    model = mlp()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)

    def step(x, y):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.first_step()
        F.mse_loss(model(x), y).backward()
        optimizer.second_step()
        return loss.detach()

    return Program(step, (model, optimizer), model, batch)


def swa() -> Program:
    model = mlp()
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = sgd(model.parameters())
    inner = basic(model, optimizer)

    def step(x, y):
        loss = inner(x, y)
        average.update_parameters(model)
        return loss

    return Program(step, (model, average, optimizer), model, batch, extra=[average])


def no_sync() -> Program:
    from contextlib import nullcontext

    model = mlp()
    optimizer = sgd(model.parameters(), momentum=0.9)

    def step(x, y, sync: bool):
        with nullcontext() if sync else torch.enable_grad():
            (F.mse_loss(model(x), y) / 4).backward()
        if sync:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return Program(step, (model, optimizer), model, lambda n: (*batch(n), n % 4 == 3))


def scaler_sgd() -> Program:
    model = mlp()
    optimizer = sgd(model.parameters(), momentum=0.9, fused=True)
    scaler = torch.amp.GradScaler(device().type, growth_interval=5)

    def step(x, y):
        with torch.autocast(device().type, torch.float16):
            loss = F.mse_loss(model(x), y.half())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return Program(step, (model, optimizer, scaler), model, batch, extra=[scaler])


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "exponential": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
    "multi step": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [4, 9], 0.3),
    "linear": lambda o: torch.optim.lr_scheduler.LinearLR(o, 0.1, 1, 8),
    "polynomial": lambda o: torch.optim.lr_scheduler.PolynomialLR(o, 15),
    "cyclic": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 1e-3, 1e-2, 3, cycle_momentum=False),
    "warm restarts": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 5),
    "multiplicative": lambda o: torch.optim.lr_scheduler.MultiplicativeLR(o, lambda _: 0.95),
    "constant": lambda o: torch.optim.lr_scheduler.ConstantLR(o, 0.5, 4),
    "sequential": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o, [torch.optim.lr_scheduler.LinearLR(o, 0.1, 1, 4), torch.optim.lr_scheduler.CosineAnnealingLR(o, 16)], [4]
    ),
    "chained": lambda o: torch.optim.lr_scheduler.ChainedScheduler(
        [torch.optim.lr_scheduler.ConstantLR(o, 0.5, 4), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}


def scheduled(name: str, inside: bool) -> Program:
    model = mlp()
    optimizer = adamw(model.parameters())
    scheduler = SCHEDULERS[name](optimizer)
    inner = basic(model, optimizer)

    def step(x, y):
        loss = inner(x, y)
        if inside:
            scheduler.step()
        return loss

    def between(_: int) -> None:
        if not inside:
            scheduler.step()

    state = (model, optimizer, scheduler) if inside else (model, optimizer)
    return Program(step, state, model, batch, between, extra=[optimizer])


def plateau() -> Program:
    model = mlp()
    optimizer = adamw(model.parameters())
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    seen: list[Any] = []
    inner = basic(model, optimizer)

    def step(x, y):
        seen[:] = []
        return inner(x, y)

    def between(number: int) -> None:
        scheduler.step(1.0 + number)

    return Program(step, (model, optimizer), model, batch, between, extra=[optimizer])


def clipped_by_hand() -> Program:
    model = mlp()
    optimizer = sgd(model.parameters(), momentum=0.9, nesterov=True, weight_decay=1e-4)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.huber_loss(model(x), y)
        loss.backward()
        with torch.no_grad():
            norm = torch.sqrt(sum(p.grad.pow(2).sum() for p in model.parameters()))
            scale = (1.0 / (norm + 1e-6)).clamp(max=1.0)
            for p in model.parameters():
                p.grad.mul_(scale)
        optimizer.step()
        return loss.detach(), norm

    return Program(step, (model, optimizer), model, batch)


def skipping() -> Program:
    """A step that is skipped where its gradient is not finite, without the host."""
    model = mlp()
    momenta = [torch.zeros_like(p) for p in model.parameters()]

    def step(x, y):
        loss = F.mse_loss(model(x), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        finite = torch.stack([g.isfinite().all() for g in gradients]).all()
        with torch.no_grad():
            for p, m, g in zip(model.parameters(), momenta, gradients, strict=True):
                m.copy_(torch.where(finite, 0.9 * m + g, m))
                p.sub_(torch.where(finite, 0.01 * m, torch.zeros_like(m)))
        return torch.where(finite, loss, -1.0).detach()

    return Program(step, (model, momenta), model, batch, extra=[momenta])


def skipping_on_the_host() -> Program:
    model = mlp()
    optimizer = sgd(model.parameters())

    def step(x, y):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        if not torch.isfinite(loss):
            return loss.detach()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Program(step, (model, optimizer), model, batch)


def lookahead() -> Program:
    model = mlp()
    optimizer = adamw(model.parameters())
    slow = [p.detach().clone() for p in model.parameters()]
    count = torch.zeros((), dtype=torch.long, device=device())
    inner = basic(model, optimizer)

    def step(x, y):
        loss = inner(x, y)
        with torch.no_grad():
            count.add_(1)
            now = count.remainder(5).eq(0)
            for p, s in zip(model.parameters(), slow, strict=True):
                s.copy_(torch.where(now, s + 0.5 * (p - s), s))
                p.copy_(torch.where(now, s, p))
        return loss

    return Program(step, (model, optimizer, slow, count), model, batch, extra=[slow])


def two_rates() -> Program:
    model = mlp()
    groups = [{"params": model[0].parameters(), "lr": torch.tensor(1e-2, device=device())},
              {"params": model[3].parameters(), "lr": torch.tensor(1e-3, device=device())}]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, capturable=True, foreach=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda n: 0.9**n, lambda n: 1 / (1 + n)])
    return Program(basic(model, optimizer), (model, optimizer), model, batch, lambda _: scheduler.step(), [optimizer])


def rate_schedule_on_the_device() -> Program:
    model = mlp()
    optimizer = adamw(model.parameters(), fused=True)
    count = torch.zeros((), device=device())
    inner = basic(model, optimizer)

    def step(x, y):
        count.add_(1)
        for group in optimizer.param_groups:
            group["lr"].copy_(1e-2 * torch.minimum(count / 5, 5 / count))
        return inner(x, y)

    return Program(step, (model, optimizer, count), model, batch, extra=[optimizer])


def rate_by_hand() -> Program:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inner = basic(model, optimizer)
    done = [0]

    def between(number: int) -> None:
        done[0] += 1
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * 0.9 ** done[0]

    return Program(inner, (model, optimizer), model, batch, between)


def lbfgs() -> Program:
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)

    def step(x, y):
        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure).detach()

    return Program(step, (model, optimizer), model, batch)


def decayed_by_data() -> Program:
    model = mlp(norm=True)
    inner = basic(model, adamw(model.parameters(), fused=True))

    def step(x, y):
        loss = inner(x, y)
        for p in model.parameters():
            p.data = p.data * 0.999
        model[1].running_mean.data = model[1].running_mean.data * 0.5
        return loss

    return Program(step, (model,), model, batch)


def shrinking() -> Program:
    """A tensor that is of another shape after the call."""
    table = torch.ones(100, 8, device=device())
    model = mlp()
    inner = basic(model, sgd(model.parameters()))

    def step(x, y):
        table.data = table.data[1:].clone()
        return inner(x * table[0], y)

    return Program(step, (model, table), model, batch, extra=[table])
