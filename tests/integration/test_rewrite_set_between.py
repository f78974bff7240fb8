"""Parts that are captured, and what the loop around their step sets between calls."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.doctor_programs import program

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="failed captures stay out of this process")
TRAINER = """
class Learner:
    def __init__(self):
        self.net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)).to(device)
        self.weight = 0.0
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-2, capturable=True)

    def update(self, x, y):
        loss = F.cross_entropy(self.net(x), y) + self.weight * self.net[0].weight.abs().sum()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()

    def warm(self, i):
        self.weight = min(1.0, 0.1 * i)

    def run(self, rows):
        for i, (x, y) in enumerate(rows):
            self.warm(i)
            self.update(x, y)


learner = Learner()
step = learner.update
args = (torch.randn(4, 6, device=device), torch.randint(0, 3, (4,), device=device))
"""


def test_a_part_is_told_what_the_loop_sets_that_its_graph_keeps(tmp_path: Path) -> None:
    # GIVEN a trainer whose loop calls a method that sets a weight, which the step reads
    made = program(TRAINER, tmp_path / "annealed.py")
    # WHEN the step is rewritten, and a part of it is what a graph holds
    found = pgk.diagnose(made["step"], *made["args"], fix=True)
    # THEN it says beside what was tried that the part keeps the weight, and what to write
    assert found.fix is not None
    told = [line for line in found.fix.verified if line.startswith("`self.weight` is set between calls")]
    assert len(told) == 1
    assert "capture again behind that line" in told[0]
    assert "self.weight.fill_(min(1.0, 0.1 * i))" in told[0]


def test_a_weight_that_is_set_once_is_no_matter_of_a_part(tmp_path: Path) -> None:
    # GIVEN the same, with a weight that is set ahead of the loop
    loop = "        for i, (x, y) in enumerate(rows):\n            self.warm(i)\n"
    once = "        self.weight = 0.5\n        for i, (x, y) in enumerate(rows):\n"
    text = TRAINER.replace(loop, once).replace(
        "    def warm(self, i):\n        self.weight = min(1.0, 0.1 * i)\n\n", ""
    )
    made = program(text, tmp_path / "once.py")
    # WHEN it is looked at
    found = pgk.diagnose(made["step"], *made["args"], fix=True)
    # THEN nothing is told of it as set between calls
    told = found.fix.verified if found.fix is not None else []
    assert not any("is set between calls" in line for line in told)


def test_a_part_is_told_the_mode_that_the_loop_sets(tmp_path: Path) -> None:
    # GIVEN the same, whose loop puts a module to eval() from some round on, which no line of the step reads
    loop = "            self.warm(i)\n"
    once = "            if i > 3:\n                self.net[1].eval()\n"
    text = TRAINER.replace(loop, once).replace(
        "torch.nn.Linear(6, 8),", "torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8),"
    )
    made = program(text, tmp_path / "modes.py")
    # WHEN it is rewritten, and a part of it is what a graph holds
    found = pgk.diagnose(made["step"], *made["args"], fix=True)
    # THEN it says beside what was tried that the part keeps the mode
    assert found.fix is not None
    told = [line for line in found.fix.verified if line.startswith("`self.net[1].training` is set between calls")]
    assert len(told) == 1, str(found)
    assert "capture again behind that line" in told[0]


STEPPED = """
import torch, paramgraph_kit as pgk
device = pgk.device()
class Tracker:
    def __init__(self):
        self.x, self.cov, self.dt = torch.zeros(4, device=device), torch.eye(4, device=device), 1.0
    def advance(self):
        self.x = self.cov @ self.x * self.dt + 1
    def correct(self, z):
        gain = self.cov @ torch.linalg.inv(self.cov + torch.eye(4, device=device))
        self.x = self.x + gain @ (z - self.x)
        return self.x.abs().sum()
    def track(self, z):
        self.advance()
        size = self.correct(z)
        return self.x[:2] * 1, size
tracker = Tracker()
step, args = tracker.track, (torch.ones(4, device=device),)
def main():
    for k in range(6):
        tracker.dt = 0.5 * k
        tracker.track(torch.ones(4, device=device))
"""


def test_a_part_is_told_what_the_methods_read_that_it_calls(tmp_path: Path) -> None:
    # GIVEN a step whose part calls methods, of which one reads a number that the loop sets
    made = program(STEPPED, tmp_path / "methods.py")
    # WHEN it is rewritten, and a part of it is what a graph holds
    found = pgk.diagnose(made["step"], *made["args"], fix=True)
    # THEN it says beside what was tried that the part keeps the number
    assert found.fix is not None
    assert found.fix.alone
    assert any(line.startswith("`self.dt` is set between calls") for line in found.fix.verified), str(found)


FETCHING = """
import random
class Buffer:
    def __init__(self):
        self.rows, self.ptr = torch.randn(32, 6, device=device), 16
    def push(self, row):
        self.rows[self.ptr] = row
        self.ptr = (self.ptr + 1) % 32
    def sample(self):
        at = random.sample(range(self.ptr), 4)
        return self.rows[torch.tensor(at, device=device)]


class Agent:
    def __init__(self):
        self.net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).to(device)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-2, capturable=True)
        self.buffer, self.power, self.log = Buffer(), 0.4, []
    def learn(self):
        x = self.buffer.sample()
        loss = (self.net(x).abs() + 0.1).pow(self.power).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        value = loss.detach().mean()
        self.log.append(value.item())
        for p in self.net.parameters():
            p.data.mul_(0.99)
        return loss.detach()


agent = Agent()
step, args = agent.learn, ()
def main():
    for k in range(6):
        agent.buffer.push(torch.ones(6, device=device))
        agent.learn()
        agent.power = min(1.0, agent.power + 0.1)
"""


def test_numbers_that_only_lines_around_a_launch_read_are_none_of_its_graph(tmp_path: Path) -> None:
    # GIVEN a step that draws from a buffer which its loop fills, and reads a number that the loop sets
    made = program(FETCHING, tmp_path / "fetching.py")
    # WHEN it is rewritten, and draws before each launch
    found = pgk.diagnose(made["step"], fix=True)
    # THEN the buffer's own numbers are no matter of the graph, and the other one is told once, with what to write
    assert found.fix is not None
    assert "sample()" in "".join(line for line in found.fix.diff.splitlines() if line[:1] in "+ "), found
    assert not [line for line in found.fix.verified if "self.ptr" in line], found
    told = [line for line in found.fix.verified if "`self.power` is set" in line]
    assert len(told) == 1, found
    assert ".fill_(min(1.0, agent.power + 0.1))" in told[0]


ROUNDS = """
class Two:
    def __init__(self):
        self.g, self.d = torch.nn.Linear(4, 4).to(device), torch.nn.Linear(4, 1).to(device)
        self.opt_g = torch.optim.Adam(self.g.parameters(), lr=1e-2, capturable=True)
        self.opt_d = torch.optim.Adam(self.d.parameters(), lr=1e-2, capturable=True)
        self.n, self.mean = 0, None
    def train(self, real, noise):
        for k in range(3):
            w = self.d(real).mean() - self.d(self.g(noise[k]).detach()).mean()
            self.opt_d.zero_grad()
            w.backward()
            self.opt_d.step()
        loss = self.d(self.g(noise[-1])).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        self.mean = w.detach() if self.mean is None else 0.9 * self.mean + 0.1 * w.detach()
        self.n += 1
        for p in self.g.parameters():
            p.data.mul_(1 - 0.1 / self.n)
        return loss.detach()


two = Two()
step, args = two.train, (torch.randn(8, 4, device=device), torch.randn(4, 8, 4, device=device))
def main():
    for k in range(6):
        two.train(*args)
        if k == 3:
            for opt in (two.opt_g, two.opt_d):
                for group in opt.param_groups:
                    group["lr"] *= 0.5
"""


def test_the_rate_of_an_optimizer_beside_a_round_is_none_of_its_graph(tmp_path: Path) -> None:
    # GIVEN a step with rounds that one optimizer makes and another one behind them, and a loop that sets both rates
    made = program(ROUNDS, tmp_path / "rounds.py")
    # WHEN it is rewritten, and a round is what a graph holds
    found = pgk.diagnose(made["step"], *made["args"], fix=True)
    # THEN only the rate that the round reads is told beside it
    assert found.fix is not None
    if found.fix.is_of_loop:
        told = [line for line in found.fix.verified if "is set between calls" in line]
        assert [line.split("`")[1] for line in told] == ["self.opt_d"], found
    else:
        pytest.fail(str(found))
