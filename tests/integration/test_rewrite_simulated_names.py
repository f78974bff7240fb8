"""Lines that a diff puts at the top of a file, and the simulated device that they name: it may be no device yet."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.running import load

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a real device is there from the beginning")

STEP = """
class Step:
    def __init__(self, device):
        self.w, self.n = torch.ones(4, device=device), 0
    def f(self, x):
        self.n += 1
        return (x * self.w).sum() * (1 / self.n)
"""


@pytest.mark.parametrize(
    ("top", "told"), [("import torch\n", 1), ("import torch, paramgraph_kit as pgk\npgk.device()\n", 0)]
)
def test_it_is_told_that_the_simulated_device_is_asked_for_first(top: str, told: int, tmp_path: Path) -> None:
    # GIVEN a module that is given its device, and one that asks for it at its top
    step = load(top + STEP, tmp_path / "given.py")["Step"](pgk.device())
    # WHEN a step is rewritten with a tensor of the file
    fix = pgk.diagnose(step.f, torch.ones(4, device=pgk.device()), fix=True).fix
    # THEN it says what has to be called ahead of that, where nothing does
    assert fix is not None
    assert 'device="sim")' in fix.diff, fix
    assert sum("ahead of `n_in` in the file" in line for line in fix.verified) == told, fix
