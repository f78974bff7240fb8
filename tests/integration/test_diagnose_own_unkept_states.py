"""States of optimizers and scalers that nobody keeps: what the graphs of a program's own step with is freed."""

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
def zeros_begin(opt, saved, model):
    with torch.no_grad():
        for p, s in zip(model.parameters(), saved):
            p.copy_(s)
        for state in opt.state.values():
            [v.zero_() for v in state.values() if torch.is_tensor(v)]
    opt.zero_grad(set_to_none=True)
class Trainer:
    def __init__(self, model):
        self.model = model
        MADE
        self.x, self.y = torch.ones(4, 8, device=device), torch.ones(4, 8, device=device)
        saved = [p.detach().clone() for p in model.parameters()]
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(2):
                opt.zero_grad(set_to_none=True)
                (model(self.x) - self.y).pow(2).mean().backward()
                opt.step()
        cuda.current_stream().wait_stream(side)
        zeros_begin(opt, saved, model)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            loss = (model(self.x) - self.y).pow(2).mean()
            loss.backward()
            opt.step()
            self.loss = loss.detach()
    def __call__(self, x, y):
        self.x.copy_(x)
        self.y.copy_(y)
        self.graph.replay()
        return self.loss.clone()
def main():
    torch.manual_seed(0)
    trainer = Trainer(nn.Linear(8, 8).to(device))
    y = torch.zeros(4, 8).to(device)
    return [trainer(torch.full((4, 8), float(i)).to(device), y).cpu() for i in range(4)]
"""
SGD = "opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)"
ADAM = "opt = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1, device=device), capturable=True)"
SCHEDULED = f"{ADAM}\n        sched = torch.optim.lr_scheduler.StepLR(opt, 2)"
CLOSED = """
def make(model):
    opt = torch.optim.RMSprop(model.parameters(), lr=0.1, capturable=True)
    x = torch.ones(4, 8, device=device)
    def run():
        loss = model(x).pow(2).mean()
        loss.backward()
        opt.step()
        return loss
    saved = [p.detach().clone() for p in model.parameters()]
    run()
    with torch.no_grad():
        for p, s in zip(model.parameters(), saved):
            p.copy_(s)
        for state in opt.state.values():
            [v.zero_() for v in state.values() if torch.is_tensor(v)]
    opt.zero_grad(set_to_none=True)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        loss = run()
    def step(batch):
        KEEPS
        x.copy_(batch)
        graph.replay()
        return loss.detach().clone()
    return step
def main():
    torch.manual_seed(0)
    model = nn.Linear(8, 8).to(device)
    step = make(model)
    return [step(torch.full((4, 8), float(i)).to(device)).cpu() for i in range(4)]
"""


def told(program: str, tmp_path: Path) -> list[tuple[str, str]]:
    """What is told of a program, asked as a whole, and at which lines."""
    names = load(PRELUDE + program, tmp_path / "program.py")
    return [(f.code, f.frame.text if f.frame else "") for f in pgk.diagnose(names["main"]).failures]


@pytest.mark.parametrize("made", [SGD, ADAM, SCHEDULED])
def test_an_optimizer_that_the_capturing_constructor_alone_had_is_told(tmp_path: Path, made: str) -> None:
    # GIVEN a constructor whose optimizer goes with it WHEN the program is asked THEN its state is told to be gone
    assert told(TRAINER.replace("MADE", made), tmp_path) == [("freed-input", "opt.step()")]


@pytest.mark.parametrize("made", [SGD, ADAM])
def test_an_optimizer_that_is_kept_is_not(tmp_path: Path, made: str) -> None:
    # GIVEN a constructor that keeps it WHEN the program is asked THEN nothing is told
    assert told(TRAINER.replace("MADE", f"{made}\n        self.opt = opt"), tmp_path) == []


def test_an_optimizer_without_a_state_leaves_nothing_behind(tmp_path: Path) -> None:
    # GIVEN one whose steps read its parameters alone WHEN the program is asked THEN nothing is told
    assert told(TRAINER.replace("MADE", "opt = torch.optim.SGD(model.parameters(), lr=0.1)"), tmp_path) == []


def test_an_optimizer_of_a_closure_that_is_gone_is_told(tmp_path: Path) -> None:
    # GIVEN a function that captures with an optimizer, and gives back another that does not know it
    # WHEN the program is asked THEN its state is told to be gone, and where it is known nothing
    assert ("freed-input", "opt.step()") in told(CLOSED.replace("KEEPS", "pass"), tmp_path)
    assert told(CLOSED.replace("KEEPS", "opt.param_groups"), tmp_path) == []


def test_an_object_of_before_that_has_let_its_optimizer_go_is_told(tmp_path: Path) -> None:
    # GIVEN a trainer that has captured WHEN it is asked itself THEN its optimizer's state is told to be gone
    names = load(PRELUDE + TRAINER.replace("MADE", SGD), tmp_path / "program.py")
    trainer = names["Trainer"](torch.nn.Linear(8, 8).to(pgk.device()))
    x = torch.ones(4, 8).to(pgk.device())
    found = pgk.diagnose(trainer, x, torch.zeros_like(x))
    assert [f.code for f in found.failures] == ["freed-input"]
    assert "opt" in found.failures[0].fix
