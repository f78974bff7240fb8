"""Training steps in many kinds, each made twice from one seed: one for graphs, one to compare with."""

# mypy: disable-error-code="no-untyped-call, no-any-return, index"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.integration.step_parts import Data as Data
from tests.integration.step_parts import Program as Program
from tests.integration.step_parts import basic as basic
from tests.integration.step_parts import batch as batch
from tests.integration.step_parts import device as device
from tests.integration.step_parts import mlp as mlp
from tests.integration.step_parts import rate as rate
from tests.integration.step_parts import simple as simple
from tests.integration.step_parts import values_of as values_of
from tests.integration.step_recipes import RECIPES

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "sgd foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adam capturable": lambda p: torch.optim.Adam(p, lr=rate(), capturable=True),
    "adamw capturable": lambda p: torch.optim.AdamW(p, lr=rate(), capturable=True, foreach=False),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=rate(), capturable=True, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=rate(), capturable=True, fused=True),
    "adam fused float": lambda p: torch.optim.Adam(p, lr=1e-2, capturable=True, fused=True),
    "adamw amsgrad": lambda p: torch.optim.AdamW(p, lr=rate(), capturable=True, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, capturable=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-2, capturable=True),
    "adamax": lambda p: torch.optim.Adamax(p, lr=1e-2, capturable=True),
    "radam": lambda p: torch.optim.RAdam(p, lr=1e-2, capturable=True),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=1e-1, capturable=True),
    "asgd": lambda p: torch.optim.ASGD(p, lr=1e-2, capturable=True),
    "rprop": lambda p: torch.optim.Rprop(p, lr=1e-2, capturable=True),
}


def lion() -> Program:
    model = mlp()
    moments = [torch.zeros_like(p) for p in model.parameters()]
    lr = rate()

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.mse_loss(model(x), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, m, g in zip(model.parameters(), moments, gradients, strict=True):
                p.sub_(lr * (0.9 * m + 0.1 * g).sign())
                m.lerp_(g, 0.01)
        return loss.detach()

    return Program(step, (model, moments), model, batch, extra=moments)


def ema(bound_anew: bool) -> Program:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = {n: p.detach().clone() for n, p in model.named_parameters()}
    inner = basic(model, optimizer)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = inner(x, y)
        with torch.no_grad():
            for n, p in model.named_parameters():
                if bound_anew:
                    average[n] = 0.9 * average[n] + 0.1 * p
                else:
                    average[n].lerp_(p, 0.1)
        return loss

    return Program(step, (model, optimizer, average), model, batch, extra=[average])


def clipped() -> Program:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate(), capturable=True, foreach=True)

    def step(x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return {"loss": loss.detach(), "norm": norm, "count": 2, "none": None}

    return Program(step, (model, optimizer), model, batch)


def zeroed_after(inside: bool) -> Program:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if inside:
            optimizer.zero_grad()
        return loss.detach()

    def between(_: int) -> None:
        if not inside:
            optimizer.zero_grad()

    return Program(step, (model, optimizer), model, batch, between)


def accumulation() -> Program:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: torch.Tensor, y: torch.Tensor, last: bool) -> torch.Tensor:
        loss = F.mse_loss(model(x), y) / 3
        loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return Program(step, (model, optimizer), model, lambda n: (*batch(n), n % 3 == 2))


def accumulation_outside() -> Program:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.mse_loss(model(x), y) / 3
        loss.backward()
        return loss.detach()

    def between(number: int) -> None:
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()

    return Program(step, (model,), model, batch, between)


def in_one_call() -> Program:
    model = mlp(0.2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate(), capturable=True)

    def step(xs: list[torch.Tensor], ys: list[torch.Tensor]) -> list[torch.Tensor]:
        optimizer.zero_grad(set_to_none=False)
        losses = []
        for x, y in zip(xs, ys, strict=True):
            loss = F.mse_loss(model(x), y)
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        return losses

    def batches(number: int) -> Data:
        pairs = [batch(3 * number + k) for k in range(3)]
        return [x for x, _ in pairs], [y for _, y in pairs]

    return Program(step, (model, optimizer), model, batches)


def autocast() -> Program:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device().type, torch.bfloat16):
            return F.mse_loss(model(x), y)

    return Program(basic(model, optimizer, loss_of), (model, optimizer), model, batch)


def scaled() -> Program:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate(), capturable=True, fused=True)
    scaler = torch.amp.GradScaler(device().type, init_scale=2.0**20, growth_interval=3)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast(device().type, torch.float16):
            loss = F.mse_loss(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return Program(step, (model, optimizer, scaler), model, batch, extra=[scaler])


def checkpointed(reentrant: bool) -> Program:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(model[1:], model[0](x), use_reentrant=reentrant)

    return Program(basic(run, optimizer), (model, optimizer), model, batch)


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda n: 1 / (1 + n)),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 20),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=30, cycle_momentum=False),
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 3, 0.5),
}


def scheduled(make: Callable[[Any], Any], inside: bool) -> Program:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate(), capturable=True)
    scheduler = make(optimizer)
    inner = basic(model, optimizer)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = inner(x, y)
        if inside:
            scheduler.step()
        return loss

    def between(_: int) -> None:
        if not inside:
            scheduler.step()

    state = (model, optimizer, scheduler) if inside else (model, optimizer)
    return Program(step, state, model, batch, between, extra=[scheduler.state_dict()["_last_lr"], optimizer])


def carried(structured: bool) -> Program:
    torch.manual_seed(0)

    class Carried(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTMCell(8, 4)
            self.hidden: Any = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h, c = self.hidden if structured else (self.hidden, self.hidden)
            h, c = self.cell(x, (h, c))
            self.hidden = (h.detach(), c.detach()) if structured else h.detach()
            return h

    model = Carried().to(device())
    first = torch.zeros(5, 4, device=device())
    model.hidden = (first, first.clone()) if structured else first
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Program(basic(model, optimizer), (model, optimizer), model, batch, extra=[model])


def trainer() -> Program:
    class Trainer:
        def __init__(self) -> None:
            self.model = mlp(0.1)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            self.losses: list[float] = []
            self.done = 0
            self.last: Any = None

        def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            self.optimizer.zero_grad()
            self.last = self.loss(x, y)
            return self.last

        def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = F.mse_loss(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            return loss.detach()

        def between(self, number: int) -> None:
            self.done += 1
            self.losses.append(float(self.last))

    made = Trainer()
    return Program(made.step, (made,), made.model, batch, made.between, extra=[made])


def buffers() -> Program:
    return simple(OPTIMIZERS["sgd"], norm=True)


def shapes() -> Program:
    program = simple(OPTIMIZERS["adamw foreach"], dropout=0.2)
    program.batch = lambda n: batch(n, 3 + n % 4)
    return program


def mixed_arguments() -> Program:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(data: dict[str, torch.Tensor], *, weight: float, scale: torch.Tensor) -> tuple[Any, ...]:
        optimizer.zero_grad()
        out = model(data["x"])
        loss = F.mse_loss(out, data["y"]) * weight * scale
        loss.backward()
        optimizer.step()
        data["x"].mul_(2)
        return loss.detach(), out.detach()[1:], data["x"], optimizer.param_groups[0]["params"][0].detach()[:1], "done"

    def batches(number: int) -> Data:
        x, y = batch(number)
        return ({"x": x, "y": y}, {"weight": 0.5, "scale": torch.tensor(float(number), device=device())})

    return Program(lambda data, named: step(data, **named), (model, optimizer), model, batches)


def hooks() -> Program:
    model = mlp()
    optimizers = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}

    def update(p: torch.Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss.detach()

    return Program(step, (model, optimizers), model, batch)


def tied() -> Program:
    torch.manual_seed(0)

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(11, 8)
            self.out = nn.Linear(8, 11, bias=False)
            self.out.weight = self.embedding.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.embedding(x))

    model = Tied().to(device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate(), capturable=True, fused=True)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    def batches(number: int) -> Data:
        generator = torch.Generator().manual_seed(number)
        x = torch.randint(11, (2, 6), generator=generator).to(device())
        return x, x.flip(0)

    return Program(step, (model, optimizer), model, batches)


def second_order() -> Program:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        x = x.requires_grad_()
        loss = F.mse_loss(model(x), y)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        (loss + slope.square().sum()).backward()
        optimizer.step()
        return loss.detach()

    return Program(lambda x, y: step(x.clone(), y), (model, optimizer), model, batch)


PROGRAMS: dict[str, Callable[[], Program]] = {
    **{name: (lambda make=make: simple(make)) for name, make in OPTIMIZERS.items()},  # type: ignore[misc]
    "zeros kept": lambda: simple(OPTIMIZERS["sgd momentum"], set_to_none=False),
    "dropout": lambda: simple(OPTIMIZERS["adamw fused"], dropout=0.3),
    "lion by hand": lion,
    "average in place": lambda: ema(False),
    "average bound anew": lambda: ema(True),
    "clipped": clipped,
    "zero_grad last": lambda: zeroed_after(inside=True),
    "zero_grad outside": lambda: zeroed_after(inside=False),
    "accumulation": accumulation,
    "accumulation outside": accumulation_outside,
    "accumulation in one call": in_one_call,
    "autocast": autocast,
    "scaled": scaled,
    "checkpointed": lambda: checkpointed(False),
    "checkpointed reentrant": lambda: checkpointed(True),
    **{f"{name} outside": (lambda make=make: scheduled(make, False)) for name, make in SCHEDULERS.items()},  # type: ignore[misc]
    **{f"{name} inside": (lambda make=make: scheduled(make, True)) for name, make in SCHEDULERS.items()},  # type: ignore[misc]
    "carried state": lambda: carried(False),
    "carried tuple": lambda: carried(True),
    "a trainer's method": trainer,
    "batch norm": buffers,
    "several shapes": shapes,
    "arguments of all kinds": mixed_arguments,
    "optimizer in hooks": hooks,
    "tied weights": tied,
    "second order": second_order,
    **RECIPES,
}
