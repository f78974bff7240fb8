"""What decides is told at its line, and what only follows from it, or takes nothing, is not told as another problem."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

import paramgraph_kit as pgk
from tests.integration.apart import APART

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
DEVICE = pgk.device()


def told(found: pgk.Diagnosis) -> set[tuple[str, str]]:
    return {(f.code, f.frame.text) for f in found if f.frame}


class Accumulating:
    """Steps once in four calls, which a property and a method tell."""

    def __init__(self) -> None:
        self.weight, self.total = torch.ones(3, device=DEVICE), torch.zeros(3, device=DEVICE)
        self.micro = 0

    @property
    def should_step(self) -> bool:
        """Whether it is time."""
        return self.micro % 40 == 0

    def due(self, every: int) -> bool:
        return self.micro % every == 0

    def asks_property(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        self.micro += 1
        if self.should_step:
            self.weight.sub_(self.total)
        return self.weight * x

    def asks_method(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        self.micro += 1
        if self.due(40):
            self.weight.sub_(self.total)
        return self.weight * x


def test_a_branch_that_asks_a_count_through_a_property_or_a_method_is_told() -> None:
    # GIVEN a count that a property, or a method, makes a truth of
    for name, test in (("asks_property", "if self.should_step:"), ("asks_method", "if self.due(40):")):
        # WHEN diagnosed THEN the branch is told beside the count
        found = pgk.diagnose(getattr(Accumulating(), name), torch.ones(3, device=DEVICE))
        assert told(found) == {("host-counter", "self.micro += 1"), ("branch-frozen", test)}, str(found)


def test_the_number_of_a_round_is_no_draw_where_a_draw_leaves_rounds_out() -> None:
    # GIVEN layers that are left out by chance, and lines that compute with the number of the round
    random.seed(3)
    layers = [nn.Linear(4, 4).to(DEVICE) for _ in range(4)]

    def deep(x: torch.Tensor) -> torch.Tensor:
        total = x.sum()
        for i, layer in enumerate(layers):
            if random.random() < 0.3:
                continue
            x = x + torch.tanh(layer(x))
            total = total + x[:, : i + 1].mean() * (i + 2)
        return total

    def noisy(x: torch.Tensor) -> torch.Tensor:
        for i in range(4):
            k = random.random()
            if k < 0.3:
                continue
            x = torch.tanh(x) + (i + k)
        return x

    # WHEN diagnosed THEN the branch alone is told, but where a line computes with what is drawn
    x = torch.ones(2, 4, device=DEVICE)
    assert told(pgk.diagnose(deep, x)) == {("branch-frozen", "if random.random() < 0.3:")}
    assert ("host-random", "x = torch.tanh(x) + (i + k)") in told(pgk.diagnose(noisy, x))


def test_what_takes_out_of_a_list_keeps_no_result() -> None:
    # GIVEN a memory whose oldest entry goes, before or behind the newest
    memory = [torch.zeros(2, device=DEVICE) for _ in range(3)]

    def behind(x: torch.Tensor) -> torch.Tensor:
        memory.append(x * 2)
        if len(memory) > 30:
            memory.pop(0)
        return torch.stack(memory).sum(0)

    def before(x: torch.Tensor) -> torch.Tensor:
        if len(memory) >= 2:
            memory.pop(0)
        memory.append(x * 2)
        memory.append(x * 3)
        return torch.stack(memory).sum(0)

    # WHEN diagnosed THEN a line that only takes is not told as one that keeps
    for each in (behind, before):
        found = told(pgk.diagnose(each, torch.ones(2, device=DEVICE)))
        assert ("output-alias", "memory.append(x * 2)") in found, found
        assert ("output-alias", "memory.pop(0)") not in found, found
    assert ("host-counter", "memory.pop(0)") in told(pgk.diagnose(behind, torch.ones(2, device=DEVICE)))


class Scaler:
    """Doubles its scale after some good steps; a bad one halves it."""

    def __init__(self) -> None:
        self.scale, self.good = 8.0, 0

    @property
    def ready(self) -> bool:
        return self.good >= 3

    def update(self, *, bad: bool) -> None:
        if bad:
            self.scale = max(1.0, self.scale / 2)
        else:
            self.good += 1
            if self.ready:
                self.scale *= 2
                self.good = 0


def test_a_number_that_several_lines_write_is_told_at_those_that_have_written_it() -> None:
    # GIVEN a scale that the third call doubles, while a line before halves it, and a count that begins again there
    scaler = Scaler()

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * scaler.scale
        scaler.update(bad=False)
        return y

    # WHEN diagnosed THEN what doubles is told, and the count where it counts and where it begins again
    found = told(pgk.diagnose(f, torch.ones(2, device=DEVICE)))
    assert found == {
        ("scalar-frozen", "y = x * scaler.scale"),
        ("host-counter", "self.scale *= 2"),
        ("host-counter", "self.good += 1"),
        ("host-counter", "self.good = 0"),
    }, found


class Schedule:
    """Times that a count picks, the last of which adds no noise."""

    def __init__(self) -> None:
        self.times: list[int] = [*range(99, -1, -1)]
        self.index = 0

    @property
    def t(self) -> int:
        return self.times[self.index % len(self.times)]

    def step(self, x: torch.Tensor) -> torch.Tensor:
        t = self.t
        x = x * 0.5
        if t > 0:
            x = x + torch.ones_like(x)
        self.index += 1
        return x


def test_a_branch_on_a_name_that_a_property_gives_of_a_count_is_told() -> None:
    # GIVEN a time that a property picks by a count, and a branch on it that none of these calls takes otherwise
    # WHEN diagnosed THEN the branch is told beside the count
    found = pgk.diagnose(Schedule().step, torch.ones(3, device=DEVICE))
    assert told(found) == {("host-counter", "self.index += 1"), ("branch-frozen", "if t > 0:")}, str(found)
