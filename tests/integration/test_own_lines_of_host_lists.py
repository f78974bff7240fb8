"""A tensor that is made of a list of the host's within a call: no stack of numbers, and a name for what it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run
from tests.integration.test_own_lines import parts

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

SLOTS = """\
class Pool:
    def __init__(self):
        self.free = list(range(32))
    def take(self, who):
        self.free.append(self.free.pop(0))
        return self.free[who]
class Runner:
    def __init__(self):
        self.net, self.pool = nn.Linear(8, 8).to(device), Pool()
        self.cache = torch.zeros(32, 8, device=device)
    def look(self, y, slots):
        self.cache[slots] = y
        return torch.relu(self.cache).sum(0)
    @torch.no_grad()
    def step(self, x):
        slots = SLOTS
        y = self.look(self.net(x), torch.tensor(slots, device=device))
        return y + 1
runner = Runner()
args = (torch.randn(3, 8, device=device),)
"""
LINE = "y = self.look(self.net(x), torch.tensor(slots, device=device))"
WITHIN = (
    "`torch.tensor(slots, device=device)` belongs before each launch: once `slots_in = torch.tensor(slots, "
    "device=device)`, before each launch, with what line {} does, `slots_in.copy_(torch.tensor(slots, "
    "device=device))`, and here `slots_in` for `torch.tensor(slots, device=device)`"
)


def test_a_tensor_of_a_list_of_the_host_s_within_a_call_is_told_by_its_own_name(tmp_path: Path) -> None:
    # GIVEN places that an object of the host's gives, of which a call's argument is made
    names = run(SLOTS.replace("SLOTS", "[self.pool.take(n) for n in range(3)]"), tmp_path)
    # WHEN it is diagnosed THEN the list is what a tensor of its own has before each launch, and nothing is stacked
    told = {parts(each.fix)[0]: parts(each.fix)[1] for each in pgk.diagnose(names["runner"].step, *names["args"])}
    number = next(
        n for n, line in enumerate((tmp_path / "program.py").read_text().splitlines(), 1) if "slots = [" in line
    )
    assert told[LINE].startswith(WITHIN.format(number)), told


def test_a_list_of_numbers_that_are_read_of_the_device_is_stacked(tmp_path: Path) -> None:
    # GIVEN places that the device finds
    names = run(SLOTS.replace("SLOTS", "[x[n].argmax().item() for n in range(3)]"), tmp_path)
    # WHEN a fix is asked for THEN they stay there
    fix = pgk.diagnose(names["runner"].step, *names["args"], fix=True).fix
    assert fix is not None
    assert fix.complete, fix
    assert "torch.stack(slots)" in fix.diff
