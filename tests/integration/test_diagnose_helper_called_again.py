"""A branch is told at its own line where the same helper is called ahead of it and behind it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.apart import APART

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
DEVICE = pgk.device()
TABLE = torch.linspace(0.1, 1, 20, device=DEVICE)
ON_HOST = TABLE.cpu()


def look_up(table: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    out = table.gather(0, t)
    return out[:, None]


def on_host(table: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    out = table.gather(0, t.cpu())
    return out[:, None].to(t.device)


def of_a_row(table: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    if table.dim() > 1:
        table = table[0]
    return look_up(table, t)


class Schedule:
    def at(self, t: torch.Tensor) -> torch.Tensor:
        return TABLE.gather(0, t)[:, None]


def branches(function: object, t_index: int = 9) -> list[str]:
    x, t = torch.rand(2, 4, device=DEVICE), torch.full((2,), 9, device=DEVICE)
    failures = pgk.diagnose(function, x, t, t_index)
    return [f.frame.text if f.code == "branch-frozen" and f.frame else f.code for f in failures]


def test_a_branch_between_two_calls_of_one_helper_is_told_at_its_own_line() -> None:
    # GIVEN steps of a sampler that return early between two calls of a method, of a lambda, of a helper that asks
    # for something itself, and of one that is called by another
    schedule = Schedule()

    def of_method(x: torch.Tensor, t: torch.Tensor, t_index: int) -> torch.Tensor:
        mean = x * schedule.at(t)
        if t_index == 0:
            return mean
        return mean + schedule.at(t)

    short: Callable[[torch.Tensor], torch.Tensor] = lambda t: TABLE.gather(0, t)[:, None]  # noqa: E731 - as users write it

    def of_lambda(x: torch.Tensor, t: torch.Tensor, t_index: int) -> torch.Tensor:
        mean = x * short(t)
        if t_index == 0:
            return mean
        return mean + short(t)

    def of_helpers(x: torch.Tensor, t: torch.Tensor, t_index: int) -> torch.Tensor:
        mean = x * of_a_row(TABLE, t)
        if t_index == 0:
            return mean
        return mean + of_a_row(TABLE, t)

    # WHEN they are looked at THEN the branch is told, and not the helper's first line
    for step in (of_method, of_lambda, of_helpers):
        assert branches(step) == ["if t_index == 0:"]


def test_of_two_branches_that_may_have_ended_a_call_the_one_that_does_no_work_has() -> None:
    # GIVEN a step with another way behind the branch, whose own call of the helper the other call has not run
    def step(x: torch.Tensor, t: torch.Tensor, t_index: int, plain: bool = False) -> torch.Tensor:
        mean = x * look_up(TABLE, t)
        if t_index == 0:
            return mean
        if plain:
            return mean * look_up(TABLE, t)
        return mean + look_up(TABLE, t)

    # WHEN it is looked at THEN the branch that returned is told
    assert branches(step) == ["if t_index == 0:"]


def test_a_branch_is_told_too_where_the_helper_has_a_problem_of_its_own() -> None:
    # GIVEN a helper that copies to the CPU, called ahead of a branch and behind it
    def step(x: torch.Tensor, t: torch.Tensor, t_index: int) -> torch.Tensor:
        mean = x * on_host(ON_HOST, t)
        if t_index == 0:
            return mean
        return mean + on_host(ON_HOST, t)

    # WHEN it is looked at THEN the branch is told beside the copies
    assert sorted(branches(step)) == ["copy-to-cpu", "copy-to-gpu", "if t_index == 0:"]


def test_a_branch_within_the_helper_stays_told_there_and_a_number_that_decides_nothing_is_not_told() -> None:
    # GIVEN a helper that decides itself, called twice, and a step whose ways are the same
    def noise(x: torch.Tensor, t: torch.Tensor, at: int) -> torch.Tensor:
        if at == 0:
            return x
        return x + look_up(TABLE, t)

    def decided_within(x: torch.Tensor, t: torch.Tensor, t_index: int) -> torch.Tensor:
        return noise(noise(x, t, 3), t, t_index)

    def undecided(x: torch.Tensor, t: torch.Tensor, t_index: int) -> torch.Tensor:
        mean = x * look_up(TABLE, t)
        if t_index < 0:
            raise ValueError(t_index)
        return mean + look_up(TABLE, t)

    # WHEN they are looked at THEN the first is told within the helper, and nothing of the second
    assert branches(decided_within) == ["if at == 0:"]
    assert branches(undecided) == []


def test_a_branch_behind_a_loop_is_told_and_not_the_loop() -> None:
    # GIVEN a step that calls a helper in rounds that end early, and a decoder whose list makes its rounds more
    seen = [1, 2, 3]

    def in_rounds(x: torch.Tensor, t: torch.Tensor, t_index: int, denoise: bool = True) -> torch.Tensor:
        for _ in range(2):
            x = x * look_up(TABLE, t)
            if t_index >= 15:
                break
            x = x + look_up(TABLE, t)
        if not denoise:
            return x
        return x + look_up(TABLE, t)

    def decoder(x: torch.Tensor, t: torch.Tensor, t_index: int) -> torch.Tensor:
        x = x * 2
        for each in seen:
            x = x - each
        if t_index >= 19:
            return x.relu()
        seen.append(len(seen))
        return x.exp()

    # WHEN they are looked at, one with another flag THEN each branch is told at its line
    x, t = torch.rand(2, 4, device=DEVICE), torch.full((2,), 9, device=DEVICE)
    told = [f.frame.text for f in pgk.diagnose(in_rounds, x, t, 9, True) if f.frame]
    assert sorted(told) == ["if not denoise:", "if t_index >= 15:"]
    assert "if t_index >= 19:" in branches(decoder)
