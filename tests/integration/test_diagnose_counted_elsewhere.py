"""Numbers that a step counts on an optimizer, in the groups of one, or in an array: what they decide is told."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.rewritten import run

STEP = """
import array
class Step:
    def __init__(self):
        self.net = nn.Linear(4, 4).to(device)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.rates = torch.optim.lr_scheduler.StepLR(self.opt, 100)
        self.n = {kept}
    @torch.no_grad()
    def f(self, x):
        {count}
        return self.net(x) * ({scale})
f = Step().f
args = (torch.ones(2, 4, device=device),)
"""
ON_TORCHS = [
    ("self.opt.steps = getattr(self.opt, 'steps', 0) + 1", "1 + self.opt.steps % 4"),
    ("self.rates.seen = getattr(self.rates, 'seen', 0) + 1", "1 + self.rates.seen % 4"),
    ("g = self.opt.param_groups[0]; g['k'] = g.get('k', 0) + 1", "1 + g['k'] % 4"),
    ("self.opt.param_groups[0]['k'] = self.opt.param_groups[0].get('k', 0) + 1", "2"),
]


@pytest.mark.parametrize(("count", "scale"), ON_TORCHS)
def test_a_count_on_what_is_an_optimizers_goes_on(count: str, scale: str, tmp_path: Path) -> None:
    # GIVEN a step that counts where torch has its own numbers WHEN it is diagnosed
    names = run(STEP.format(kept="0", count=count, scale=scale), tmp_path)
    found = pgk.diagnose(names["f"], *names["args"])
    # THEN the count is told, and what it decides
    told = {each.code for each in found.failures}
    assert told == {"host-counter"} | ({"scalar-frozen"} if scale != "2" else set()), found


@pytest.mark.parametrize(
    "kept", ["np.zeros(1)", "np.zeros(1, dtype=np.int32)", "array.array('i', [0])", "bytearray(1)"]
)
def test_what_a_count_in_an_array_decides_later_is_told(kept: str, tmp_path: Path) -> None:
    # GIVEN a count in an array, and a number that it decides some calls later
    text = STEP.format(kept=kept, count="self.n[0] += 1", scale="1 + int(self.n[0]) // 9")
    names = run(text, tmp_path)
    # WHEN it is diagnosed THEN both are told
    found = pgk.diagnose(names["f"], *names["args"])
    assert {each.code for each in found.failures} == {"host-counter", "scalar-frozen"}, found
    assert "entries" not in str(found), found


@pytest.mark.parametrize(
    ("kept", "count", "scale"),
    [
        ("0", "self.opt.steps = 3", "1 + self.opt.steps % 4"),
        ("0", "g = self.opt.param_groups[0]; g['k'] = 2", "1 + g['k'] % 4"),
        ("np.zeros(1)", "self.n[0] = 4", "1 + int(self.n[0]) // 9"),
    ],
)
def test_what_each_call_sets_to_the_same_is_none(kept: str, count: str, scale: str, tmp_path: Path) -> None:
    # GIVEN the same with a number that never moves WHEN it is diagnosed THEN nothing is told
    names = run(STEP.format(kept=kept, count=count, scale=scale), tmp_path)
    found = pgk.diagnose(names["f"], *names["args"])
    assert not found.failures, found


def test_training_with_a_schedule_outside_stays_silent(tmp_path: Path) -> None:
    # GIVEN a step of an optimizer whose class has numbers of its own WHEN it is diagnosed THEN nothing is told
    count = "with torch.enable_grad():\n            self.opt.zero_grad(); self.net(x).sum().backward(); self.opt.step()"
    names = run(STEP.format(kept="0", count=count, scale="2"), tmp_path)
    found = pgk.diagnose(names["f"], *names["args"])
    assert not found.failures, found
