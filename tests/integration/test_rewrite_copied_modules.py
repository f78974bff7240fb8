"""A copy of a module that a step puts in the place of the last one: what a graph reads is loaded, and stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paramgraph_kit as pgk
from tests.integration.rewritten import lines_of, rewritten, run

AGENT = """
import copy
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Sequential(nn.Linear(4, 2))
        self.scale = torch.ones(2, device=device)
    def forward(self, x):
        return self.lin(x) * self.scale
class Agent:
    def __init__(self):
        self.net = Net().to(device)
        self.target = copy.deepcopy(self.net)
        self.n = 0
    @torch.no_grad()
    def f(self, x):
        y = self.target(x)
        for p in self.net.parameters():
            p.mul_(0.9)
        self.net.scale.lerp_(y.mean(0), 0.1)
        self.n += 1
        LINES
        return y
agent = Agent()
f = agent.f
args = (torch.randn(3, 4, device=device),)
"""
COPIED = "self.target = copy.deepcopy(self.net)"
LOADED = "self.target.load_state_dict(self.net.state_dict())"


@pytest.mark.sweep
def test_a_copy_now_and_then_is_loaded_into_the_module_that_a_graph_reads(tmp_path: Path) -> None:
    # GIVEN a step whose target is a copy of its network in every other call, with a tensor that no state_dict has
    text = AGENT.replace("LINES", f"if self.n % 2 == 0:\n            {COPIED}")
    # WHEN it is mended
    fix = rewritten(text, tmp_path)
    # THEN the copy goes behind the launch, into the module that is there, with that tensor
    assert fix.complete
    assert {LOADED, "self.target.scale.copy_(self.net.scale)"} <= {*lines_of(fix)}
    assert "def after_f(self):  # after each launch" in lines_of(fix)


def test_its_words_keep_the_module_too(tmp_path: Path) -> None:
    # GIVEN the same at each call
    names = run(AGENT.replace("LINES", COPIED), tmp_path)
    # WHEN it is diagnosed
    found: Any = pgk.diagnose(names["f"], *names["args"])
    # THEN what copies and what reads the copy are told the same
    words = {f.frame.text.strip(): f.fix for f in found.failures if f.frame is not None}
    assert LOADED in words[COPIED]
    assert any(
        LOADED in text and "stays as it is, where line" in text for line, text in words.items() if line != COPIED
    )


@pytest.mark.sweep
@pytest.mark.parametrize("read", ["", "self.best = copy.deepcopy(self.net)"])
def test_a_copy_that_no_graph_reads_is_what_it_was(read: str, tmp_path: Path) -> None:
    # GIVEN a copy that the step keeps, and never calls WHEN it is mended THEN it is copied as ever, behind the launch
    text = AGENT.replace("LINES", read or "self.best = copy.deepcopy(self.target)").replace(
        "self.n = 0", "self.n, self.best = 0, copy.deepcopy(self.net)"
    )
    assert not any("load_state_dict" in line for line in lines_of(rewritten(text, tmp_path)))
