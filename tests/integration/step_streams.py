"""Functions and steps on several streams, as people write them: for the simulated device and for a GPU.

Each builder gives a function, the state that it has, and how many lanes its graph is drawn with.
"""

# People write steps without types.
# mypy: disable-error-code="no-any-return, no-untyped-call, unused-ignore"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import paramgraph_kit as pgk

WIDTH = 32
cuda: Any = pgk.cuda
Made = tuple[Callable[..., Any], tuple[Any, ...]]


def fork_and_join() -> Made:
    one, two, layer = cuda.Stream(), cuda.Stream(), nn.Linear(WIDTH, WIDTH).to(pgk.device())

    @torch.no_grad()
    def function(x: Tensor) -> Tensor:
        here = cuda.current_stream()
        one.wait_stream(here)
        two.wait_stream(here)
        with cuda.stream(one):
            a = layer(x).sin()
        with cuda.stream(two):
            b = (x @ x.T).softmax(-1)
        c = x.cos()
        here.wait_stream(one)
        here.wait_stream(two)
        return b @ (a + c)

    return function, (layer,)


def events() -> Made:
    side, half, done = cuda.Stream(), cuda.Event(), cuda.Event()

    @torch.no_grad()
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        a = x.sin()
        half.record()
        b = a.cos()
        with cuda.stream(side):
            side.wait_event(half)
            c = a.exp().sum(0)
            done.record(side)
        d = (b * 2).relu()
        cuda.current_stream().wait_event(done)
        return b * c, d

    return function, ()


def nested() -> Made:
    outer, inner = cuda.Stream(), cuda.Stream(priority=-1)

    @torch.no_grad()
    def function(x: Tensor) -> Tensor:
        here = cuda.current_stream()
        outer.wait_stream(here)
        with cuda.stream(outer):
            a = x * 3
            inner.wait_stream(outer)
            with cuda.stream(inner):
                b = a.tanh() @ a.T
            c = a.sigmoid()
            outer.wait_stream(inner)
            d = b @ c
        e = x.exp()
        here.wait_stream(outer)
        return d + e

    return function, ()


def a_new_stream_at_each_call() -> Made:
    @torch.no_grad()
    def function(x: Tensor) -> Tensor:
        here, side = cuda.current_stream(), cuda.Stream()
        side.wait_stream(here)
        with cuda.stream(side):
            a = x.sin() @ x.T
        b = x.cos()
        here.wait_stream(side)
        a.record_stream(here)
        return a @ b

    return function, ()


def batches_in_parallel() -> Made:
    streams = [cuda.Stream() for _ in range(4)]
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)).to(pgk.device())

    @torch.inference_mode()
    def function(x: Tensor) -> tuple[Tensor, list[Tensor]]:
        here, found = cuda.current_stream(), []
        for side, part in zip(streams, x.chunk(4), strict=True):
            side.wait_stream(here)
            with cuda.stream(side):
                found.append(model(part))
        for side in streams:
            here.wait_stream(side)
        return torch.stack(found).mean(0), found

    return function, (model,)


def long_branches() -> Made:
    one, two = cuda.Stream(), cuda.Stream()

    @torch.no_grad()
    def function(x: Tensor) -> Tensor:
        here = cuda.current_stream()
        one.wait_stream(here)
        two.wait_stream(here)
        with cuda.stream(one):
            a = x
            for k in range(12):
                a = (a * 1.01 + k).sin()
        with cuda.stream(two):
            b = x
            for k in range(12):
                b = (b * 0.99 - k).cos()
        c = x
        for k in range(12):
            c = (c + k).tanh()
        here.wait_stream(one)
        here.wait_stream(two)
        return a * b * c

    return function, ()


class Towers(nn.Module):
    """Three towers, two of them on streams of their own."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(dropout)) for _ in range(3)
        )
        self.head = nn.Linear(WIDTH * 3, 10)
        self.streams = [cuda.Stream() for _ in range(2)]

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (rows, 32)."""
        here, found = cuda.current_stream(), []
        for side, tower in zip(self.streams, self.towers, strict=False):
            side.wait_stream(here)
            with cuda.stream(side):
                found.append(tower(x))
        found.append(self.towers[-1](x))
        for side in self.streams:
            here.wait_stream(side)
        logits: Tensor = self.head(torch.cat(found, -1))
        return logits


def towers(dropout: float = 0.0) -> Made:
    model = Towers(dropout).to(pgk.device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), x[:, :10].softmax(-1))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, (model, optimizer)


def micro_batches() -> Made:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 10)).to(pgk.device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    streams = [cuda.Stream(), cuda.Stream()]

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        here, losses = cuda.current_stream(), []
        for side, part in zip(streams, x.chunk(2), strict=True):
            side.wait_stream(here)
            with cuda.stream(side):
                loss = model(part).square().mean()
                loss.backward()
                losses.append(loss.detach())
            here.wait_stream(side)
        optimizer.step()
        return torch.stack(losses)

    return step, (model, optimizer)


def average_on_the_side() -> Made:
    model, average = (nn.Linear(WIDTH, WIDTH).to(pgk.device()) for _ in range(2))
    average.requires_grad_(False)
    optimizer, side = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), cuda.Stream()

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side), torch.no_grad():
            for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(parameter, 0.1)
        norm = torch.stack([parameter.square().sum() for parameter in model.parameters()]).sum()
        cuda.current_stream().wait_stream(side)
        return loss.detach(), norm.detach()

    return step, (model, optimizer, average)


PROGRAMS: dict[str, tuple[Callable[[], Made], int]] = {
    "fork and join": (fork_and_join, 3),
    "events": (events, 2),
    "a stream forked from a stream": (nested, 3),
    "a new stream at each call": (a_new_stream_at_each_call, 2),
    "four batches in parallel": (batches_in_parallel, 4),
    "long branches": (long_branches, 3),
    "towers, trained": (towers, 3),
    "towers with dropout, trained": (lambda: towers(0.5), 3),
    "micro-batches, trained": (micro_batches, 1),
    "moving average on the side": (average_on_the_side, 2),
}


def tensors_of(value: Any) -> list[Tensor]:
    """All tensors of a result, copied."""
    if isinstance(value, Tensor):
        return [value.detach().clone()]
    return [each for part in value for each in tensors_of(part)]


def compare(name: str, calls: int = 8) -> Any:
    """Compare each call's results and parameters with eager's, at addresses that move; its report and its lanes."""
    build, _ = PROGRAMS[name]
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        made.append(build())
    (eager, plain), (function, state) = made
    ours, held = pgk.parameterize(function, state=state), []
    with pgk.watch() as trace:
        for seed in range(calls):
            found = []
            for call, parts in ((eager, plain), (ours, state)):
                x = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(seed)).to(pgk.device())
                held.append(x)  # so that the next lies elsewhere
                cuda.synchronize()
                cuda.manual_seed(seed)
                results = tensors_of(call(x))
                cuda.synchronize()
                modules = [part for part in parts if isinstance(part, nn.Module)]
                found.append(results + [p.detach().clone() for m in modules for p in m.parameters()])
            assert len(found[0]) == len(found[1])
            assert all(torch.equal(a, b) for a, b in zip(*found, strict=True)), f"call {seed}"
            for x in held[:-6]:
                x.fill_(torch.nan)
    return pgk.report(ours), {node.lane for capture in trace.captures for node in capture.nodes}
