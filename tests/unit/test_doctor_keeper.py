"""What the doctor writes over is as before afterwards: values, and whether a graph of gradients hangs on them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Generator, Iterator

import torch

import paramgraph_kit as pgk
from paramgraph_kit.doctor.restore.keeper import Keeper


def test_memory_that_was_written_with_gradients_lets_go_of_their_graph() -> None:
    # GIVEN a buffer, and a weight
    buffer, weight = torch.zeros(3), torch.ones(3, requires_grad=True)
    keeper = Keeper()
    # WHEN a trial writes to the buffer what has gradients, and a part of another one, and all is put back
    keeper.before_write(buffer)
    buffer.add_(weight * 2)
    other = torch.zeros(4)
    keeper.before_write(other[:2])
    other[:2].mul_(weight[:2])
    assert buffer.requires_grad
    assert other.requires_grad
    keeper.put_back()
    # THEN it holds what it held, and its graph keeps nothing alive
    assert torch.equal(buffer, torch.zeros(3))
    assert (buffer.requires_grad, buffer.grad_fn) == (False, None)
    assert (other.requires_grad, other.grad_fn) == (False, None)
    # AND what needed gradients before still does
    keeper.before_write(weight)
    with torch.no_grad():
        weight.mul_(2)
    keeper.put_back()
    assert weight.requires_grad


def test_iterators_that_a_step_asks_give_afterwards_what_they_would_have_given() -> None:
    # GIVEN a step that asks a generator, what counts in an object, and a generator that draws
    def halved() -> Iterator[float]:
        for i in range(100):
            yield i / 2

    def drawn() -> Iterator[float]:
        while True:
            yield random.random()

    class Counts:
        def __init__(self) -> None:
            self.steps = itertools.count(3)

    rates, counts, noise, idle = halved(), Counts(), drawn(), iter([1])

    def step(x: torch.Tensor) -> torch.Tensor:
        return x * next(rates) + next(counts.steps) + next(noise) if x.dim() else x + next(idle)

    # WHEN it is diagnosed
    random.seed(4)
    pgk.diagnose(step, torch.ones(2, device=pgk.device()))
    # THEN they are where they were, and what nobody has asked is the same
    assert [next(rates), next(rates)] == [0.0, 0.5]
    assert next(counts.steps) == 3
    assert next(noise) == random.Random(4).random()
    assert type(idle) is type(iter([]))


def test_a_generator_that_is_sent_to_is_sent_to_in_and_behind_a_diagnosis() -> None:
    # GIVEN a generator that answers what it is sent, and a step that asks and sends
    def answers() -> Generator[float, float | None, None]:
        last: float | None = 0.0
        while True:
            last = yield last or 1.0

    told = answers()

    def step(x: torch.Tensor) -> torch.Tensor:
        return x * next(told) + (told.send(3.0) or 0.0)

    # WHEN it is diagnosed THEN it runs there, and answers afterwards, too
    assert "raises" not in pgk.diagnose(step, torch.ones(2, device=pgk.device())).codes
    next(told)
    assert told.send(5.0) == 5.0


def test_a_generator_of_the_system_has_no_state_to_put_back() -> None:
    # GIVEN a step that may ask the system for a number WHEN it is diagnosed THEN its other problems are told
    system, best = random.SystemRandom(), [0.0]

    def step(x: torch.Tensor) -> torch.Tensor:
        best[0] = x.mean().item()
        return x * 2 if best[0] < 9 else x * system.random()

    assert "sync-item" in pgk.diagnose(step, torch.ones(2, device=pgk.device())).codes
