"""Arguments that a step hands to what captures them as they are: each replay has to be given those of its own call."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load, quiet

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
LAZY = """class Runner:
    def __init__(self):
        self.net, self.graph = nn.Linear(6, 3).to(device), None
    def capture(self, sample):
        # ahead
        self.net(sample)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.out = self.net(sample)
        # behind
    @AROUND()
    def step(self, batch):
        if self.graph is None:
            self.capture(batch)
        # fed
        self.graph.replay()
        return self.out.clone()
r = Runner()
r.step(torch.randn(4, 6, device=device))
f, args = r.step, (torch.randn(4, 6, device=device),)
"""
TABLE = """model = nn.Bilinear(6, 6, 3).to(device).requires_grad_(False)
graphs = {}
def capture(a, b):
    # ahead
    model(a, b)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        out = model(a, b)
    # behind
    return g, out
def f(left, right):
    key = tuple(left.shape)
    if key not in graphs:
        graphs[key] = capture(b=right, a=left)
    g, out = graphs[key]
    # fed
    g.replay()
    return out.clone()
args = torch.randn(4, 6, device=device), torch.randn(4, 6, device=device)
"""


def asked(text: str, file: Path) -> list[tuple[str, str]]:
    """What is told of the step, and the words."""
    names = load(PRELUDE + text, file)
    with quiet():
        found = pgk.diagnose(names["f"], *names["args"])
    return [(f.code, f.fix) for f in found.failures]


def followed(text: str, fix: str) -> str:
    """The program with the words at their lines."""
    fed, _, rest = fix.partition("\nafter   ")[2].partition(", and `")
    made, _, kept = rest.partition("` ahead of the capture")
    kept = kept.partition("with `")[2].partition("`")[0]
    copies = fed.rpartition("; ")[0]
    for mark, line in (("# ahead", made), ("# behind", kept), ("# fed", copies)):
        text = text.replace(mark, line)
    return text


@pytest.mark.parametrize(("around", "gone"), [("torch.no_grad", True), ("torch.enable_grad", False)])
def test_what_the_first_call_captured_is_no_argument_of_the_next(around: str, gone: bool, tmp_path: Path) -> None:
    # GIVEN a step that has captured the tensor that it was given; what gradients need keeps that, or nobody
    lazy = LAZY.replace("AROUND", around)
    # WHEN it is asked THEN it is told that this call's is read by nobody
    told = asked(lazy, tmp_path / "program.py")
    assert [code for code, _ in told] == ["freed-input"] * gone + ["stale-input"]
    assert "self.graph.reads[0].copy_(batch); self.graph.replay()" in told[-1][1]
    # AND with its words followed nothing is
    assert asked(followed(lazy, told[-1][1]), tmp_path / "mended.py") == []


@pytest.mark.parametrize("before", ["f(*args)\nargs = [torch.randn(4, 6, device=device) for _ in args]\n", ""])
def test_several_arguments_of_a_table_of_graphs_are_each_filled(before: str, tmp_path: Path) -> None:
    # GIVEN a function whose table of graphs has captured two arguments, given by name, or captures them when asked
    text = TABLE + before
    # WHEN it is asked THEN both are told
    told = asked(text, tmp_path / "program.py")
    assert told[-1][0] == "stale-input"
    assert "g.reads[0].copy_(left); g.reads[1].copy_(right); g.replay()" in told[-1][1]
    assert "`g.reads = (a, b)`" in told[-1][1]
    # AND with these words followed nothing is
    mended = followed(text, told[-1][1])
    assert asked(mended, tmp_path / "mended.py") == []
    # AND each call gives what the model does
    names = load(PRELUDE + mended, tmp_path / "run.py")
    for _ in range(3):
        given = [torch.randn(4, 6).to(pgk.device()) for _ in range(2)]
        assert torch.allclose(names["f"](*given), names["model"](*given))


def test_a_sample_of_which_only_the_shape_is_captured_is_right(tmp_path: Path) -> None:
    # GIVEN the same with a tensor of the object's own, which each call fills
    text = LAZY.replace("AROUND", "torch.no_grad").replace("# fed", "self.x.copy_(batch)")
    text = text.replace("self.out = self.net(sample)", "self.out = self.net(self.x).view(sample.shape[0], -1)")
    text = text.replace(
        "self.net, self.graph", "self.x = torch.zeros(4, 6, device=device)\n        self.net, self.graph"
    )
    # WHEN it is asked THEN nothing is told
    assert asked(text, tmp_path / "program.py") == []


def test_a_buffer_of_the_callers_own_that_the_capture_reads_is_right(tmp_path: Path) -> None:
    # GIVEN a step whose caller fills the one tensor that it hands it
    text = LAZY.replace("AROUND", "torch.no_grad").replace(
        "r.step(torch.randn(4, 6, device=device))", "x = torch.ones(4, 6, device=device); r.step(x)"
    )
    text = text.replace("(torch.randn(4, 6, device=device),)", "(x,)")
    # WHEN it is asked THEN nothing is told
    assert asked(text, tmp_path / "program.py") == []
