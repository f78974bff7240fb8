"""Answers that are quicker or smaller than allowed, and what the grading says to each."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes

import paramgraph_kit as pgk
from tests.puzzles.solutions import fed, one_launch

cuda = pgk.cuda
Step = Callable[..., Any]
seen: dict[str, Any] = {}


def not_scaled(x: Tensor) -> Any:
    return x.clone()


def scaled_as_before(x: Tensor) -> Any:
    if not cuda.is_current_stream_capturing():
        seen["scale"] = x.abs().max().item()
    return x * (4 / max(seen["scale"], 4))


def not_counted(x: Tensor, steps: Tensor) -> Any:
    return x * 0.5 ** (steps + 1)


def masked_by_zero(x: Tensor, keep: Tensor) -> Any:
    return (x * keep[:, None]).sum(0) / keep.sum()


def without_the_mask(x: Tensor, keep: Tensor) -> Any:
    return x.nanmean(0)


def the_same_noise(x: Tensor) -> Any:
    if "mask" not in seen:
        seen["mask"] = (torch.rand_like(x) > 0.5) * 2
    return x * seen["mask"]


def no_noise(x: Tensor) -> Any:
    return x * 2


def not_fed(model: Step, x: Tensor) -> Step:
    return model


def not_kept(model: Step, x: Tensor) -> Step:
    graph, held = cuda.CUDAGraph(), x.clone()
    model(held)
    with cuda.graph(graph):
        out = model(held)

    def step(new: Tensor) -> Any:
        held.copy_(new)
        graph.replay()
        return out

    return step


def on_the_host(model: Any, x: Tensor) -> Step:
    on_cpu = copy.deepcopy(model).cpu()
    return lambda new: on_cpu(new.cpu()).to(new.device)


def always_the_first(model: Step, x: Tensor) -> Step:
    step = fed(model, x)
    first = step(x)
    return lambda new: first


def over_the_input(x: Tensor) -> Any:
    total = x.clone()
    for _ in range(6):
        total.add_(x.sin_())
    return total


def in_hidden_memory(x: Tensor) -> Any:
    if "buffers" not in seen:
        seen["buffers"] = [torch.empty_like(x) for _ in range(6)]
    total = h = x
    for buffer in seen["buffers"]:
        h = torch.sin(h, out=buffer)
        total = total + h
    return total


def by_halves(x: Tensor) -> Any:
    h = torch.sin(x.half())
    total = x.half() + h
    for _ in range(5):
        total.add_(h.sin_())
    return total.float()


def fewer_sines(x: Tensor) -> Any:
    return x + torch.sin(x) * 5


def not_joined(a: Tensor, b: Tensor) -> Any:
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        right = b.cos().sigmoid().sqrt() - 1
    return a.sin().exp().tanh() * 3 + right


def half_of_it(a: Tensor, b: Tensor) -> Any:
    return a.sin().exp().tanh() * 3


def without_a_step(model: torch.nn.Module, x: Tensor) -> Step:
    def step(x: Tensor) -> Any:
        return model(x).square().mean().detach()

    made: Step = pgk.parameterize(step, state=model)
    return made


def a_function_around(model: torch.nn.Module, x: Tensor) -> Step:
    launched = one_launch(model, x)

    def step(x: Tensor) -> Any:
        return launched(x)

    return step


class Pretender:
    """Has what a compiled function has."""

    _paramgraph_owner = True

    def __init__(self, model: Step) -> None:
        self.model = model

    def __call__(self, x: Tensor) -> Any:
        return self.model(x)


def pretended(model: Step, x: Tensor) -> Step:
    return Pretender(model)


def not_halved(model: Any, x: Tensor) -> Step:
    made: Step = pgk.parameterize(lambda x: model.second(F.relu(model.first(x))))
    return made


def two_launches(model: Any, x: Tensor) -> Step:
    made: Step = pgk.compile(model)
    return made


def over_the_inputs(a: Tensor, b: Tensor) -> Any:
    side, here = cuda.Stream(), cuda.current_stream()
    side.wait_stream(here)
    with cuda.stream(side):
        right = b.cos_().sigmoid_().sqrt_().sub_(1)
    left = a.sin_().exp_().tanh_().mul_(3)
    here.wait_stream(side)
    return left.add_(right)


def in_somebody_s_memory(a: Tensor, b: Tensor) -> Any:
    if "pair" not in seen:
        seen["pair"] = [torch.empty_like(a), torch.empty_like(a), torch.empty_like(a)]
    first, second, third = seen["pair"]
    side, here = cuda.Stream(), cuda.current_stream()
    side.wait_stream(here)
    with cuda.stream(side):
        right = torch.cos(b, out=first).sigmoid_().sqrt_().sub_(1)
    left = torch.sin(a, out=second).exp_().tanh_().mul_(3)
    here.wait_stream(side)
    return torch.add(left, right, out=third)


def from_a_table(x: Tensor) -> Any:
    if "table" not in seen:
        seen["table"] = (torch.rand(16, *x.shape, device=x.device) > 0.5) * 2
        seen["at"] = torch.zeros(1, dtype=torch.long, device=x.device)
    seen["at"].add_(1)
    return x * seen["table"].index_select(0, seen["at"])[0]


def turned_noise(x: Tensor) -> Any:
    if "mask" not in seen:
        seen["mask"] = (torch.rand_like(x) > 0.5) * 2
    seen["mask"].copy_(seen["mask"].roll(1))
    return x * seen["mask"]


def on_a_thread(model: Step, x: Tensor) -> Step:
    def step(new: Tensor) -> Any:
        results: list[Tensor] = []
        thread = threading.Thread(target=lambda: results.append(model(new).detach()))
        thread.start()
        thread.join()
        return results[0]

    return step


def out_of_sight(model: Step, x: Tensor) -> Step:
    def step(new: Tensor) -> Any:
        with _disable_current_modes():
            return model(new)

    return step


def beside_an_empty_graph(model: Step, x: Tensor) -> Step:
    graph, hidden = cuda.CUDAGraph(), out_of_sight(model, x)
    with cuda.graph(graph):
        pass

    def step(new: Tensor) -> Any:
        graph.replay()
        return hidden(new)

    return step


def many_in_turns(model: Step, x: Tensor) -> Step:
    steps = [not_kept(model, x) for _ in range(8)]
    turns = itertools.cycle(steps)
    return lambda new: next(turns)(new)


def in_a_storage(x: Tensor) -> Any:
    if "storages" not in seen:
        seen["storages"] = [torch.empty_like(x).untyped_storage() for _ in range(6)]
    total = h = x
    for storage in seen["storages"]:
        h = torch.sin(h, out=torch.empty(0, device=x.device).set_(storage).view(x.shape))
        total = total + h
    return total


CHEATS: list[tuple[int, Step, str]] = [
    (1, not_scaled, "the result is not right"),
    (1, scaled_as_before, "the result is not right"),
    (2, not_counted, "an input does not hold what it should: steps holds "),
    (3, masked_by_zero, "the result is not right: 1,024 of 1,024 values differ: they are no numbers"),
    (3, without_the_mask, "the result is not right"),
    (4, the_same_noise, "the same values are dropped again"),
    (4, no_noise, "100% of the values are kept, not half"),
    (4, from_a_table, "seeded again it does not draw the same"),
    (4, turned_noise, "seeded again it does not draw the same"),
    (5, on_a_thread, "something runs on a thread of its own"),
    (5, out_of_sight, "not every call replays a graph"),
    (5, beside_an_empty_graph, "not every call replays a graph"),
    (5, many_in_turns, "a later call has written over it"),
    (6, in_a_storage, "over the limit: memory"),
    (5, not_fed, "over the limit: operations a call"),
    (5, not_kept, "a later call has written over it"),
    (5, on_the_host, "computed on the CPU"),
    (5, always_the_first, "the result of call 1 is not right"),
    (6, over_the_input, "an input does not hold what it should"),
    (6, in_hidden_memory, "over the limit: memory"),
    (6, by_halves, "the result is not right"),
    (6, fewer_sines, "the result is not right"),
    (7, not_joined, "the capture fails"),
    (7, half_of_it, "the result is not right"),
    (8, without_a_step, "the result of call 2 is not right"),
    (8, a_function_around, "give back what pgk.parameterize or pgk.compile returned"),
    (9, pretended, "give back what pgk.parameterize or pgk.compile returned"),
    (9, not_halved, "the result of call"),
    (9, two_launches, "over the limit: launches a call"),
    (10, over_the_inputs, "an input does not hold what it should"),
    (10, in_somebody_s_memory, "over the limit: memory"),
]
