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
SERVER = """
class Server:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
        self.static_in, self.graph = torch.zeros(4, 8, device=device), None
        self.gen = torch.Generator(device=device)
    def body(self, x):
        noise = torch.randn(4, 8, device=device, generator=self.gen)
        return self.net(x + 0.1 * noise)
    @torch.no_grad()
    def warm(self):
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.static_out = self.body(self.static_in)
    def serve(self, x):
        if self.graph is None:
            self.warm()
        self.static_in.copy_(x)
        self.graph.replay()
        return self.static_out.clone()
server = Server()
f = server.serve
args = (torch.randn(4, 8).to(device),)
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


@pytest.mark.pieces
def test_a_generator_is_registered_by_the_names_of_the_object_that_has_both(tmp_path: Path) -> None:
    # GIVEN an object that captures and has a generator, and that has a name of the program's as well
    names = run(SERVER, tmp_path)
    # WHEN
    with quiet():
        found = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN the line that is enough is one of its own methods
    (told,) = found.failures
    _, _, after = told.fix.partition("after   ")
    assert after.startswith("`self.graph.register_generator_state(self.gen)` of the graph `self.graph`, once before")


UNFED = {
    "forgotten at replay": "self.out_cache_loc[:len(loc)].copy_(loc); self.graphs[bs].replay()",
    "copies the first argument only": "sy.copy_(y); g.replay()",
    "buckets that are unpacked to names": "static_lens[:len(lens)].copy_(lens); g.replay()",
    "whose keywords no call copies": "graph.s_kwargs_mask.copy_(kwargs['mask']); graph.replay(), and ahead of the "
    "capture at line 29 `graph.s_kwargs_mask = s_kwargs['mask'].clone(); "
    "s_kwargs = {**s_kwargs, 'mask': graph.s_kwargs_mask}`",
}


@pytest.mark.parametrize("title", UNFED)
def test_an_input_that_only_its_object_or_its_table_still_names_is_told_when_no_call_fills_it(
    title: str, tmp_path: Path
) -> None:
    # GIVEN graphs whose inputs have the names of an object, or of what a table gives, and none of their capture's
    # WHEN
    (told,) = diagnosed(PROGRAMS, title, tmp_path / "program.py").failures
    # THEN
    assert told.code == "stale-input"
    assert told.fix.endswith(f"after   {UNFED[title]}")


HELD = {
    "captured on the caller's dict": (
        "before the capture `self.held_batch = {'b': batch['b'].clone(), 'x': batch['x'].clone()}`",
        "before this line comes `self.held_batch['b'].copy_(batch['b']); self.held_batch['x'].copy_(batch['x'])`",
    ),
    "on keywords of the caller": (
        "self.graph.batch_x.copy_(batch['x']); self.graph.batch_b.copy_(batch['b']); self.graph.replay()",
        "`self.graph.batch_x = batch['x'].clone(); batch = {**batch, 'x': self.graph.batch_x}`",
    ),
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")
@pytest.mark.parametrize("title", HELD)
def test_a_dictionary_that_is_captured_as_the_caller_gives_it_is_copied_entry_by_entry(
    title: str, tmp_path: Path
) -> None:
    # GIVEN a capture that reads entries of what its caller gives it
    # WHEN
    (told,) = diagnosed(PROGRAMS, title, tmp_path / "program.py").failures
    # THEN
    assert all(words in told.fix for words in HELD[title])


COMPUTED = {"a loss weight from a cosine": ("weight", "self.weight()"), "epsilon of a property": ("eps", "self.eps")}


@pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")
@pytest.mark.parametrize("title", COMPUTED)
def test_a_number_that_a_function_of_the_hosts_computes_is_one_tensor_and_no_graph_for_each(
    title: str, tmp_path: Path
) -> None:
    # GIVEN a capture that reads what a method, or a property, computes of a counter
    name, given = COMPUTED[title]
    # WHEN
    (told,) = diagnosed(PROGRAMS, title, tmp_path / "program.py").failures
    # THEN
    assert f"what is captured reads `self.{name}_in` for `{given}`" in told.fix
    assert told.fix.endswith(f"and ahead of self.graph.replay() `self.{name}_in.fill_({given})`")
