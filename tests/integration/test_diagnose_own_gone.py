"""A tensor that a graph reads and that is gone is told, whatever else its line reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run
from tests.programs.reading import read
from tests.programs.running import diagnosed, load, quiet

pytestmark = pytest.mark.usefixtures("recovered")
ENVIRONMENT = """
class Environment:
    def __init__(self):
        self.state, self.graph = torch.zeros(8, 2, device=device), None
    def physics(self, action):
        self.state.copy_(self.state * 0.9 + 0.1 * action[:, None])
        return self.state.clone()
    def step(self, action):
        if self.graph is None:
            self.action = action.clone()
            AHEAD
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.seen = self.physics(self.action)
        self.action.copy_(action)
        self.graph.replay()
        return self.seen.clone()
f = Environment().step
args = (torch.randn(8).to(device),)
"""
PROGRAMS = read(Path(__file__).parents[1] / "programs" / "own_graphs" / "fiftyfourth_ownb.txt")
MASK = "a mask of the capturing function's own"


def test_a_tensor_that_is_gone_is_told_beside_one_that_is_exchanged_at_the_same_line(tmp_path: Path) -> None:
    # GIVEN a line of a graph that reads a mask of a function that has ended, and weights that each call exchanges
    # WHEN
    found = diagnosed(PROGRAMS, MASK, tmp_path / "program.py")
    # THEN
    said = {f.code: f for f in found.failures}
    assert {*said} == {"freed-input", "stale-input"}
    assert "mask, which it reads here, is gone" in said["freed-input"].message
    assert said["freed-input"].fix.endswith("behind it: self.graph.reads = (mask,)")


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU nobody has noted what was freed before")
@pytest.mark.filterwarnings("ignore:the simulated device does not know")
def test_so_it_is_where_the_capture_was_made_before_anybody_looked(tmp_path: Path) -> None:
    # GIVEN
    program = next(each for each in PROGRAMS if MASK in each.title)
    names = load(program.broken, tmp_path / "program.py")
    with quiet():
        for _ in range(3):
            names["forward"](*names["args"])
        # WHEN
        found = pgk.diagnose(names["forward"], *names["args"])
    # THEN
    assert {f.code for f in found.failures} == {"freed-input", "stale-input"}


def test_a_number_that_a_branch_asks_through_a_name_gets_a_tensor_and_a_graph_for_each_way(tmp_path: Path) -> None:
    # GIVEN a number that is computed of a counter, added, and asked by a branch
    # WHEN
    (told,) = diagnosed(PROGRAMS, "which a branch asks, too", tmp_path / "program.py").failures
    # THEN the number has a tensor, which the branch does not ask
    assert "`if (self.eps_decay ** self.steps > 0.3) not in graphs:`" in told.fix
    assert "reads `self.eps_in` for `eps` but in line 21, whose test stays as it is" in told.fix
    assert told.fix.endswith("and ahead of each replay `self.eps_in.fill_(self.eps_decay ** self.steps)`")


def test_a_result_that_is_kept_is_told_once(tmp_path: Path) -> None:
    # GIVEN a list of results of a graphed module, which grows with each call
    # WHEN
    found = diagnosed(PROGRAMS, "in a list of the object's", tmp_path / "program.py")
    # THEN
    assert [f.fix for f in found.failures] == [
        "before  self.history.append(out.detach())\nafter   self.history.append(out.detach().clone())"
    ]


@pytest.mark.parametrize(("ahead", "is_told"), [("", False), ("self.physics(self.action)", True)])
def test_a_state_is_told_to_be_moved_ahead_of_a_capture_only_where_something_runs_there(
    ahead: str, is_told: bool, tmp_path: Path
) -> None:
    # GIVEN a capture that writes a state, without a warm-up and with one
    names = run(ENVIRONMENT.replace("AHEAD", ahead), tmp_path)
    # WHEN
    found = pgk.diagnose(names["f"], *names["args"])
    # THEN
    assert not found.failures
    assert ("what runs ahead of the capture moves `self.state`" in str(found)) is is_told
