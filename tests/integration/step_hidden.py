"""Steps for ``test_step_sim_hidden``: tensors that lie neither in a model nor in its optimizer."""

# People write steps without types.
# mypy: ignore-errors
from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

import paramgraph_kit as pgk
from tests.integration.step_parts import Program, basic, batch, device, mlp
from tests.integration.step_recipes import adamw

CACHE: dict[Any, torch.Tensor] = {}
WEIGHTS: list[torch.Tensor] = []


def stepped(forward: Callable[[nn.Module, torch.Tensor], torch.Tensor], *, compiled: Any = None, model: Any = None):
    torch.manual_seed(0)
    inner = mlp() if model is None else model

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return forward(self, x)

    whole = Whole().to(device())
    optimizer = adamw(whole.parameters())
    run = whole if compiled is None else compiled(whole)
    return Program(basic(run, optimizer), (whole, optimizer), whole, batch)


def constant(compiled: Any = None) -> Program:
    return stepped(lambda m, x: m.inner(x * torch.tensor(2.0)), compiled=compiled)


def constant_vector(compiled: Any = None) -> Program:
    def forward(m, x):
        mean = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8], device=x.device)
        return m.inner(x - mean)

    return stepped(forward, compiled=compiled)


def mask_by_length() -> Program:
    def forward(m, x):
        length = x.shape[0]
        if getattr(m, "mask", None) is None or m.mask.shape[0] < length:
            m.mask = torch.full((length, length), float("-inf"), device=x.device).triu(1)
        return m.inner((x @ x.T + m.mask[:length, :length]).softmax(-1) @ x)

    return stepped(forward)


def buffer_by_length() -> Program:
    def forward(m, x):
        if not hasattr(m, "table") or m.table.shape[0] < x.shape[0]:
            m.register_buffer("table", torch.arange(float(x.shape[0]), device=x.device), persistent=False)
        return m.inner(x * m.table[: x.shape[0], None].cos())

    return stepped(forward)


def rotary_cache() -> Program:
    tables: dict[int, Any] = {}

    def rotary(length, device):
        if length not in tables:
            angle = torch.outer(torch.arange(length, device=device), torch.arange(4, device=device) / 4)
            tables[length] = angle.cos(), angle.sin()
        return tables[length]

    def forward(m, x):
        cos, sin = rotary(x.shape[0], x.device)
        a, b = x.chunk(2, -1)
        return m.inner(torch.cat([a * cos - b * sin, a * sin + b * cos], -1))

    return stepped(forward)


def lru_cached() -> Program:
    @functools.lru_cache(maxsize=8)
    def table(length):
        return torch.arange(float(length), device=device()).cos()[:, None]

    return stepped(lambda m, x: m.inner(x * table(x.shape[0])))


@functools.cache
def _position(length: int) -> torch.Tensor:
    return torch.arange(float(length), device=device()).sin()[:, None]


def cached_globally() -> Program:
    _position.cache_clear()
    return stepped(lambda m, x: m.inner(x + _position(x.shape[0])))


def scaled_table(scale: list[float]) -> Any:
    @functools.lru_cache(maxsize=4)
    def table(length):
        return torch.full((length,), scale[0], device=device())

    return table


def global_dict() -> Program:
    CACHE.clear()

    def forward(m, x):
        key = (x.shape[0], x.device)
        if key not in CACHE:
            CACHE[key] = torch.ones(x.shape[0], 1, device=x.device) * 3
        return m.inner(x * CACHE[key])

    return stepped(forward)


def weighted_loss(compiled: Any = None) -> Program:
    model = mlp()
    weight = torch.tensor([0.1, 0.2, 0.3, 0.4], device=device())
    criterion = nn.CrossEntropyLoss(weight=weight)
    optimizer = adamw(model.parameters())
    run = model if compiled is None else compiled(model)
    return Program(basic(run, optimizer, lambda x, y: criterion(run(x), y.argmax(1))), (model, optimizer), model, batch)


def literal_weights() -> Program:
    model = mlp()
    optimizer = adamw(model.parameters())

    def loss_of(x, y):
        return F.cross_entropy(model(x), y.argmax(1), weight=torch.tensor([0.1, 0.2, 0.3, 0.4], device=x.device))

    return Program(basic(model, optimizer, loss_of), (model, optimizer), model, batch)


class Metric:
    """As in metrics libraries: states by name, set with ``setattr``."""

    def __init__(self) -> None:
        self.states: dict[str, Any] = {}
        for name in ("total", "count"):
            setattr(self, name, torch.zeros((), device=device()))
            self.states[name] = getattr(self, name)

    def update(self, value: torch.Tensor) -> None:
        self.total = self.total + value.detach()
        self.count += 1

    def compute(self) -> torch.Tensor:
        return self.total / self.count


def metric() -> Program:
    model = mlp()
    optimizer = adamw(model.parameters())
    inner, found = basic(model, optimizer), Metric()

    def step(x, y):
        loss = inner(x, y)
        found.update(loss)
        return found.compute()

    return Program(step, (model, optimizer), model, batch, extra=[found])


def average_in_list() -> Program:
    model = mlp()
    optimizer = adamw(model.parameters())
    inner = basic(model, optimizer)
    shadow = [p.detach().clone() for p in model.parameters()]

    class Average:
        def __init__(self, shadow):
            self._shadow = shadow

        def update(self):
            for s, p in zip(self._shadow, model.parameters(), strict=True):
                s.lerp_(p.detach(), 0.1)

    average = Average(shadow)

    def step(x, y):
        loss = inner(x, y)
        average.update()
        return loss

    return Program(step, (model, optimizer), model, batch, extra=[shadow])


def global_tensor() -> Program:
    WEIGHTS[:] = [torch.tensor([1.0, 2.0, 3.0, 4.0], device=device())]
    model = mlp()
    optimizer = adamw(model.parameters())
    return Program(
        basic(model, optimizer, lambda x, y: (WEIGHTS[0] * (model(x) - y)).square().mean()),
        (model, optimizer),
        model,
        batch,
    )


def class_attribute() -> Program:
    class Loss:
        scale = torch.tensor(2.0, device=device())

        @classmethod
        def of(cls, a, b):
            return cls.scale * F.mse_loss(a, b)

    model = mlp()
    optimizer = adamw(model.parameters())
    return Program(basic(model, optimizer, lambda x, y: Loss.of(model(x), y)), (model, optimizer), model, batch)


class Pair(NamedTuple):
    mean: torch.Tensor
    scale: torch.Tensor


@dataclass(slots=True)
class Slotted:
    pair: Pair
    more: dict[str, Any] = field(default_factory=dict)


def slotted() -> Program:
    held = Slotted(Pair(torch.ones(8, device=device()), torch.full((8,), 2.0, device=device())))
    held.more["bias"] = (torch.ones(8, device=device()),)
    return stepped(lambda m, x: m.inner((x - held.pair.mean) / held.pair.scale + held.more["bias"][0]))


def default_argument() -> Program:
    def forward(m, x, shift=torch.full((8,), 0.5, device=device())):  # noqa: B008
        return m.inner(x + shift)

    return stepped(forward)


def weakly() -> Program:
    held: Any = weakref.WeakKeyDictionary()

    def forward(m, x):
        if m not in held:
            held[m] = torch.ones(8, device=x.device)
        return m.inner(x + held[m])

    return stepped(forward)


def scripted() -> Program:
    with torch.jit.optimized_execution(False):
        traced = torch.jit.trace(mlp(), batch(0)[0], check_trace=False)
    optimizer = adamw(traced.parameters())
    return Program(basic(traced, optimizer), (traced, optimizer), traced, batch)


def partial_constant() -> Program:
    return stepped(functools.partial(lambda c, m, x: m.inner(x * c), torch.full((8,), 2.0, device=device())))


def generator_held() -> Program:
    def scales():
        x = torch.full((8,), 2.0, device=device())
        while True:
            yield x

    held = scales()
    next(held)
    return stepped(lambda m, x: m.inner(x * next(held)))


def bound_in_c() -> Program:
    shifted = torch.full((8,), 2.0, device=device()).add
    return stepped(lambda m, x: m.inner(shifted(x)))


def from_a_property() -> Program:
    class Config:
        def __init__(self) -> None:
            self.__table = torch.full((8,), 2.0, device=device())

        @property
        def table(self):
            return self.__table

    config = Config()
    return stepped(lambda m, x: m.inner(x * config.table))


def distributions() -> Program:
    prior = torch.distributions.Normal(
        torch.zeros(4, device=device()), torch.ones(4, device=device()), validate_args=False
    )
    model = mlp()
    optimizer = adamw(model.parameters())
    return Program(
        basic(model, optimizer, lambda x, y: -prior.log_prob(model(x) - y).mean()), (model, optimizer), model, batch
    )


def mixture() -> Program:
    logits, at = (
        torch.zeros(3, device=device()),
        torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).to(device()),
    )
    parts = torch.distributions.Independent(torch.distributions.Normal(at, torch.ones_like(at), validate_args=False), 1)
    prior = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(logits=logits, validate_args=False), parts, validate_args=False
    )
    model = mlp()
    optimizer = adamw(model.parameters())
    return Program(
        basic(model, optimizer, lambda x, y: -prior.log_prob(model(x) - y).mean()), (model, optimizer), model, batch
    )


def sinusoidal() -> Program:
    class Time(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.freqs = torch.exp(-math.log(1e4) * torch.arange(4) / 4).to(device())  # no buffer: a plain attribute

        def forward(self, x):
            return torch.cat([(x[:, :4] * self.freqs).sin(), (x[:, 4:] * self.freqs).cos()], 1)

    return stepped(lambda m, x: m.inner[1](m.inner[0](x)), model=nn.Sequential(Time(), mlp()))


EAGER = lambda m: torch.compile(m, backend="eager")  # noqa: E731
AOT = lambda m: torch.compile(m, backend="aot_eager")  # noqa: E731
OURS = lambda m: pgk.compile(m)  # noqa: E731

HIDDEN: dict[str, Callable[[], Program]] = {
    f.__name__: f
    for f in (
        constant, mask_by_length, buffer_by_length, rotary_cache, lru_cached, cached_globally, global_dict,
        weighted_loss,
        metric, average_in_list, global_tensor, class_attribute, slotted, default_argument, weakly,
        partial_constant, from_a_property, bound_in_c, distributions, mixture, sinusoidal,
    )
}  # fmt: skip
REFUSED = {
    "literal_weights": (literal_weights, "tensor-literal", "made from Python numbers"),
    "scripted": (scripted, "hidden-tensor", "torch.jit"),
    "generator_held": (generator_held, "side-effect", "take it before the call"),
}
for _how, _compiled in (("eager", EAGER), ("aot", AOT), ("ours", OURS)):
    for _f in (constant, constant_vector, weighted_loss):
        HIDDEN[f"{_f.__name__} {_how}"] = functools.partial(_f, _compiled)
REFUSED["constant_vector eager"] = (HIDDEN.pop("constant_vector eager"), *REFUSED["literal_weights"][1:])
if torch.__version__ < "2.12":  # it copies such a constant to the device at each call
    REFUSED["constant_vector aot"] = (HIDDEN.pop("constant_vector aot"), "cpu-operand", "mixes CPU and GPU tensors")


def new_each_time() -> Program:
    program = stepped(lambda m, x: m.inner(x))
    kept, inner = scaled_table([1.0]), program.step
    done = [0]

    def step(x, y):
        kept(done[0])
        return inner(x, y)

    def between(number):
        done[0] = number

    return Program(step, program.state, program.model, batch, between)


REFUSED["new_each_time"] = (new_each_time, "side-effect", "computes something at each call")
