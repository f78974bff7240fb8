"""Steps whose loops do something between the calls, or give them something else each time."""

# People write steps without types.
# mypy: ignore-errors
from __future__ import annotations

import collections
import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from tests.integration.step_parts import Data, Program, basic, batch, device, mlp, rate


def sgd(parameters: Any, **how: Any) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.1, **how)


def adamw(parameters: Any) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=rate(), capturable=True)


def seeded(number: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(number)).to(device())


def sized(number: int) -> Data:
    return batch(number, (6, 3, 5)[number % 3])


def doing(events: dict[int, Callable[[], Any]]) -> Callable[[int], None]:
    """What happens after some steps."""

    def between(number: int) -> None:
        if number in events:
            events[number]()

    return between


def heads_in_turn() -> Program:
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(8, 16), *(nn.Linear(16, 4) for _ in range(3))]).to(device())
    optimizer = adamw(model.parameters())

    def step(x, y, which=0):
        optimizer.zero_grad()
        outs = [head(model[0](x).relu()) for head in model[1:]]
        loss = F.mse_loss(outs[which], y)
        loss.backward()
        optimizer.step()
        return loss.detach(), [out.detach() for out in outs]

    return Program(step, (model, optimizer), model, lambda n: (*batch(n), n % 3))


def frozen_for_a_while() -> Program:
    model = mlp()
    optimizer = sgd(model.parameters(), momentum=0.9)
    events = {4: lambda: model[0].requires_grad_(False), 8: lambda: model[0].requires_grad_(True)}
    return Program(basic(model, optimizer), (model, optimizer), model, batch, doing(events))


def group_added() -> Program:
    model = mlp()
    optimizer = sgd(model[-1].parameters(), momentum=0.9)
    more = {"params": list(model[0].parameters()), "lr": 0.01, "weight_decay": 0.1}
    events = {5: lambda: optimizer.add_param_group(more)}
    return Program(basic(model, optimizer), (model, optimizer), model, batch, doing(events))


def optimizers_in_backward() -> Program:
    model = mlp()
    optimizers = {p: sgd([p], foreach=False) for p in model.parameters()}

    def hook(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)

    def step(x, y):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss.detach()

    return Program(step, (model, optimizers), model, batch)


def hooks_that_come_and_go() -> Program:
    model = mlp()
    optimizer = sgd(model.parameters())
    handles: list[Any] = []
    events = {
        4: lambda: handles.append(model[0].weight.register_hook(lambda g: g * 2)),
        6: lambda: handles.append(model[1].register_forward_hook(lambda _, i, o: o * 2)),
        8: lambda: handles.append(optimizer.register_step_pre_hook(halved)),
        10: lambda: [handle.remove() for handle in handles],
        12: lambda: model.register_forward_pre_hook(lambda _, i: (i[0] + 1,)),
    }
    return Program(basic(model, optimizer), (model, optimizer), model, batch, doing(events))


def halved(optimizer: Any, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad.mul_(0.5)


def gradients_in_one_buffer() -> Program:
    model = mlp()
    parameters = list(model.parameters())
    flat = torch.zeros(sum(p.numel() for p in parameters), device=device())
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.grad = part.view_as(p)
    optimizer = sgd(parameters)

    def step(x, y):
        flat.zero_()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        flat.div_(flat.norm() + 1e-3)
        optimizer.step()
        return loss.detach()

    return Program(step, (model, optimizer, flat), model, batch, extra=[flat])


def state_that_is_written() -> Program:
    model = mlp(norm=True)
    optimizer = adamw(model.parameters())
    weight = model[0].weight
    state = lambda: optimizer.state[weight]  # noqa: E731
    events = {
        4: lambda: weight.data.mul_(0.9),
        5: lambda: model[1].reset_running_stats(),
        6: lambda: state()["exp_avg"].zero_(),
        7: lambda: state().update(exp_avg=torch.ones_like(weight)),
        8: lambda: weight.grad.fill_(3),
        9: lambda: setattr(weight, "grad", None),
        10: lambda: optimizer.state.clear(),
        12: lambda: optimizer.param_groups[0].update(betas=(0.5, 0.9)),
        14: lambda: optimizer.param_groups[0]["lr"].fill_(0.1),
    }
    return Program(basic(model, optimizer), (model, optimizer), model, batch, doing(events))


def replayed() -> Program:
    model = mlp()
    target, optimizer = copy.deepcopy(model), adamw(model.parameters())
    buffer = {"x": torch.zeros(32, 8, device=device()), "y": torch.zeros(32, device=device())}
    at = torch.zeros((), dtype=torch.long, device=device())

    def step(x, y):
        with torch.no_grad():
            rows = (at + torch.arange(x.shape[0], device=x.device)) % 32
            buffer["x"].index_copy_(0, rows, x)
            buffer["y"].index_copy_(0, rows, y[:, 0])
            at.add_(x.shape[0])
            pick = torch.randint(0, 32, (8,), device=x.device)
            wanted = buffer["y"][pick] + 0.9 * target(buffer["x"][pick]).amax(-1)
        loss = F.smooth_l1_loss(model(buffer["x"][pick])[:, 0], wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(target.parameters()), list(model.parameters()), 0.05)
        return loss.detach()

    events = {
        6: lambda: target.load_state_dict(model.state_dict()),
        8: lambda: buffer.update(x=buffer["x"].clone() * 2),
    }
    return Program(step, (model, target, optimizer, buffer, at), model, batch, doing(events), [buffer, at, target])


class Pair(NamedTuple):
    x: torch.Tensor
    rest: dict[str, Any]


def nested() -> Program:
    model = mlp()
    optimizer = sgd(model.parameters())

    def step(pairs, extra=()):
        optimizer.zero_grad()
        loss = sum(F.mse_loss(model(p.x), p.rest["y"][0]) * p.rest.get("weight", 1) for p in pairs)
        loss = loss + sum(model(x).square().mean() for x in extra)
        loss.backward()
        optimizer.step()
        return Pair(loss.detach(), {"count": len(pairs)})

    def batches(number):
        pairs = []
        for x, y in [batch(number + k) for k in range(1 + number % 2)]:
            pairs.append(Pair(x, {"y": [y], **({"weight": 2} if number % 2 else {})}))
        return (pairs, [seeded(number, 2, 8)] if number % 3 == 0 else ())

    return Program(step, (model, optimizer), model, batches)


def strides_and_sizes() -> Program:
    model = mlp()
    optimizer = sgd(model.parameters())

    def batches(number):
        x, y = batch(number, 6)
        kinds = (
            lambda: (x, y),
            lambda: (x.T.contiguous().T, y),
            lambda: (torch.cat([x, x], 1)[:, ::2], y),
            lambda: (x[:3], y[:3]),
            lambda: (x[:1].expand(6, 8), y),
            lambda: (x[:0], y[:0]),
        )
        return kinds[number % 6]()

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y, reduction="sum")
        loss.backward()
        optimizer.step()
        return loss.detach(), x[:, :0], loss.detach().expand(3)

    return Program(step, (model, optimizer), model, batches)


def dropped_midway() -> Program:
    model = mlp()
    optimizer = sgd(model.parameters(), momentum=0.9)

    def step(x, y, fails):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        if fails:
            raise ValueError("a bad batch")
        optimizer.step()
        return loss.detach()

    return Program(step, (model, optimizer), model, lambda n: (*batch(n), n in (1, 4, 5, 9)))


def parts_in_evaluation() -> Program:
    model = mlp(0.3, norm=True)
    optimizer = sgd(model.parameters())
    events = {
        4: model.eval,
        6: model.train,
        8: model[1].eval,
        10: lambda: setattr(model[3], "p", 0.0),
        12: lambda: setattr(model[1], "momentum", 0.5),
    }
    return Program(basic(model, optimizer), (model, optimizer), model, batch, doing(events))


def complex_weights() -> Program:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(8, 4, dtype=torch.cfloat).to(device()))
    optimizer = torch.optim.Adam([weight], lr=rate(), capturable=True)

    def step(x, y):
        optimizer.zero_grad()
        z = x.to(torch.cfloat) @ weight
        loss = (z - y).abs().square().mean() + torch.fft.rfft(z.real).abs().mean()
        loss.backward()
        optimizer.step()
        return loss.detach(), z.detach().conj(), weight.grad.conj(), weight.detach().imag, weight.detach().mH

    return Program(step, (weight, optimizer), nn.ParameterList([weight]), batch)


def conflicting_losses() -> Program:
    model = mlp()
    optimizer = sgd(model.parameters())

    def step(x, y):
        optimizer.zero_grad()
        out = model(x)
        first = F.mse_loss(out, y)
        first.backward(retain_graph=True)
        ahead = [p.grad.clone() for p in model.parameters()]
        optimizer.zero_grad()
        out.abs().mean().backward()
        dot = sum((a * p.grad).sum() for a, p in zip(ahead, model.parameters(), strict=True))
        for a, p in zip(ahead, model.parameters(), strict=True):
            p.grad.add_(torch.where(dot < 0, a * 0.5, a))
        optimizer.step()
        return first.detach(), dot

    return Program(step, (model, optimizer), model, batch)


def recurrent_until_reset() -> Program:
    torch.manual_seed(0)
    model = nn.ModuleList([nn.LSTM(8, 5, 2, dropout=0.1, batch_first=True), nn.Linear(5, 4)]).to(device())
    optimizer, held = sgd(model.parameters()), {"h": None}

    def step(x, y):
        optimizer.zero_grad()
        out, hidden = model[0](x[None], held["h"])
        held["h"] = tuple(h.detach() for h in hidden)
        loss = F.mse_loss(model[1](out[0]), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    events = {7: lambda: held.update(h=None), 10: lambda: held.update(h=tuple(h * 0 for h in held["h"]))}
    return Program(step, (model, optimizer, held), model, batch, doing(events), [held])


def in_any_order() -> Program:
    model = mlp()
    optimizer = sgd(model.parameters())

    def step(parts):
        first = next(iter(parts))
        optimizer.zero_grad()
        loss = F.mse_loss(model(parts["x"]), parts["y"]) * (2 if first == "x" else 1)
        loss.backward()
        optimizer.step()
        return loss.detach(), list(parts)

    def batches(number):
        x, y = batch(number)
        items = [("x", x), ("y", y)][:: 1 if number % 2 else -1]
        kind = (dict, collections.OrderedDict, lambda i: collections.defaultdict(list, i))[number // 2 % 3]
        return (kind(items),)

    return Program(step, (model, optimizer), model, batches)


def nearly_the_same_numbers() -> Program:
    model = mlp()
    values = (1, True, 1.0, 0.0, -0.0, float("nan"))

    def step(x, y, value):
        scale = 5 if value is True else 7 if isinstance(value, float) and value else 1
        return model(x).detach() * scale + torch.copysign(torch.ones_like(y), torch.full_like(y, float(value)))

    return Program(step, (model,), model, lambda n: (*batch(n), values[n % 6]))


def gradients_are_kept() -> Program:
    model = mlp()
    optimizer, held = adamw(model.parameters()), []

    def between(number):
        held.append({name: p.grad for name, p in model.named_parameters()})
        if number % 5 == 4:
            held.clear()
        if number % 4 == 1:
            model[0].bias.grad = None

    return Program(basic(model, optimizer), (model, optimizer), model, sized, between, [held])


def gradients_are_given_away() -> Program:
    model, other = mlp(), mlp()
    optimizer, another = sgd(model.parameters()), sgd(other.parameters())

    def between(number):
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            q.grad = p.grad
        if number % 3 == 0:
            another.step()
        if number % 3 == 1:
            model.zero_grad()

    return Program(basic(model, optimizer), (model, optimizer), model, sized, between, [other])


def gradients_in_a_graph() -> Program:
    model = mlp()
    optimizer, pending, done = sgd(model.parameters()), [], []
    weight = torch.ones(16, device=device(), requires_grad=True)

    def between(number):
        pending.append((weight * model[0].bias.grad).sum())
        if number % 3 == 2:
            while pending:
                pending.pop().backward()
            done.append(weight.grad)
            weight.grad = None

    return Program(basic(model, optimizer), (model, optimizer), model, batch, between, [done])


def gradients_are_results() -> Program:
    model = mlp()
    optimizer = sgd(model.parameters())
    inner = basic(model, optimizer)

    def step(x, y):
        return inner(x, y), [(p.grad.view(-1), p.grad.norm()) for p in model.parameters()]

    return Program(step, (model, optimizer), model, sized)


LIVES: dict[str, Callable[[], Program]] = {
    make.__name__.replace("_", " "): make
    for make in (
        heads_in_turn,
        frozen_for_a_while,
        group_added,
        optimizers_in_backward,
        hooks_that_come_and_go,
        gradients_in_one_buffer,
        state_that_is_written,
        replayed,
        nested,
        strides_and_sizes,
        dropped_midway,
        parts_in_evaluation,
        complex_weights,
        conflicting_losses,
        recurrent_until_reset,
        in_any_order,
        nearly_the_same_numbers,
        gradients_are_kept,
        gradients_are_given_away,
        gradients_in_a_graph,
        gradients_are_results,
    )
}
