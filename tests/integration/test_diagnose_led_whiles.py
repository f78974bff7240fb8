"""What stands in a ``while`` that had no round in any call is led into, for one round."""

from __future__ import annotations

import pytest
import torch

import paramgraph_kit as pgk

device = pgk.device()


class Tracker:
    def __init__(self, least: float = 2.0) -> None:
        self.boxes, self.least, self.pairs = torch.zeros(3, 4, device=device), least, 0

    def matched(self, found: torch.Tensor) -> torch.Tensor:
        scores = self.boxes @ found.T
        while scores.max() > self.least:
            at = int(scores.argmax())
            scores.view(-1)[at] = -1.0
        return self.boxes + scores.sum()

    def smoothed(self, found: torch.Tensor) -> torch.Tensor:
        left = (self.boxes - found).square().mean()
        rounds = 0
        while left.item() > 5.0 and rounds < 20:
            found = found * 0.5
            left = (self.boxes - found).square().mean()
            rounds += 1
            print(left.item())
        return found

    def plain(self, found: torch.Tensor) -> torch.Tensor:
        rounds = 0
        while rounds < 2:
            found = found * 0.5
            rounds += 1
        while rounds > 2:
            print(found.sum().item())
            rounds -= 1
        return found


@pytest.mark.parametrize(("name", "text"), [("matched", "int(scores.argmax())"), ("smoothed", "print(left.item())")])
def test_what_a_loop_asks_that_had_no_round_is_told(name: str, text: str) -> None:
    # GIVEN a loop that goes on while the device says so, and has no round with these inputs
    # WHEN the step is diagnosed
    found = pgk.diagnose(getattr(Tracker(), name), torch.rand(3, 4, device=device)).failures
    # THEN what its rounds read is told as well, as no call came there by itself
    there = [failure for failure in found if failure.frame is not None and text in failure.frame.text]
    assert any(failure.code == "sync-item" and "no call came here" in failure.message for failure in there), found


def test_loops_that_the_step_alone_counts_are_left_alone() -> None:
    # GIVEN loops whose rounds are the same in each call
    # WHEN the step is diagnosed THEN nothing is told of what no call can reach
    assert pgk.diagnose(Tracker().plain, torch.rand(3, 4, device=device)).failures == ()
