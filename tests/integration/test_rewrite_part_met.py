"""Lines between those of a part: what they change of attributes and entries later lines read, in a later call alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import launched

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.sweep,
]

TEXT = """\
class Runner:
    def __init__(self):
        torch.manual_seed(0)
        self.w = torch.randn(6, 6, device=device)
        self.a, self.b = torch.zeros(4, 6, device=device), torch.ones(4, 6, device=device)
        self.n, self.c, self.state, self.log = 0, (0, 0), {"a": self.a, "b": self.b}, []
    def swap(self):
        self.a, self.b = self.b, self.a
    def step(self, x):
        self.n += 1
        self.c = (self.c[0] + 1, self.c[0])
        y = x @ self.w
        if self.c[0] >= 9:
            CHANGES
        y = y + READS
        return y
f = Runner().step
args = (torch.randn(4, 6, device=device),)
"""
OF_ENTRIES = """self.state["a"], self.state["b"] = self.state["b"], self.state["a"]"""
MET = {
    "attributes": ("self.a, self.b = self.b, self.a", "self.a * 2 - self.b"),
    "a method of one's own": ("self.swap()", "self.a * 2 - self.b"),
    "entries": (OF_ENTRIES, 'self.state["a"] * 2 - self.state["b"]'),
    "in place": ("self.a.add_(1.0)", "self.a * 2 - self.b"),
}


@pytest.mark.parametrize("kind", MET)
def test_a_line_that_changes_what_is_read_behind_it_does_not_wait(kind: str, tmp_path: Path) -> None:
    # GIVEN lines that compute, and between them one that changes what the last reads, from the ninth call on
    changes, reads = MET[kind]
    # WHEN what is offered is launched in ten calls and more THEN each has eager's numbers
    fix = launched(TEXT.replace("CHANGES", changes).replace("READS", reads), tmp_path)
    # AND no part has both the line ahead of it and the one behind
    assert f"- {reads.partition(' - ')[2]}" not in fix.diff or not fix.alone or fix.diff.count("_part(") > 2, fix


def test_a_line_that_changes_what_nobody_reads_may_wait(tmp_path: Path) -> None:
    # GIVEN the same, where the line between them keeps what no other reads
    text = TEXT.replace("CHANGES", "self.log.append(self.n)").replace("READS", "self.a * 2 - self.b")
    # WHEN it is launched THEN one graph has all of what is computed
    fix = launched(text, tmp_path)
    assert fix.complete or "y = y + " in fix.diff.partition("class Runner")[0], fix


COUNTED = """\
import itertools
class Runner:
    def __init__(self):
        torch.manual_seed(0)
        self.w, self.it = torch.randn(6, 6, device=device), itertools.count()
        self.n, self.scale, self.log = 0, 1.0, []
    def step(self, x):
        self.n += 1
        n = next(self.it)
        y = x @ self.w
        y = F.leaky_relu(y, (max(0.1, 1 - n * 0.03)))
        y = y * self.w.sum()
        if n > 8:
            CHANGES
        else:
            y = y * 0.5
        return y
f = Runner().step
args = (torch.randn(4, 6, device=device),)
"""


@pytest.mark.parametrize("changes", ["self.scale *= 0.9", "self.log.append(n)"])
def test_a_branch_that_changes_what_is_the_hosts_is_in_no_part(changes: str, tmp_path: Path) -> None:
    # GIVEN a branch that no trial comes to, and that changes a number or a list of the host's
    # WHEN what is offered is launched in ten calls THEN each has eager's numbers
    fix = launched(COUNTED.replace("CHANGES", changes), tmp_path)
    # AND no part has that branch
    assert not fix.alone or changes not in fix.diff.partition("class Runner")[0], fix
