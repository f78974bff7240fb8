"""What steps move is looked for once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paramgraph_kit.rewrite.counting.counted import counters
from paramgraph_kit.rewrite.proving.proof import Prover


def test_what_steps_move_is_looked_for_once_of_the_same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a step that counts
    count = {"n": 0}

    def step(x: torch.Tensor) -> torch.Tensor:
        count["n"] += 1
        return x * 2

    def slower(x: torch.Tensor) -> torch.Tensor:
        count["m"] = count.get("m", 0) + 2
        return x * 2

    prover, runs = Prover(step, (torch.ones(2),), {}), list[bool]()
    plain = Prover._noted

    def noted(self: Prover) -> Any:
        runs.append(True)
        return plain(self)

    monkeypatch.setattr(Prover, "_noted", noted)
    # WHEN it is asked what its steps move, again THEN that is the same, and they run for the first answer alone
    assert [each.name for each in counters(prover)] == ["n"]
    first = len(runs)
    assert [each.name for each in counters(prover)] == ["n"]
    assert len(runs) == first == 1
    # WHEN it has other code THEN they run anew
    step.__code__ = slower.__code__
    assert [each.name for each in counters(prover)] != ["n"]
    assert len(runs) > first
