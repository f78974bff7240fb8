"""States that a program hands to a capture as they are, so that later inputs are copied over them."""

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
PROGRAM = """
class Force:
    def __init__(self, position):
        self.position = position
        side = cuda.Stream(); side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            self.out = -torch.tanh(self.position)
        cuda.current_stream().wait_stream(side)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.out = -torch.tanh(self.position)
    def __call__(self, position):
        self.position.copy_(position)
        self.graph.replay()
        return self.out.clone()
class Sampler:
    def __init__(self):
        self.state = torch.ones(4, device=device)
        self.force = None
        AHEAD
    def step(self, noise):
        BEHIND
        proposal = self.state + noise
        proposal = proposal + 0.1 * self.force(PROPOSAL)
        accepted = noise > 0
        LAST
sampler = Sampler()
step, args = sampler.step, (torch.randn(4).to(device),)
"""
AHEAD = {"AHEAD": "self.force = Force(GIVEN)", "BEHIND": "pass"}
LAZILY = {"AHEAD": "pass", "BEHIND": "self.force = self.force or Force(GIVEN)"}
USUAL = {
    "PROPOSAL": "proposal",
    "LAST": "self.state = torch.where(accepted, proposal, self.state)",
    "GIVEN": "self.state",
}
SEEN = "seen = self.force.position; seen = seen * 2; return seen"
LATER = "kept = torch.where(accepted, proposal, self.state); self.state = kept"


def told(tmp_path: Path, helper: str = "", **parts: str) -> list[tuple[str, str]]:
    """What is told of such a program, with its line."""
    program = PROGRAM
    for name, text in sorted((USUAL | parts).items()):  # GIVEN behind AHEAD
        program = program.replace(name, text)
    names = load(PRELUDE + helper + program, tmp_path / "program.py")
    with quiet():
        found = pgk.diagnose(names["step"], *names["args"])
    return [(f.code, f.frame.text if f.frame is not None else "") for f in found.failures]


@pytest.mark.parametrize("way", [AHEAD, pytest.param(LAZILY, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("last", [USUAL["LAST"], pytest.param(LATER, marks=pytest.mark.sweep)])
def test_a_state_that_is_the_input_itself_is_told_where_it_is_read(
    tmp_path: Path, way: dict[str, str], last: str
) -> None:
    # GIVEN a sampler whose state a capture is given as its input, and that reads it behind replays of other inputs
    # WHEN it is diagnosed
    # THEN the line that reads it is told
    assert told(tmp_path, **way, LAST=last) == [("output-alias", last)]


@pytest.mark.parametrize(
    "parts",
    [
        AHEAD | {"GIVEN": "self.state.clone()"},
        pytest.param(LAZILY | {"GIVEN": "self.state.clone()"}, marks=pytest.mark.sweep),
        pytest.param(AHEAD | {"PROPOSAL": "self.state.clone()"}, marks=pytest.mark.sweep),
        pytest.param(AHEAD | {"GIVEN": "self.state.clone()", "LAST": SEEN}, marks=pytest.mark.sweep),
    ],
)
def test_a_state_of_which_a_capture_has_a_copy_is_its_own(tmp_path: Path, parts: dict[str, str]) -> None:
    # GIVEN the same with a copy, with the state itself as the input, and with a buffer that is read for what it has
    # WHEN they are diagnosed
    # THEN nothing is told of them
    assert [code for code, _ in told(tmp_path, **parts) if code == "output-alias"] == []


FRAMES = """
class Flow:
    def __init__(self):
        self.frame, self.before = torch.zeros(4, device=device), torch.zeros(4, device=device)
        self.last, self.graph = None, cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.flow = (self.frame - self.before).abs()
    def step(self, frame):
        FIRST
        SECOND
        self.last = self.frame
        self.graph.replay()
        return self.flow.clone()
step, args = Flow().step, (torch.rand(4, device=device),)
"""
FILLS, READS = "self.frame.copy_(frame)", "if self.last is not None: self.before.copy_(self.last)"


@pytest.mark.parametrize("is_late", [True, False])
def test_an_input_that_is_named_for_the_next_call_is_read_ahead_of_its_next_copy(is_late: bool, tmp_path: Path) -> None:
    # GIVEN a step that names its input as the last one, and reads that in its next call, behind the copy or ahead of it
    first, second = (FILLS, READS) if is_late else (READS, FILLS)
    names = load(PRELUDE + FRAMES.replace("FIRST", first).replace("SECOND", second), tmp_path / "program.py")
    # WHEN it is diagnosed
    found = pgk.diagnose(names["step"], *names["args"]).failures
    # THEN it needs a copy where the next input is there by then, and is right where it is not
    fixes = [f.fix.partition("after ")[2].strip() for f in found if f.fix is not None]
    assert fixes == ["self.last = self.frame.clone()"] * is_late


EASED = """
def eased(x):
    x = x * 0.9
    return x + 0.1
"""
STATIC = """
static, graph, out = torch.zeros(4, device=device), cuda.CUDAGraph(), None
def capture():
    global out
    eased(static)
    with cuda.graph(graph):
        out = eased(static)
def main():
    capture()
    results = []
    for i in range(3):
        static.copy_(torch.full((4,), float(i), device=device))
        graph.replay()
        results.append(out.clone())
    return torch.stack(results)
step, args = main, ()
"""


def test_a_helpers_own_name_for_the_input_is_no_state(tmp_path: Path) -> None:
    # GIVEN a static input that is filled ahead of each replay, and a helper that gives its argument another value
    # WHEN it is diagnosed
    names = load(PRELUDE + EASED + STATIC, tmp_path / "program.py")
    with quiet():
        found = pgk.diagnose(names["step"])
    # THEN nothing is told: what the helper calls it next is no state of whoever has the input
    assert not found.failures, found


def test_a_state_that_a_helper_reads_is_told_where_it_is_one(tmp_path: Path) -> None:
    # GIVEN a sampler whose state is the input itself, and which gives it to such a helper
    last = "self.state = torch.where(accepted, proposal, eased(self.state))"
    # WHEN it is diagnosed
    # THEN the line that has the state is told, and not the helper's
    assert told(tmp_path, **AHEAD, LAST=last, helper=EASED) == [("output-alias", last)]
