"""Lines that are written alike are each told for themselves, and a count that the diff keeps in a tensor stays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.own_lines import in_own_lines
from paramgraph_kit.verbs import _pieces
from tests.integration.rewritten import run
from tests.integration.test_own_lines import parts

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

TURNS = """
import random
class Both:
    def __init__(self):
        self.one, self.two = nn.Linear(6, 4).to(device), nn.Linear(4, 1).to(device)
        self.first = torch.optim.Adam(self.one.parameters(), lr=0.01)
        self.second = torch.optim.Adam(self.two.parameters(), lr=0.01)
        self.every, self.mean, self.share = 3, 0.0, 0.5
        self.rounds = 0
    def turned(self, x):
        if random.random() < self.share:
            x = torch.flip(x, [1])
        return x
    def f(self, x):
        b = x.size(0)
        self.rounds += 1
        self.second.zero_grad()
        z = torch.randn(b, 6).to(device)
        made = self.one(z).detach()
        x = self.turned(x)
        real = self.two(x)
        loss = self.two(made).mean() - real.mean()
        loss.backward()
        self.second.step()
        self.mean = 0.8 * self.mean + 0.2 * real.sign().mean().item()
        self.share = min(max(self.share + (0.05 if self.mean > 0.1 else -0.05), 0.0), 0.9)
        if self.rounds % self.every == 0:
            self.first.zero_grad()
            z = torch.randn(b, 6).to(device)
            other = -self.two(self.one(z)).mean()
            other.backward()
            self.first.step()
        return loss.detach()
both = Both()
f = both.f
args = (torch.randn(8, 4).to(device),)
"""


def test_each_of_two_lines_that_are_written_alike_has_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a step that draws on the CPU at two lines, written alike, and counts by what the host asks
    names = run(TURNS, tmp_path)
    # WHEN it is fixed, and no pieces are proved, to which words for several places would give way
    monkeypatch.setattr(_pieces, "in_pieces", lambda *_, **__: _pieces.NOT_PROVED)
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    assert found.fix is not None
    fix: Any = found.fix
    assert not fix.pieces
    # THEN the diff draws the first before each launch, and the second, in a branch, is told to have its own tensor
    drawn = [parts(each.fix)[1] for each in found if each.code == "copy-to-gpu"]
    assert len(drawn) == 2, found
    assert drawn[0] == "z = z_in"
    assert "\n+        z_in.copy_(torch.randn(b, 6).to(device)" in fix.diff
    assert "once `z_in_2 = " in drawn[1], found
    assert "before each launch of this way `z_in_2.copy_(" in drawn[1], found
    assert "here `z = z_in_2.clone()`" in drawn[1], found
    # AND what is counted is told to be the host's, as long as no diff has it in a tensor
    words = {parts(each.fix)[0]: parts(each.fix)[1] for each in found}
    assert "belongs before each launch" in words["self.rounds += 1"], found
    # WHEN one has
    head, *_ = fix.diff.splitlines()
    at = (tmp_path / "program.py").read_text().splitlines().index("        self.rounds = 0") + 1
    made = "\n+        self.rounds = torch.tensor(0, device=device)\n"
    left = [each for each in fix.left if each.code == "copy-to-gpu"]
    fix = replace(fix, diff=f"{head}\n+++ {head[4:]}\n@@ -{at},1 +{at},1 @@\n-        self.rounds = 0{made}")
    told = in_own_lines(names["f"], names["args"], {}, list(found), left, fix)
    # THEN the graph counts it
    words = {parts(each.fix)[0]: parts(each.fix)[1] for each in told}
    assert words["self.rounds += 1"] == "stays as it is, with what the diff writes elsewhere", told
