"""Which of a call's own tensors is read: nothing else differs between two calls that pick another one."""

from __future__ import annotations

import random

import pytest
import torch

import paramgraph_kit as pgk

DEVICE = pgk.device()
X = torch.randn(4, 6, device=DEVICE)
HEADS = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(3)).to(DEVICE)


class Level:
    now = 0


def a_result(x: torch.Tensor, layer: int) -> torch.Tensor:
    found = [x.relu(), x.exp(), x.tanh()]
    return found[layer] * 2


def what_is_returned(x: torch.Tensor, at: int) -> torch.Tensor:
    found = [x.relu(), x.exp(), x.tanh()]
    return found[at]


def either(x: torch.Tensor, late: bool) -> torch.Tensor:
    a, b = x * 2, x * 3
    y = b if late else a
    return y + 1


def a_view(x: torch.Tensor, task: int) -> torch.Tensor:
    return (x + 1).chunk(3, 1)[task] * 2


def a_module(x: torch.Tensor, k: int) -> torch.Tensor:
    result: torch.Tensor = HEADS[k](x)
    return result


def an_output(x: torch.Tensor, k: int) -> torch.Tensor:
    return torch.aminmax(x, dim=1)[k] + 1


def shuffled(x: torch.Tensor) -> torch.Tensor:
    parts = list(x.chunk(3, 1))
    random.shuffle(parts)
    return torch.cat(parts)


def shuffled_ahead_of_a_branch(x: torch.Tensor) -> torch.Tensor:
    parts = [x * 2, x * 3, x * 5]
    random.shuffle(parts)
    total = parts[0] - parts[1]
    if random.random() < 0.5:
        total = total + 1
    return total


def one_by_chance(x: torch.Tensor) -> torch.Tensor:
    row = random.choice([x[0], x[1], x[2], x[3]])
    return row.exp()


def of_a_level(x: torch.Tensor) -> torch.Tensor:
    return x.unbind(0)[Level.now] * 2


class Picker:
    def __init__(self) -> None:
        self.row = 0

    def step(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu().unbind(0)[self.row]


PICKER = Picker()


def levels() -> None:
    for level in range(3):
        Level.now = PICKER.row = level
        of_a_level(X)
        PICKER.step(X)


class Turns:
    def __init__(self) -> None:
        self.t = 0

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.t += 1
        rows = x.relu().unbind(0)
        return rows[self.t % 3] * 2


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("function", "text"),
    [
        (a_result, "return found[layer] * 2"),
        (what_is_returned, "return found[at]"),
        (either, "y = b if late else a"),
        (a_view, "return (x + 1).chunk(3, 1)[task] * 2"),
        (a_module, "result: torch.Tensor = HEADS[k](x)"),
        (an_output, "return torch.aminmax(x, dim=1)[k] + 1"),
    ],
)
def test_a_number_that_picks_what_is_read_is_told(function: object, text: str, late: bool) -> None:
    # GIVEN a step whose argument picks one of several tensors of the same size WHEN it is diagnosed with each way
    found = pgk.diagnose(function, X, late if function is either else int(late))

    # THEN the line that picks is told as one that the number decides
    assert [(f.code, f.frame.text) for f in found.failures if f.frame] == [("branch-frozen", text)]


@pytest.mark.parametrize("function", [shuffled, one_by_chance])
def test_a_view_that_chance_picks_is_told(function: object) -> None:
    # GIVEN views of one tensor in an order of the host's, or one that it picks WHEN that is diagnosed
    found = pgk.diagnose(function, X)

    # THEN that it is chance is told
    assert [f.code for f in found.failures] == ["host-random"]


def test_an_order_of_chance_is_told_ahead_of_a_branch_of_chance() -> None:
    # GIVEN an order of the host's, and a branch behind it WHEN that is diagnosed
    found = pgk.diagnose(shuffled_ahead_of_a_branch, X)

    # THEN both are told
    told = [f.frame.text for f in found.failures if f.frame]
    assert told == ["total = parts[0] - parts[1]", "if random.random() < 0.5:"]


def test_a_level_that_a_loop_around_sets_and_a_count_that_moves_are_told() -> None:
    # GIVEN a number that a loop sets, and one that a step counts, each of which picks a view
    # WHEN the steps are diagnosed
    level, turns = pgk.diagnose(of_a_level, X), pgk.diagnose(Turns().step, X)
    plain = pgk.diagnose(PICKER.step, X)

    # THEN each line that picks is told
    assert "return x.unbind(0)[Level.now] * 2" in [f.frame.text for f in level.failures if f.frame]
    assert [f.frame.text for f in plain.failures if f.frame] == ["return x.relu().unbind(0)[self.row]"]
    assert "return rows[self.t % 3] * 2" in [f.frame.text for f in turns.failures if f.frame]


def test_numbers_that_pick_nothing_are_not_told() -> None:
    # GIVEN a step that goes through all of them in order, and one whose number picks among equal views of one memory
    def all_of_them(x: torch.Tensor) -> torch.Tensor:
        total = x * 0
        for part in [x.relu(), x.exp(), *x.chunk(1, 0)]:
            total = total + part
        return total

    def the_same(x: torch.Tensor, late: bool) -> torch.Tensor:
        a = b = x * 2
        return (b if late else a) + 1

    # WHEN they are diagnosed THEN nothing is told
    assert not pgk.diagnose(all_of_them, X).failures
    assert not pgk.diagnose(the_same, X, True).failures
