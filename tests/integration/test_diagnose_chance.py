"""What is drawn, branched on by chance and picked by lists and masks is told at its lines."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import paramgraph_kit as pgk
from tests.integration.apart import APART

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
DEVICE = pgk.device()


def drawn_rows(n: int) -> Any:
    return np.random.choice(n, 2, replace=False)


def test_the_note_of_what_is_drawn_names_the_line_that_draws() -> None:
    # GIVEN a helper that draws on the host, called by a function that normalizes and samples a grid
    def cut(x: torch.Tensor) -> torch.Tensor:
        rows = torch.from_numpy(drawn_rows(4)).to(x.device)
        return nn.functional.normalize(x, dim=-1)[rows]

    # WHEN diagnosed THEN the note names the helper's line, and none that has a draw's word within another
    found = pgk.diagnose(cut, torch.randn(4, 3, device=DEVICE))
    note = next(each for each in found.notes if "it draws random numbers on the CPU at " in each)
    assert "return np.random.choice(n, 2, replace=False)" in note, found


def test_the_note_names_a_draw_that_decides_a_branch_beside_the_others() -> None:
    # GIVEN a number that is drawn ahead of a branch on another one
    def mix(x: torch.Tensor) -> torch.Tensor:
        lam = float(np.random.beta(0.4, 0.4))
        if np.random.rand() < 0.5:
            return x * lam
        return x + x.flip(0) * lam

    # WHEN diagnosed THEN the note names both draws, as the branch's problem does not say that it is drawn
    found = pgk.diagnose(mix, torch.arange(4.0, device=DEVICE))
    note = next(each for each in found.notes if "the host draws at " in each)
    assert all(line in note for line in ("np.random.beta(0.4, 0.4)", "if np.random.rand() < 0.5:")), found


def test_what_is_drawn_inside_a_random_branch_is_told_too() -> None:
    # GIVEN a branch that is taken by chance, and a size that is drawn in it
    def mix(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if random.random() < 0.7:
            at = random.randint(1, 5)
            a = torch.cat([a[:at], b[at:]])
        return a * 0.5

    # WHEN diagnosed THEN both are found
    found = pgk.diagnose(mix, torch.ones(6, device=DEVICE), torch.zeros(6, device=DEVICE))
    assert {f.frame.text for f in found if f.frame} == {
        "if random.random() < 0.7:",
        "a = torch.cat([a[:at], b[at:]])",
    }, str(found)


def test_tensors_that_are_only_told_of_by_chance_are_no_problem() -> None:
    # GIVEN numbers that are drawn for a log alone, and an order in which a list of made tensors is gone through
    def told(x: torch.Tensor) -> torch.Tensor:
        a, b = x * 2, x + 1
        held = [a, b] if random.random() < 0.5 else [a, b, b]
        return a + held[1]

    def shuffled(x: torch.Tensor) -> torch.Tensor:
        parts = [x * 2, x + 1, x - 1]
        random.shuffle(parts)
        return parts[0] / parts[1]

    # WHEN diagnosed THEN only what is read is told, where nothing else tells what decided at the operation itself
    assert not pgk.diagnose(told, torch.ones(2, device=DEVICE))
    found = pgk.diagnose(shuffled, torch.ones(2, device=DEVICE))
    assert [(f.code, f.frame.text) for f in found if f.frame] == [("host-random", "return parts[0] / parts[1]")], found


class Kept:
    """Indices as attributes."""

    rows = np.array([0, 2])

    def __init__(self) -> None:
        self.columns = [1, 2]


def test_lists_as_indices_are_told_however_they_are_written() -> None:
    # GIVEN lists, ranges, arrays and what functions return, where a tensor is read and where it is assigned
    kept, x = Kept(), torch.ones(3, 5, device=DEVICE)

    def columns() -> list[int]:
        return [1, 2]

    def read(x: torch.Tensor) -> torch.Tensor:
        return x[kept.rows] + x[range(2)] + x[[i % 2 for i in range(2)]] + x[columns()]

    def assign(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[0, columns()] = -1.0
        x[:, kept.columns] = 0.0
        x[kept.rows] = x[:2] * 2
        return x

    # WHEN diagnosed THEN each line is told as that, and never as a copy of the value
    for function, lines in ((read, 1), (assign, 3)):
        found = pgk.diagnose(function, x)
        assert found.codes == ("cpu-index",) * lines, str(found)


def test_one_value_of_the_device_through_a_mask_is_told_however_it_is_made() -> None:
    # GIVEN a value of the device put through a mask: one that is filled there; and a number
    def filled(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[x > 0] = torch.zeros((), device=DEVICE)
        y[x > 1] = torch.full((), 3.5, device=DEVICE)
        y[x > 2] = 0.0
        return y

    # WHEN diagnosed THEN each value of the device is told: only a number is filled in without counting
    first = filled.__code__.co_firstlineno
    found = pgk.diagnose(filled, torch.randn(6, device=DEVICE))
    assert {(f.code, f.frame.line if f.frame else 0) for f in found} == {
        ("mask-assignment", first + 2),
        ("mask-assignment", first + 3),
    }


class _Annealed:
    def __init__(self) -> None:
        self.spins = torch.ones(4, 8, 8, device=DEVICE)
        self.beta, self.swaps = 0.4, 0

    def half(self, beta: float, field: torch.Tensor) -> None:
        cost = 2 * self.spins * (self.spins.roll(1, -1) + field)
        flip = torch.rand_like(self.spins) < torch.exp(-beta * cost)
        self.spins = torch.where(flip, -self.spins, self.spins)

    def sweep(self, field: torch.Tensor) -> torch.Tensor:
        self.beta = self.beta * 1.05
        for _ in range(2):
            self.half(self.beta, field)
        if random.random() < 0.3:
            self.swaps += 1
        return self.spins.sum()


def test_a_number_that_moves_beside_draws_of_the_device_is_none_that_the_host_draws() -> None:
    # GIVEN a rate that moves in each call, read where the device draws, and a draw of the host's elsewhere
    # WHEN
    found = pgk.diagnose(_Annealed().sweep, torch.full((), 0.1, device=DEVICE))
    # THEN neither the rate nor the tensor that is exchanged in each round is told as drawn on the host
    codes = {f.frame.text.split(" = ")[0]: f.code for f in found.failures if f.frame is not None}
    assert codes["flip"] == "scalar-frozen"
    assert codes["self.spins"] == "stale-input"
    assert "host-random" not in found.codes
