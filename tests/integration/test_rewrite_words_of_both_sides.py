"""Words for a number that a step reads as it was, sets, and reads again: each of the two has a tensor of its own."""

from __future__ import annotations

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.apart import APART

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
DEVICE = pgk.device()


class _Rate:
    def __init__(self) -> None:
        self.p = 0.0

    def tune(self) -> None:
        self.p = min(1, self.p + 0.01)


class _Augmented:
    def __init__(self) -> None:
        self.rate, self.p = _Rate(), 0.0

    def itself(self, x: torch.Tensor) -> torch.Tensor:
        a = torch.relu(x * self.p)
        self.p = min(1, self.p + 0.01)
        b = torch.tanh(x * self.p)
        return a + b

    def by_a_method(self, x: torch.Tensor) -> torch.Tensor:
        a = torch.relu(x * self.rate.p)
        self.rate.tune()
        b = torch.tanh(x * self.rate.p)
        return a + b

    def behind(self, x: torch.Tensor) -> torch.Tensor:
        a = torch.relu(x)
        self.rate.tune()
        return a + torch.tanh(x * self.rate.p)


def _words(name: str) -> str:
    found = pgk.diagnose(getattr(_Augmented(), name), torch.ones(4, device=DEVICE))
    told = [f.fix for f in found.failures if f.code == "host-counter"]
    assert len(told) == 1, found
    return " ".join(told[0].split())


@pytest.mark.parametrize(
    ("name", "line", "path"),
    [
        ("by_a_method", "self.rate.tune()", "self.rate.p"),
        pytest.param("itself", "self.p = min(1, self.p + 0.01)", "self.p", marks=pytest.mark.sweep),
    ],
)
def test_what_a_step_reads_before_and_behind_its_count_has_two_tensors(name: str, line: str, path: str) -> None:
    # GIVEN a step that computes with a number, counts it, or lets a method do so, and computes with it again
    # WHEN it is diagnosed THEN one tensor is filled before the count, and another one behind it
    told = _words(name)
    filled = f"`p_in.fill_({path})`, then `{line}`, which is taken out of the step, and `p_in_behind.fill_({path})`"
    assert filled in told, told


def test_what_a_step_reads_only_behind_its_count_has_one() -> None:
    # GIVEN the same where nothing reads it before WHEN it is diagnosed THEN there is no second tensor
    assert "_behind" not in _words("behind")
