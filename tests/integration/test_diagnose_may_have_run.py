"""What is told of a line is its own: of the helper that ran, of its own list, and one way of mending what it keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import paramgraph_kit as pgk


class Priorities:
    """What a replay buffer keeps on the host."""

    def __init__(self) -> None:
        self.p, self.n, self.seen = np.ones(8, np.float32), 0, [0.0] * 8

    def add(self, value: float) -> None:
        self.p[self.n] = value
        self.seen[self.n] = value
        self.n += 1

    def update(self, value: float) -> None:
        self.p[1] = self.p[1] + value

    def note(self, value: float) -> None:
        self.seen[1] += value

    def count(self, value: float) -> None:
        self.n += int(value)


class Agent:
    """Goes through one of its methods, by itself or in a comprehension."""

    def __init__(self, how: str) -> None:
        self.buffer, self.how = Priorities(), how

    def learn(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if self.how == "update":
            self.buffer.update(1.5)
        elif self.how == "note":
            any(map(self.buffer.note, (1.0, 2.0)))
        else:
            self.buffer.count(1.0)
        return y


LINES = {
    "update": "self.p[1] = self.p[1] + value",
    "note": "self.seen[1] += value",
    "count": "self.n += int(value)",
}


@pytest.mark.parametrize("how", LINES)
def test_what_a_helper_of_the_host_writes_is_told_at_its_line(how: str) -> None:
    # GIVEN a step whose helper changes what another helper, above it and never called, writes too
    agent: Any = Agent(how)
    # WHEN diagnosed THEN the line of the one that it calls is told, once
    found = pgk.diagnose(agent.learn, torch.ones(2, device=pgk.device()))
    assert [each.frame.text for each in found.failures if each.frame] == [LINES[how]], found


def step() -> torch.Tensor:
    ones: list[float] = []
    twos: list[float] = []
    for n in range(3):
        ones.append(RNG.uniform())
        twos.append(n + RNG.uniform())
    return torch.stack(
        [
            torch.tensor(ones, device=pgk.device()),
            torch.tensor(twos, device=pgk.device()),
        ]
    ).sum()


RNG = np.random.default_rng(0)


def test_each_line_of_a_statement_has_words_of_its_own() -> None:
    # GIVEN two lists of the host's that one statement takes to the device in lines of their own WHEN diagnosed
    said = {each.frame.text: str(each.fix) for each in pgk.diagnose(step).failures if each.frame}
    # THEN each line is told about its own list
    assert "`ones` is filled on the host" in said["torch.tensor(ones, device=pgk.device()),"], said
    assert "`twos` is filled on the host" in said["torch.tensor(twos, device=pgk.device()),"], said


class Baseline:
    """A mean that runs along, and one that only a log reads."""

    def __init__(self) -> None:
        self.mean, self.logged = 0.0, 0.0

    def __call__(self, r: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * r.mean().item()
        self.logged = 0.9 * self.logged + 0.1 * r.mean().item()
        return ((r - self.mean) / (r.std() + 1e-7)).sum()


def test_what_is_told_of_a_running_mean_is_one_way_of_mending_it() -> None:
    # GIVEN a baseline that the device goes on with WHEN diagnosed
    found = pgk.diagnose(Baseline(), torch.randn(5, device=pgk.device())).failures
    said = {(each.code, each.frame.text): str(each.fix) for each in found if each.frame}
    mean = [text for (_, line), text in said.items() if line.startswith(("self.mean", "return"))]
    # THEN all that is said of it keeps it on the device, and the other one goes behind the launch
    assert len(mean) == 3, said
    assert all("`self.mean.copy_(0.9 * self.mean + 0.1 * r.mean()" in each for each in mean), said
    assert all("launch" in text for (_, line), text in said.items() if line.startswith("self.logged")), said
