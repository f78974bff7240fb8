"""What is told of a program's own replays names what the program has: its rate, its tensors, each of its parameters."""

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
LEARNER = """
class Learner:
    def __init__(self):
        self.net = nn.Linear(4, 2).to(device)
        self.opt = OPTIMIZER
        self.sched = torch.optim.lr_scheduler.StepLR(self.opt, step_size=2, gamma=0.5)
        self.x, self.graph = torch.zeros(3, 4, device=device), None
    def _update(self):
        self.opt.zero_grad(set_to_none=True)
        self.net(self.x).square().mean().backward()
        self.opt.step()
    def update(self, x):
        if self.graph is None:
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self._update()
        self.x.copy_(x)
        self.graph.replay()
        self.sched.step()
def main():
    learner = Learner()
    for _ in range(4):
        learner.update(torch.randn(3, 4, device=device))
"""
RATES = {
    "torch.optim.SGD(self.net.parameters(), lr=0.25, momentum=0.9)": "fused=True: it waits for the rate otherwise",
    "torch.optim.AdamW(self.net.parameters(), lr=0.25, capturable=True)": "capturable=True",
}


def diagnosed(text: str, tmp_path: Path) -> pgk.Diagnosis:
    """What is found in a program's ``main``."""
    return pgk.diagnose(load(PRELUDE + text, tmp_path / "program.py")["main"])


@pytest.mark.parametrize("made", RATES)
def test_a_frozen_rate_is_told_with_the_optimizers_own_rate_and_what_its_class_takes(made: str, tmp_path: Path) -> None:
    # GIVEN a capture that holds an optimizer's step, whose scheduler steps in another function
    program = LEARNER.replace("OPTIMIZER", made)
    # WHEN
    found = diagnosed(program, tmp_path)
    # THEN the words have its own rate and device, and no argument that its class does not know
    fix = next(f.fix for f in found.failures if f.code == "learning-rate-frozen")
    words = f"with lr=torch.tensor(0.25, device='sim') where the optimizer is made, and {RATES[made]}; what gives"
    words += " the next rate, as a scheduler's step(), stands behind self.graph.replay()"
    assert fix == f"before  self.opt.step()\nafter   self.opt.step(), {words}"


KEPT = """
def main():
    net = nn.Linear(4, 4).to(device)
    x = torch.zeros(2, 4, device=device)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        out = net(x)
    buffer = []
    for step in range(4):
        x.copy_(torch.randn(2, 4, device=device))
        graph.replay()
        reward, done = float(out.sum()), step == 3
        buffer.append(ROW)
    return [float(row[0].sum()) for row in buffer]
"""
ROWS = {
    "(x, out, reward, done)": "(x.clone(), out.clone(), reward, done)",
    "[out, reward]": "[out.clone(), reward]",
}


@pytest.mark.parametrize("row", ROWS)
def test_of_a_row_that_is_kept_only_the_tensors_are_copied(row: str, tmp_path: Path) -> None:
    # GIVEN a program that keeps rows of results, and of numbers beside them
    program = KEPT.replace("ROW", row)
    # WHEN
    found = diagnosed(program, tmp_path)
    # THEN what is no tensor stays as it is
    fix = next(f.fix for f in found.failures if f.code == "output-alias")
    assert fix == f"before  buffer.append({row})\nafter   buffer.append({ROWS[row]})"


TRAINED = """
def main():
    net = nn.Linear(4, 2).to(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.zeros(3, 4, device=device)
    net(x).sum().backward()
    opt.zero_grad(set_to_none=False)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        loss = net(x).square().mean()
        loss.backward()
    losses = []
    for _ in range(4):
        x.copy_(torch.randn(3, 4, device=device))
        graph.replay()
        opt.step()
        opt.zero_grad(set_to_none=False)
        losses.append(loss)
    return RETURNED
"""
RETURNED = [
    "torch.stack([l.detach() for l in losses]), [p.detach().clone() for p in net.parameters()]",
    "torch.stack([l.detach() for l in losses]), [p.detach() for p in net.parameters()]",
    "torch.stack([l.detach() for l in losses]), torch.cat([p.clone().flatten() for p in net.parameters()])",
]


@pytest.mark.parametrize("returned", RETURNED)
def test_what_a_comprehension_copies_is_not_told_for_a_list_that_is_kept_beside_it(
    returned: str, tmp_path: Path
) -> None:
    # GIVEN a list of results that is joined in a line with copies of the parameters
    program = TRAINED.replace("RETURNED", returned)
    # WHEN
    found = diagnosed(program, tmp_path)
    # THEN it is told where it is kept alone
    told = [f.frame.text for f in found.failures if f.code == "output-alias" and f.frame]
    assert told == ["losses.append(loss)"]


REBOUND = """
class Server:
    def __init__(self):
        self.head = nn.Linear(4, 3).to(device)
        self.x = torch.zeros(2, 4, device=device)
        self.head(self.x)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph), torch.no_grad():
            self.out = self.head(self.x)
    def renew(self, weight, bias):
        self.head.weight = nn.Parameter(weight)
        self.head.bias = nn.Parameter(bias)
    def __call__(self, x):
        self.x.copy_(x)
        self.graph.replay()
        return self.out.clone()
def main():
    server = Server()
    for _ in range(4):
        server.renew(torch.randn(3, 4, device=device), torch.randn(3, device=device))
        server(torch.randn(2, 4, device=device))
"""


def test_each_parameter_that_is_exchanged_is_told_at_its_line(tmp_path: Path) -> None:
    # GIVEN a module whose weight and bias are given other memory, each in a line of its own
    # WHEN
    found = diagnosed(REBOUND, tmp_path)
    # THEN both are told
    told = [
        (f.frame.text, f.message.split(" of ")[0]) for f in found.failures if f.code == "parameter-rebound" and f.frame
    ]
    assert sorted(told) == [
        ("self.head.bias = nn.Parameter(bias)", "bias"),
        ("self.head.weight = nn.Parameter(weight)", "weight"),
    ]


HISTORY = """
class Trainer:
    def __init__(self):
        self.losses = {"first": [], "second": []}
    def step(self, x):
        y = x * 2
        self.losses["first"].append(y.mean())
        self.losses["second"].append(y.sum())
        return y
trainer = Trainer()
f, args = trainer.step, (torch.randn(3, device=device),)
"""


def test_each_list_of_a_dictionary_that_keeps_results_is_told_at_its_line(tmp_path: Path) -> None:
    # GIVEN a function that adds results to two lists of one dictionary
    names = load(PRELUDE + HISTORY, tmp_path / "program.py")
    # WHEN
    found = pgk.diagnose(names["f"], *names["args"])
    # THEN
    told = [f.frame.text for f in found.failures if f.code == "output-alias" and f.frame]
    assert sorted(told) == [
        'self.losses["first"].append(y.mean())',
        'self.losses["second"].append(y.sum())',
    ]
