"""Rates and other numbers that a count decides, told beside what else their line has, in words that can be followed."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk

RATES = [0.5, 0.4, 0.3, 0.2, 0.1, 0.05]
held: dict[str, Any] = {}


class _Floor:
    fast, slow = 0.5, 0.05

    def __init__(self) -> None:
        self.noise = torch.ones(4).to(pgk.device())
        self.frames, self.omega = 0, 2.0

    def rate(self) -> float:
        return self.fast if self.frames < 4 else self.slow

    @property
    def heat(self) -> float:
        return 0.2 + min(1.0, self.frames / 40)

    def chosen(self, x: torch.Tensor) -> torch.Tensor:
        rate = 0.5 if self.frames < 4 else 0.05
        self.noise = torch.lerp(self.noise, x, rate)
        self.frames += 1
        return self.noise * 2

    def branched(self, x: torch.Tensor) -> torch.Tensor:
        if self.frames < 4:  # noqa: SIM108 - as users write it
            rate = 0.5
        else:
            rate = self.slow
        self.noise = torch.lerp(self.noise, x, rate)
        self.frames += 1
        return self.noise * 2

    def listed(self, x: torch.Tensor) -> torch.Tensor:
        rate = RATES[min(self.frames, 5)]
        self.noise = torch.lerp(self.noise, x, rate)
        self.frames += 1
        return self.noise * 2

    def asked(self, x: torch.Tensor) -> torch.Tensor:
        self.noise = self.noise + self.rate() * (x - self.noise)
        self.frames += 1
        return self.noise * 2

    def within(self, x: torch.Tensor) -> torch.Tensor:
        self.noise = torch.lerp(self.noise, x, self.fast if self.frames < 4 else self.slow)
        self.frames += 1
        return self.noise * 2

    def of_a_dictionary(self, x: torch.Tensor) -> torch.Tensor:
        rate = 0.5 if held["n"] < 4 else 0.05
        held["noise"] = torch.lerp(held["noise"], x, rate)
        held["n"] += 1
        return held["noise"] * 2  # type: ignore[no-any-return]

    def formula(self, x: torch.Tensor) -> torch.Tensor:
        c = math.exp(-self.omega)
        self.noise = c * self.noise + math.sqrt((1 - c * c) * self.heat) * x
        self.frames += 1
        return self.noise * 2

    def steady(self, x: torch.Tensor) -> torch.Tensor:
        rate = self.fast if self.omega > 1 else self.slow
        self.noise = torch.lerp(self.noise, x, rate)
        return self.noise * 2


FILLED = {
    "chosen": "`rate_in.fill_(0.5 if self.frames < 4 else 0.05)`, here `rate_in` for `rate`",
    "branched": "that and `rate_in.fill_(rate)`, here `rate_in` for `rate`",
    "listed": "`rate_in.fill_(RATES[min(self.frames, 5)])`, here `rate_in` for `rate`",
    "asked": "`rate_in.fill_(self.rate())`, here `rate_in` for `self.rate()`",
    "within": "`frames_in.fill_(self.fast if self.frames < 4 else self.slow)`, here `frames_in` for `self.fast if",
    "of_a_dictionary": '`rate_in.fill_(0.5 if held["n"] < 4 else 0.05)`, here `rate_in` for `rate`',
    "formula": "`number_in.fill_(math.sqrt((1 - c * c) * self.heat))`, with line",
}


@pytest.mark.parametrize("name", ["chosen", *(pytest.param(n, marks=pytest.mark.sweep) for n in [*FILLED][1:])])
def test_a_rate_that_a_count_decides_is_told_beside_the_tensor_that_its_line_exchanges(name: str) -> None:
    # GIVEN a step whose line exchanges a tensor, and computes with a number that a count decides, some calls later
    x = torch.randn(4).to(pgk.device())
    held.update(noise=torch.ones(4).to(pgk.device()), n=0)

    # WHEN it is diagnosed
    found = pgk.diagnose(getattr(_Floor(), name), x)

    # THEN both are told, with what fills a tensor before each launch, and the count is not said to be of no use
    told = {f.code: f.fix for f in found.failures}
    assert {"stale-input", "scalar-frozen", "host-counter"} <= told.keys(), found
    assert FILLED[name] in told["scalar-frozen"], found
    assert ".copy_(" in told["stale-input"], found
    assert "nothing in the step waits" not in told["host-counter"], found
    assert "reads it there from a tensor" not in told["host-counter"], found


def test_a_rate_that_never_changes_is_none() -> None:
    # GIVEN the same with a number that a setting decides
    x = torch.randn(4).to(pgk.device())

    # WHEN it is diagnosed
    found = pgk.diagnose(_Floor().steady, x)

    # THEN only the tensor is told
    assert [f.code for f in found.failures] == ["stale-input"], found


class _Heated:
    def __init__(self) -> None:
        self.v = torch.ones(8).to(pgk.device())
        self.n = 0

    def step(self, noise: torch.Tensor) -> torch.Tensor:
        target = 0.8 + 0.6 * min(1.0, self.n / 40)
        if random.random() < 0.2:
            self.v.copy_(noise * target**0.5)
        self.n += 1
        return self.v.sum()


def test_a_number_of_a_count_is_no_random_one_behind_a_branch_that_the_host_draws() -> None:
    # GIVEN a step that computes with the number of a counter, where the host has drawn that it does
    noise = torch.randn(8).to(pgk.device())

    # WHEN it is diagnosed
    found = pgk.diagnose(_Heated().step, noise)

    # THEN it is a number of Python's, and none that was drawn
    assert [f.code for f in found.failures if f.frame and "target" in f.frame.text] == ["scalar-frozen"], found
