"""What the call with a capture gives back: nothing has computed it where no replay stands ahead of that."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
IN_A_FUNCTION = """
head, g, x_in = nn.Linear(4, 2).to(device), None, torch.zeros(3, 4, device=device)
@torch.no_grad()
def f(x):
    global g, out
    x_in.copy_(x)
    if g is None:
        head(x_in)
        g = cuda.CUDAGraph()
        with cuda.graph(g):
            out = head(x_in).softmax(-1)
        FIRST
    g.replay()
    return out.clone()
args = (torch.randn(3, 4, device=device),)
"""
IN_A_METHOD = """
class Runner:
    def __init__(self):
        self.net, self.graph = nn.Linear(4, 2).to(device), None
        self.x = torch.zeros(3, 4, device=device)
    def capture(self):
        self.net(self.x)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.y = self.net(self.x)
        FIRST
    @torch.no_grad()
    def __call__(self, x):
        self.x.copy_(x)
        if self.graph is None:
            self.capture()
        else:
            self.graph.replay()
        return self.y
runner = Runner()
def f(x):
    return runner(x)
args = (torch.randn(3, 4, device=device),)
"""
CASES = {
    "in a function": (IN_A_FUNCTION, "return out", "g.replay()", "return out.clone()"),
    "in a method": (IN_A_METHOD, "pass", "self.graph.replay()", "return self.y.clone()"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_first_call_of_a_capture_that_nobody_has_replayed_is_told(case: str, tmp_path: Path) -> None:
    # GIVEN a function whose first call captures, and gives back what the capture has made
    text, first, replay, copied = CASES[case]
    # WHEN
    names = run(text.replace("FIRST", first), tmp_path)
    found = pgk.diagnose(names["f"], *names["args"])
    # THEN the line that returns it is told, with the replay that has to come first
    assert [f.code for f in found] == ["not-executed"]
    line = copied.removesuffix(".clone()")
    assert found.failure.frame is not None
    assert found.failure.frame.text == line
    words = f"{replay} right behind the capture, ahead of this line: a capture runs nothing"
    assert found.failure.fix == f"before  {line}\nafter   {words}; who keeps its result needs `{copied}`"


@pytest.mark.parametrize(
    ("case", "first"), [("in a function", "g.replay(); return out"), ("in a method", "self.graph.replay()")]
)
def test_a_first_call_that_has_replayed_is_told_nothing_but_whose_memory_it_gives(
    case: str, first: str, tmp_path: Path
) -> None:
    # GIVEN the same with a replay in that call
    names = run(CASES[case][0].replace("FIRST", first), tmp_path)
    # WHEN
    found = pgk.diagnose(names["f"], *names["args"])
    # THEN
    assert not found.failures
    assert any("who keeps it needs a clone()" in note for note in found.notes)


def test_a_warm_up_that_is_returned_ahead_of_the_replays_is_told_nothing(tmp_path: Path) -> None:
    # GIVEN a first call that returns what it has computed eagerly
    text = IN_A_FUNCTION.replace("        head(x_in)", "        first = head(x_in).softmax(-1)")
    names = run(text.replace("FIRST", "return first"), tmp_path)
    # WHEN / THEN
    assert not pgk.diagnose(names["f"], *names["args"]).failures
