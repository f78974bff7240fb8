"""Warm-ups that do more than is captured: the optimizer steps outside of the graph, on weights that the graph reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
TRAINER = """
class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Linear(5, 1).to(device)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scaler = torch.amp.GradScaler(device, init_scale=128.0)
        self.graph = None
        self.x = torch.zeros(8, 5, device=device)
    def forward_backward(self):
        loss = self.model(self.x).square().mean()
        self.scaler.scale(loss).backward()
        return loss
    def update(self):
        self.scaler.step(self.opt)
        self.scaler.update()
    def capture(self):
        AHEAD
        s = cuda.Stream()
        s.wait_stream(cuda.current_stream())
        with cuda.stream(s):
            for _ in range(3):
                self.opt.zero_grad(set_to_none=True)
                self.forward_backward()
                STEPS
        cuda.current_stream().wait_stream(s)
        BACK
        self.opt.zero_grad(set_to_none=True)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.loss = self.forward_backward()
    def step(self, x):
        self.x.copy_(x)
        if self.graph is None:
            self.capture()
        self.graph.replay()
        self.scaler.step(self.opt)
        self.scaler.update()
        return self.loss.detach().clone()
trainer = Trainer()
args = (torch.randn(8, 5, device=device),)
"""
KEEP = "kept = [p.detach().clone() for p in self.model.parameters()]"
PUT_BACK = """with torch.no_grad():
            for p, old in zip(self.model.parameters(), kept):
                p.copy_(old)
        for state in self.opt.state.values():
            state["momentum_buffer"].zero_()"""


def _notes(tmp_path: Path, **texts: str) -> list[str]:
    text = TRAINER
    for word in ("AHEAD", "STEPS", "BACK"):
        text = text.replace(word, texts.get(word, "pass"))
    names = load(PRELUDE + text, tmp_path / "program.py")
    found = pgk.diagnose(names["trainer"].step, *names["args"])
    assert not found.failures
    return [note for note in found.notes if "the warm-up" in note]


@pytest.mark.parametrize(
    "steps", ["self.scaler.step(self.opt); self.scaler.update()", "self.opt.step()", "self.update()"]
)
def test_weights_that_a_warm_up_moves_outside_of_what_is_captured_are_told(steps: str, tmp_path: Path) -> None:
    # GIVEN a step that captures forward and backward alone, and whose warm-up lets the optimizer step, too
    # WHEN it is diagnosed
    notes = _notes(tmp_path, STEPS=steps)
    # THEN the weights are told, as the graph reads what the warm-up has left
    assert len(notes) == 1, notes
    assert "`self.model`'s weights" in notes[0], notes


@pytest.mark.parametrize("texts", [{}, {"AHEAD": KEEP, "STEPS": "self.opt.step()", "BACK": PUT_BACK}])
def test_a_warm_up_that_leaves_weights_as_they_were_is_none(texts: dict[str, str], tmp_path: Path) -> None:
    # GIVEN one whose warm-up takes no step, or whose weights and momentum are put back
    # WHEN it is diagnosed
    # THEN nothing is told of it
    assert not _notes(tmp_path, **texts)


SHARED = """
class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Linear(5, 1).to(device)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.graphs = {}
        self.x = torch.zeros(8, 5, device=device)
    def body(self, n):
        ZERO
        loss = self.model(self.x[:n]).square().mean()
        loss.backward()
        return loss.detach()
    def capture(self):
        for n in (2, 8):
            graph = cuda.CUDAGraph()
            with cuda.graph(graph):
                loss = self.body(n)
            self.graphs[n] = graph, loss
    def step(self, x):
        n = len(x)
        self.x[:n].copy_(x)
        if not self.graphs:
            self.capture()
        graph, loss = self.graphs[n]
        graph.replay()
        self.opt.step()
        return loss.clone()
trainer = Trainer()
args = (torch.randn(8, 5, device=device),)
"""


@pytest.mark.parametrize("zero", ["self.opt.zero_grad(set_to_none=False)", "pass"])
def test_gradients_of_another_graph_that_one_begins_with_zeros_are_its_own(zero: str, tmp_path: Path) -> None:
    # GIVEN graphs of which the first has made the gradients, and is not replayed; the others fill them with zeros first
    names = load(PRELUDE + SHARED.replace("ZERO", zero), tmp_path / "program.py")
    # WHEN it is diagnosed
    found = pgk.diagnose(names["trainer"].step, *names["args"]).failures
    # THEN what the graph that is replayed has made anew is there; without zeros it adds to what nobody has made
    codes = {f.code for f in found}
    assert ("pool-order" in codes or "gradient-frozen" in codes) == (zero == "pass"), found
    assert bool(codes) == (zero == "pass"), found
