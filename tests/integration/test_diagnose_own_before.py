"""Training steps that only replay: gradients and states that graphs of before write, and that are others by now."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.programs.reading import read
from tests.programs.running import diagnosed

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAMS = read(Path(__file__).parents[1] / "programs" / "own_graphs" / "fiftythird_own1.txt")
_ZEROS = "`p.grad = torch.zeros_like(p) if p.grad is None else p.grad` for each"
WORDS = {
    "two replays": ("static_loss.backward()", _ZEROS),
    "whose gradients are set to None": ("net.zero_grad()", "net.zero_grad(set_to_none=False)"),
    "weights that are assigned": (
        "self.net.load_state_dict(self.best, assign=True)",
        "self.net.load_state_dict(self.best)",
    ),
    "loaded behind a replay": ("opt.load_state_dict(best)", "[opt.state[p][k].copy_(v) for k, v in best['state']"),
    "cleared ahead": ("opt.state.clear()", "for state in opt.state.values(): [v.zero_() for v in state.values()"),
    "has made": ("self.opt.step()", "ahead of the capture this step runs once alone"),
    "manager of the file's own": (
        "self.loss = self.work(ramp)",
        "ahead of self.captured.graph.replay() comes `self.ramp_in.f",
    ),
    "no line copies": ("g.replay()", "static_target.copy_(target); g.replay()"),
    "capture by hand": ("temperature = temperature * 0.9", "here: temperature.fill_(temperature * 0.9)"),
}


@pytest.mark.parametrize("title", WORDS)
def test_it_is_told_what_its_graph_does_not_see(title: str, tmp_path: Path) -> None:
    # GIVEN a step that replays a graph which was captured before anybody looked, by hand or in a manager of its own
    # WHEN it is diagnosed
    found = diagnosed(PROGRAMS, title, tmp_path / "program.py")
    # THEN its one problem is told at the line that brings it, with what works there
    line, words = WORDS[title]
    assert [f.frame.text for f in found.failures if f.frame] == [line]
    assert words in found.failures[0].fix, found.failures[0].fix


@pytest.mark.parametrize("title", ["second one clears", "three replays", "is not used"])
def test_steps_outside_of_a_graph_that_are_as_ever_are_no_problem(title: str, tmp_path: Path) -> None:
    # GIVEN a step whose gradients stay where its graphs write them, and that gives its graph all that it reads
    # WHEN it is diagnosed
    found = diagnosed(PROGRAMS, title, tmp_path / "program.py")
    # THEN nothing is told
    assert not found.failures
