"""A number of the device's that a step keeps belongs before no launch: no host knows it there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device")

KEPT = """
class Kept:
    peak, n = 1.0, 0
    def step(self, x):
        y = x.tanh()
        {keeps}
        self.n += 1
        {returns}
f = Kept().step
args = (torch.randn(6, 6, device=device),)
"""
READ = "self.peak = 0.9 * self.peak + 0.1 * {}"


@pytest.mark.parametrize(
    "keeps",
    [
        READ.format("y.abs().max().item()"),
        READ.format("float(y.abs().max())"),
        "self.peak += sum(y.abs().amax(0).tolist())",
    ],
)
@pytest.mark.parametrize("returns", ["return y / self.peak, self.n", "return y, self.peak"])
def test_what_is_read_of_the_device_is_not_told_to_belong_before_each_launch(
    keeps: str, returns: str, tmp_path: Path
) -> None:
    # GIVEN a number that is read of the device and kept, and by which the step divides, or which it returns
    names = run(KEPT.format(keeps=keeps, returns=returns), tmp_path)
    # WHEN it is diagnosed
    found = pgk.diagnose(names["f"], *names["args"])
    # THEN nothing says that it belongs ahead of the launch that computes it
    at = [each for each in found if "self.peak " in str(each.frame) and each.code == "host-counter"]
    assert at, found
    assert not any("before each launch" in str(each.fix) for each in at), found


def test_what_the_host_counts_belongs_before_each_launch(tmp_path: Path) -> None:
    # GIVEN a number that the host alone computes, and the step divides by WHEN it is diagnosed
    names = run(KEPT.format(keeps="self.peak = max(0.1, self.peak * 0.9)", returns="return y / self.peak"), tmp_path)
    found = pgk.diagnose(names["f"], *names["args"])
    # THEN that is what is said
    at = next(each for each in found if "self.peak =" in str(each.frame) and each.code == "host-counter")
    assert "before each launch" in str(at.fix)
