"""A result that a step keeps where a value of the device lets it is told at its line, beside the branch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.doctor.observe.kept_by_choice import SAYS
from tests.integration.apart import APART

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
DEVICE = pgk.device()


def kept(function: object, x: torch.Tensor) -> list[str]:
    found = pgk.diagnose(function, x)
    return [f.frame.text for f in found if f.frame and f.code == "output-alias" and SAYS in f.message]


def test_the_best_result_that_is_kept_as_it_is_is_told_and_copies_are_not() -> None:
    # GIVEN steps that keep the best of their results: as it is, as a copy, and in the tensor that is there
    own = SimpleNamespace(best=torch.zeros((), device=DEVICE), rest=torch.zeros((), device=DEVICE))

    def as_it_is(x: torch.Tensor) -> torch.Tensor:
        best = x.mean()
        if best > own.best:
            own.best = best.detach()
            own.rest = x.sum() - best
        return best

    def copied(x: torch.Tensor) -> torch.Tensor:
        best = x.mean()
        if best > own.best:
            own.best = best.clone()
        return best

    def in_place(x: torch.Tensor) -> torch.Tensor:
        best = x.mean()
        if best > own.best:
            own.best.copy_(best)
        return best

    # WHEN diagnosed, with a branch that calls take and with one that none takes THEN the line is told, and no copy is
    for x in (torch.ones(3, device=DEVICE), -torch.ones(3, device=DEVICE)):
        assert kept(as_it_is, x) == ["own.best = best.detach()"]
        assert not kept(copied, x)
        assert not kept(in_place, x)


def test_what_is_made_once_in_a_branch_of_the_hosts_is_not_told() -> None:
    # GIVEN a step that keeps its first result, which the host decides
    own = SimpleNamespace(first=None)

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if own.first is None:
            own.first = y
        out: torch.Tensor = y + own.first
        return out

    # WHEN diagnosed THEN it is no result of a branch of the device's
    assert not kept(step, torch.ones(3, device=DEVICE))
