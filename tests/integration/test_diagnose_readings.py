"""What is read from the device decides more than the line that reads it: each such line is told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import paramgraph_kit as pgk
from paramgraph_kit.rewrite import rewriting
from paramgraph_kit.trace.model import Failure
from tests.integration.apart import APART
from tests.integration.test_diagnose_other_ways import told

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
DEVICE = pgk.device()


def test_a_size_a_branch_and_a_count_that_a_read_number_decides_are_told_at_their_lines() -> None:
    # GIVEN a count of accepted tokens, which is the same in each of these calls
    stats, kept = {"accepted": 0}, torch.tensor([1, 2, 0, 0]).to(DEVICE)

    def verify(drafted: torch.Tensor) -> torch.Tensor:
        n = int((drafted == kept).long().cumprod(0).sum())
        accepted = drafted[:n]
        if n < 4:
            accepted = torch.cat([accepted, kept[n : n + 1]])
        stats["accepted"] += n
        return accepted

    # WHEN diagnosed THEN all that follows is told, and nothing of it stays
    found = pgk.diagnose(verify, torch.arange(1, 5).to(DEVICE))
    assert told(found) >= {
        ("sync-item", "n = int((drafted == kept).long().cumprod(0).sum())"),
        ("size-frozen", "accepted = drafted[:n]"),
        ("branch-frozen", "if n < 4:"),
        ("host-counter", 'stats["accepted"] += n'),
    }, found
    assert "where what is read from the device is another value, line " in str(found).replace("\n         ", " ")
    assert stats == {"accepted": 0}
    # AND what to write of a branch on it is not what stands for a number of the host's
    test = next(each for each in found if each.frame and each.frame.text == "if n < 4:")
    assert "follows what is read" in test.fix, test.fix
    assert "before each launch" not in test.fix, test.fix


def test_what_is_read_and_only_logged_decides_nothing() -> None:
    # GIVEN a loss that is read for a log, a warning and a check
    log, x = list[float](), torch.ones(3, device=DEVICE)

    def f(y: torch.Tensor) -> torch.Tensor:
        out = x * y
        value = out.mean().item()
        if value > 100.0:
            log.append(value)
        if value != value:
            raise ValueError(f"no number: {value}")
        return out

    # WHEN diagnosed THEN the reading is told, and the log that a larger value would grow; no branch is
    found = told(pgk.diagnose(f, torch.ones(3, device=DEVICE)))
    assert found == {("sync-item", "value = out.mean().item()"), ("host-counter", "log.append(value)")}, found
    assert not log


def test_ends_of_loops_and_states_that_follow_a_read_number_are_told() -> None:
    # GIVEN a solver that ends by what it reads, a state that is taken over by it, and a silence that counts up
    a, state = torch.eye(3).to(DEVICE) * 0.5, {"silence": 0}

    def solve(b: torch.Tensor) -> torch.Tensor:
        x = b
        for _ in range(4):
            y = a @ x + b
            err = (y - x).norm().item()
            x = y
            if err < 1e-9:
                break
        step = x - b
        size = step.norm().item()
        if size < 1e3:
            x = step
        for token in (x > 5.0).long().tolist():
            if token:
                state["silence"] = 0
            else:
                state["silence"] += 1
        if state["silence"] > 40:
            x = x * 2.0
        return x

    # WHEN diagnosed THEN each of these branches is told
    lines = told(found := pgk.diagnose(solve, torch.ones(3, device=DEVICE)))
    for text in ("if err < 1e-9:", "if size < 1e3:", 'if state["silence"] > 40:'):
        assert ("branch-frozen", text) in lines, (text, found)
    assert state["silence"] == 0


def test_what_follows_is_not_rewritten_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a number that is read, which scales and cuts
    x, given = torch.ones(8, device=DEVICE), list[Failure]()

    def f(y: torch.Tensor) -> torch.Tensor:
        n = int(y.norm().item() * 3)
        scaled = x * n
        return scaled[:n]

    def rewrite(function: Any, args: Any, kwargs: Any, failures: Any, **options: Any) -> None:
        given.extend(failures)
        raise RuntimeError("no more is asked")

    # WHEN it is to be fixed THEN the size is told, as the scale takes a tensor as well; the reading alone is rewritten
    monkeypatch.setattr(rewriting, "rewrite", rewrite)
    found = pgk.diagnose(f, torch.ones(3, device=DEVICE), fix=True)
    assert told(found) == {("sync-item", "n = int(y.norm().item() * 3)"), ("size-frozen", "return scaled[:n]")}, found
    assert [each.code for each in given] == ["sync-item"]


def test_what_a_read_number_picks_is_told_where_it_is_read() -> None:
    # GIVEN experts of which a number that is read picks one, in a function that has no branch
    experts = [torch.nn.Linear(3, 3).to(DEVICE) for _ in range(3)]

    def route(x: torch.Tensor) -> torch.Tensor:
        k = int(x.argmax())
        chosen = experts[k]
        return F.relu(chosen(x))

    # WHEN diagnosed THEN the line that reads its weights is told, with what to write of what follows a reading
    found = pgk.diagnose(route, torch.tensor([0.0, 0.0, 1.0]).to(DEVICE))
    assert told(found) == {("sync-item", "k = int(x.argmax())"), ("stale-input", "return F.relu(chosen(x))")}, found
    picked = next(each for each in found if each.code == "stale-input")
    assert "take one by a tensor" in picked.fix, picked.fix


def test_a_list_that_grows_by_what_was_read_and_is_then_cut_is_told_with_the_size_that_it_gives() -> None:
    # GIVEN tracks that boxes are matched to, as they are in all of these calls, and a list that is another in each
    class Tracker:
        tracks: list[torch.Tensor]

    tracker = Tracker()
    tracker.tracks = [torch.zeros(2, device=DEVICE)]

    def update(box: torch.Tensor) -> torch.Tensor:
        known = torch.stack(tracker.tracks)
        cost = (known - box).norm(dim=-1).cpu().numpy()
        if not (cost < 1.0).any():
            tracker.tracks.append(box)
        tracker.tracks = tracker.tracks[-20:]
        return known

    # WHEN diagnosed THEN the list is told where it grows, and what has as many rows one call later; it stays as it was
    found = pgk.diagnose(update, torch.full((2,), 0.5, device=DEVICE))
    lines = {line for _, line in told(found)}
    assert {"tracker.tracks.append(box)", "known = torch.stack(tracker.tracks)"} <= lines, found
    assert len(tracker.tracks) == 1


def test_a_way_out_ahead_of_gradients_that_follows_what_is_read_does_not_go_behind_them() -> None:
    # GIVEN a loss that the host reads, and leaves ahead of the backward pass where it is no number
    weight = torch.ones(3, device=DEVICE, requires_grad=True)

    def f(x: torch.Tensor) -> float:
        loss = (x * weight).sum()
        value = loss.item()
        if value != value:
            return value
        loss.backward()  # type: ignore[no-untyped-call]
        return value

    # WHEN diagnosed
    found = pgk.diagnose(f, torch.ones(3, device=DEVICE))
    # THEN the branch stays ahead of them
    test = next(each for each in found if each.frame and each.frame.text == "if value != value:")
    assert "it goes with the line that reads, and not behind a launch" in test.fix, test.fix
