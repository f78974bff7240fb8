"""What a step gives anew in one line with others, ``self.force, e = forces(...)``: words for what a graph has read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paramgraph_kit as pgk
from tests.integration.rewritten import run

VERLET = """
def forces(pos):
    return -0.5 * pos, (pos * pos).sum()
class Box:
    def __init__(self):
        self.pos, self.vel = torch.ones(4, device=device), torch.zeros(4, device=device)
        self.force, _ = forces(self.pos)
        self.other = self.force.clone()
    def f(self, dt):
        self.vel += dt * (self.force - 0.1 * self.other)
        self.pos += dt * self.vel
        LINE
        return e
box = Box()
f = box.f
args = (torch.full((), 0.1, device=device),)
"""
WORDS = {
    "self.force, e = forces(self.pos)": (
        "`force_new, e = forces(self.pos)` and `self.force.copy_(force_new)` for line 21"
    ),
    "(self.force, self.other), e = forces(self.pos), self.pos.sum()": "",  # in lists within lists
    "self.force, self.other, e = self.other, self.force, self.pos.sum()": "",  # what is copied first would be lost
}


@pytest.mark.parametrize("line", WORDS)
def test_what_is_given_with_others_is_written_where_it_is_read(line: str, tmp_path: Path) -> None:
    # GIVEN a step whose force is another tensor at its end, by a line that gives more
    names = run(VERLET.replace("LINE", line), tmp_path)
    # WHEN it is diagnosed
    found: Any = pgk.diagnose(names["f"], *names["args"])
    # THEN its words name that line, and a name of the function's own, if one line after the other can do it
    told = [f.fix for f in found.failures if f.code == "stale-input"]
    assert told
    if WORDS[line]:
        assert any(WORDS[line] in each for each in told)
    else:
        assert not any("force_new" in each for each in told)
