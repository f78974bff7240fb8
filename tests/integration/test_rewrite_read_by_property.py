"""A number that a property or a method finds in a count: what moves the count goes ahead of it, as where it stands."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from paramgraph_kit.rewrite.around.feeding import slice_before
from paramgraph_kit.rewrite.source.edits import Function, Source
from tests.integration.rewritten import changed, rewritten

TEXT = """\
class Runner:
    def __init__(self):
        self.w = torch.ones(6, 6, device=device)
        self.n, self.seen, self.c = 0, 0, {"n": 0}
    PROPERTY
    def rate(self):
        return self.done() / 50
    def done(self):
        return self.c["n"]
    def step(self, x):
        self.c["n"] += 1
        self.seen += 1
        y = x @ self.w
        v = RATE
        y = F.normalize(y, eps=abs(v) + 1e-3)
        return y
obj = Runner()
f = obj.step
args = (torch.randn(4, 6, device=device),)
"""
PROPERTY = TEXT.replace("PROPERTY", "@property").replace("RATE", "self.rate")
METHOD = TEXT.replace("    PROPERTY\n", "").replace("RATE", "self.rate()")


@pytest.mark.parametrize("text", [PROPERTY, METHOD])
def test_what_a_property_reads_goes_ahead_with_it(text: str, tmp_path: Path) -> None:
    # GIVEN a step that counts in a dictionary, which a property, or a method, reads; another count nobody reads
    file = tmp_path / "program.py"
    file.write_text(text)
    source = Source.of(str(file))
    assert source is not None
    function = next(n for n in ast.walk(source.tree) if isinstance(n, Function) and n.name == "step")
    # WHEN the number is to be found ahead of the launch
    there = function.body[3]
    assert isinstance(there, ast.Assign)
    kept = slice_before(source, function, there, there.value)
    # THEN the count goes with it, in its order, and the other one does not
    assert kept is not None
    assert [source.text(node) for node in kept] == ['self.c["n"] += 1']


@pytest.mark.sweep
@pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")
def test_a_diff_counts_ahead_of_a_property_that_reads_it(tmp_path: Path) -> None:
    # GIVEN such a step, in which the number changes nothing for inputs of today's size
    # WHEN it is diagnosed with fix=True
    fix = rewritten(PROPERTY, tmp_path)
    # THEN the count moves ahead of the launch, before the property is asked: behind it each launch had the last one's
    assert fix.complete
    lines = [line[1:].strip() for line in changed(fix.diff) if line.startswith("+")]
    counts, asks = lines.index('self.c["n"] += 1'), lines.index("v = self.rate")
    assert lines.index("def before_step(self):  # before each launch") < counts < asks
