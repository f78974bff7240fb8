"""Lines that only the first of a few calls runs, as later ones read other values back, are told all the same."""

from __future__ import annotations

import torch

import paramgraph_kit as pgk
from paramgraph_kit.doctor.diagnosis import Diagnosis

DEVICE = pgk.device()


class Slots:
    """Tracks: what is near one of them is that one, what is not gets a free one."""

    def __init__(self) -> None:
        self.at = torch.full((4,), -1.0, device=DEVICE)
        self.used = torch.zeros(4, device=DEVICE)

    def update(self, x: torch.Tensor) -> torch.Tensor:
        self.at = self.at * 1.0
        near = (self.at[:, None] - x[None]).abs()
        known = set()
        for d in range(len(x)):
            if near[:, d].min().item() < 0.5:
                known.add(d)
        for d in range(len(x)):
            if d in known or x[d] < 0:
                continue
            slot = int(self.used.argmin())
            self.at[slot] = x[d]
            self.used[slot] += 1
        return self.at.clone()


class Scaled:
    """What is made once, and read once."""

    def __init__(self) -> None:
        self.at = torch.ones(4, device=DEVICE)
        self.scale: float | None = None

    def update(self, x: torch.Tensor) -> torch.Tensor:
        self.at = self.at * 1.0
        if self.scale is None:
            self.scale = self.at.sum().item()
        return x * self.scale


def lines(problems: Diagnosis) -> list[str]:
    return [f.frame.text for f in problems.failures if f.frame]


def test_what_readings_of_a_call_have_decided_is_told_where_later_calls_do_not_come() -> None:
    # GIVEN a tracker whose first call finds all objects new, and whose later ones know them, and one that reads once
    x = torch.tensor([3.0, 5.0], device=DEVICE)

    # WHEN they are diagnosed
    told, once = lines(pgk.diagnose(Slots().update, x)), lines(pgk.diagnose(Scaled().update, x))

    # THEN lines that only the first call has run are told, and what is made once is not
    assert {"if d in known or x[d] < 0:", "slot = int(self.used.argmin())"} <= {*told}
    assert not any("sum().item()" in line for line in once)
