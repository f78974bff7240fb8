"""What several lines set between calls of a step is told with each of them, also with those in methods."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.programs.running import load

HEAD = "import torch\nimport paramgraph_kit as pgk\ndevice = pgk.device()\n"
ADAPTED = """
class Adapt:
    def __init__(self):
        self.eps, self.mean = 0.5, 0.25
    def update(self, accept):
        self.eps = self.eps * (0.9 + accept)
class Schedule:
    def __init__(self):
        self.eps = 1.0
    def update(self, accept):
        self.eps = accept
adapt, other = Adapt(), Schedule()
def f(x):
    READS
def main(warm, steps):
    q = torch.ones(4, device=device)
    g = pgk.cuda.CUDAGraph()
    with pgk.cuda.graph(g):
        out = f(q)
    for k in range(steps):
        RUNS
        if k < warm:
            WHO.update(0.2)
        elif k == warm:
            adapt.eps = adapt.mean
"""
READS = {
    "return x * adapt.eps": True,
    "eps = adapt.eps\n    for k in range(2):\n        x = x * (eps + k)\n    return x": False,
}


@pytest.mark.parametrize("runs", ["g.replay()", "f(q)"])
@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("who", ["adapt", "other"])
def test_each_line_that_sets_a_number_is_named(who: str, reads: str, runs: str, tmp_path: Path) -> None:
    # GIVEN a step that reads a number, which the loop around it sets, and a method that it calls: of it, or of another
    text = HEAD + ADAPTED.replace("READS", reads).replace("WHO", who).replace("RUNS", runs)
    names = load(text, tmp_path / "program.py")
    lines = text.splitlines()
    method = lines.index("        self.eps = self.eps * (0.9 + accept)") + 1
    line = lines.index("            adapt.eps = adapt.mean") + 1

    # WHEN the step is diagnosed
    found = pgk.diagnose(names["f"], names["torch"].ones(4, device=names["device"]))

    # THEN both lines are named, with what they become, and no line of another object's
    assert {each.code for each in found} == {"scalar-frozen"}, str(found)
    for each in found:
        assert f":{line}  adapt.eps = adapt.mean" in each.message
        assert (f"; and at :{method}" in each.message) is (who == "adapt")
        if READS[reads]:
            assert f"line {line} becomes `adapt.eps.fill_(adapt.mean)`; " in each.fix
            written = f"; line {method} becomes `self.eps.fill_(self.eps * (0.9 + accept))`; "
            assert (written in each.fix) is (who == "adapt")
        else:
            assert "before each launch `eps_in.fill_(adapt.eps)`, here `x = x * (eps_in + k)`" in each.fix
