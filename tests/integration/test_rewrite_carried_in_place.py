"""State that a step exchanges and also changes in place: `self.cur *= damp` is no exchange, and keeps none."""

from __future__ import annotations

import pytest
import torch

import paramgraph_kit as pgk


class _Wave:
    def __init__(self) -> None:
        self.prev = torch.zeros(8).to(pgk.device())
        self.cur = torch.rand(8).to(pgk.device())

    def step(self, x: torch.Tensor) -> torch.Tensor:
        new = 2 * self.cur - self.prev + x
        self.cur *= 0.5
        self.prev, self.cur = self.cur, new
        return self.cur


class _Aliased(_Wave):
    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.cur *= 0.5  # and `prev`, which has been the same tensor since the last step
        new = self.cur + self.prev
        self.cur = new + x
        self.prev = self.cur
        return new


class _InPlace(_Wave):
    def step(self, x: torch.Tensor) -> torch.Tensor:
        new = 2 * self.cur - self.prev + x
        self.cur *= 0.5
        self.prev.copy_(self.cur)
        self.cur.copy_(new)
        return self.cur


def test_what_is_changed_in_place_is_handed_on_as_what_it_is_exchanged_with() -> None:
    # GIVEN a step that damps a tensor in place, and then exchanges it with two others
    # WHEN its lines are rewritten
    found = pgk.diagnose(_Wave().step, torch.rand(8).to(pgk.device()), fix=True).fix

    # THEN both states keep their memory, and one graph gives the original's numbers
    assert found is not None
    assert found.complete
    assert "self.prev.copy_(prev_now" in found.diff
    assert "self.cur.copy_(cur_now" in found.diff


@pytest.mark.sweep
def test_two_names_of_one_tensor_are_not_parted() -> None:
    # GIVEN a step after which two names have one tensor, which the next one changes in place
    # WHEN its lines are rewritten
    found = pgk.diagnose(_Aliased().step, torch.rand(8).to(pgk.device()), fix=True).fix

    # THEN no diff that would part them is shown as one that is right
    assert found is None or not found.complete or "prev_now" not in found.diff


def test_state_that_is_written_in_place_is_sound() -> None:
    # GIVEN the same with copies in place
    # WHEN it is diagnosed
    # THEN nothing is told
    assert "no problems" in str(pgk.diagnose(_InPlace().step, torch.rand(8).to(pgk.device())))
