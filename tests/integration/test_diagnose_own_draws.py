"""What a program's own generators draw is told where it decides, whatever their seeds are, and nowhere else."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.apart import APART

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
DEVICE = pgk.device()
SEEDS = range(4)


class Owner:
    """Draws from generators of its own."""

    def __init__(self, seed: int) -> None:
        self.of_numpy = np.random.default_rng(seed)
        self.of_python = random.Random(seed)
        self.of_torch = torch.Generator().manual_seed(seed)
        self.tables = [torch.full((4,), float(i), device=DEVICE) for i in range(2)]
        self.kept = 2.0
        self.seen: list[float] = []
        self.count = 0
        self.left_out = 0.0

    def number(self, x: torch.Tensor) -> torch.Tensor:
        scale = 0.0 if self.of_numpy.random() < 0.5 else self.kept
        return x.sin() + scale * x

    def of_pythons(self, x: torch.Tensor) -> torch.Tensor:
        scale = 0.0 if self.of_python.random() < 0.3 else self.kept
        return x.sin() + scale * x

    def of_torchs(self, x: torch.Tensor) -> torch.Tensor:
        scale = 0.0 if torch.rand((), generator=self.of_torch).item() < 0.5 else 2.0
        return x.sin() + scale * x

    def whole(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() + int(self.of_numpy.integers(0, 4)) * x

    def picked(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() + self.of_python.choice(self.tables)

    def rolled(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin().roll(int(self.of_numpy.integers(0, 2)), -1)

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        if self.of_numpy.random() < 0.5:
            x = x.flip(-1)
        return x.sin()

    def beside_a_count(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        scale = 0.0 if self.of_numpy.random() < 0.5 else 2.0
        return x.sin() + scale * x

    def rarely(self, x: torch.Tensor) -> torch.Tensor:
        scale = 2.0
        if self.of_python.random() < 1e-6:
            scale = 0.0
        return x.sin() + scale * x

    def rarely_by_name(self, x: torch.Tensor) -> torch.Tensor:
        at = self.of_numpy.integers(0, 1_000_000)
        if at == 7:
            x = x.flip(-1)
        return x.sin()

    def never(self, x: torch.Tensor) -> torch.Tensor:
        drawn = self.of_numpy.random()
        if drawn < self.left_out or self.of_python.random() < self.left_out:
            x = x.flip(-1)
        return x.sin() * (1.0 if self.of_python.random() >= self.left_out else 0.0)

    def only_kept(self, x: torch.Tensor) -> torch.Tensor:
        drawn = self.of_numpy.random()
        if drawn < 0.5:
            print("drawn", drawn)
        return x.sin() + self.kept * x


FORMS: list[Callable[[Owner, Any], Any]] = [
    Owner.number,
    Owner.of_pythons,
    Owner.of_torchs,
    Owner.whole,
    Owner.picked,
    Owner.rolled,
    Owner.turned,
    Owner.beside_a_count,
    Owner.rarely,
    Owner.rarely_by_name,
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: str(form.__name__))
def test_what_an_own_generator_decides_is_told_at_its_line_for_every_seed(form: Callable[[Owner, Any], Any]) -> None:
    # GIVEN a step that a generator of its own decides, by one of few values
    lines = range(form.__code__.co_firstlineno + 1, form.__code__.co_firstlineno + 5)
    # WHEN diagnosed with generators of several seeds
    found = [pgk.diagnose(getattr(Owner(seed), form.__name__), torch.randn(3, 4, device=DEVICE)) for seed in SEEDS]
    # THEN each time something is told there, and each time the same
    told = [{(f.code, f.frame.line) for f in each if f.frame and f.frame.line in lines} for each in found]
    assert all(told), [each.codes for each in found]
    assert all(each == told[0] for each in told), told
    assert {code for code, _ in told[0]} & {"host-random", "branch-frozen", "size-frozen"}, told


@pytest.mark.parametrize("seed", SEEDS)
def test_a_draw_that_reaches_neither_the_device_nor_a_branch_of_it_is_no_problem(seed: int) -> None:
    # GIVEN a number that a generator draws to be printed, and one that is drawn once, ahead of all steps,
    # and one that is compared with a share of none
    owner = Owner(seed)
    once = float(owner.of_numpy.random())
    # WHEN diagnosed
    kept = pgk.diagnose(owner.only_kept, torch.randn(3, 4, device=DEVICE))
    never = pgk.diagnose(owner.never, torch.randn(3, 4, device=DEVICE))
    ahead = pgk.diagnose(lambda x: x * once, torch.randn(3, 4, device=DEVICE))
    # THEN there is nothing
    assert not [f for f in kept if f.code in ("host-random", "scalar-frozen")], kept
    assert not ahead.failures, ahead
    assert not never.failures, never


def test_the_generators_are_as_before() -> None:
    # GIVEN generators of one's own
    owner = Owner(0)
    first = [owner.of_numpy.bit_generator.state, owner.of_python.getstate(), owner.of_torch.get_state().tolist()]
    # WHEN steps that draw from them are diagnosed
    for form in (owner.number, owner.of_pythons, owner.of_torchs):
        pgk.diagnose(form, torch.randn(3, 4, device=DEVICE))
    # THEN they draw what they would have drawn
    now = [owner.of_numpy.bit_generator.state, owner.of_python.getstate(), owner.of_torch.get_state().tolist()]
    assert now == first
