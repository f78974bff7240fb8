"""What is told of one line goes with what is told of the others, and names what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device")
BALANCED = """
class Balanced:
    def __init__(self):
        self.k, self.kept = 0.0, []
    def train(self, real, fake):
        loss = real.abs().mean() - self.k * fake.abs().mean()
        balance = (0.5 * real.abs().mean() - fake.abs().mean()).item()
        self.k = min(max(self.k + 0.05 * balance, 0), 1)
        self.kept.append(real.mean().item() + abs(balance))
        return loss
gan = Balanced()
def f(real, fake):
    return gan.train(real, fake)
args = (torch.randn(4, device=device), 0.1 * torch.randn(4, device=device))
"""
PACED = """
class Pacing:
    def __init__(self):
        self.part, self.n = 0.25, 0
    def step(self):
        self.n += 1
        if self.n % 2 == 0:
            self.part = min(1.0, self.part * 1.5)
        return self.part
pacing = Pacing()
def f(x):
    n = int(pacing.step() * len(x))
    return x[:n].sum()
args = (torch.randn(8, device=device),)
"""
DRAWING = """
class Trainer:
    def __init__(self):
        self.gen = torch.Generator(device=device).manual_seed(7)
    def update(self, x):
        return x + torch.randn(x.shape, generator=self.gen, device=x.device)
trainer = Trainer()
def f(x):
    return trainer.update(x)
args = (torch.randn(4, device=device),)
"""
EARLY = """
class Agent:
    def __init__(self):
        self.net = nn.Linear(4, 2).to(device)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
    def update(self, x):
        for epoch in range(3):
            kl = self.net(x).square().mean()
            if kl > 900:
                break
            loss = kl + self.net(x).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        return kl.detach()
agent = Agent()
def f(x):
    return agent.update(x)
args = (torch.randn(4, 4, device=device),)
"""
ADAPTIVE = """
class State:
    t, dt, end = 0.0, 0.1, 0.2
state = State()
def f(y):
    end = state.t + 0.2
    while state.t < end:
        new = y - state.dt * y
        err = (new - y).abs().max().item()
        state.t += state.dt
        state.dt = min(0.1, 0.05 / (err + 1e-3))
        y = new
    return y
args = (torch.randn(4, device=device),)
"""
ACCEPTED = """
class Chain:
    def __init__(self):
        self.x, self.scale, self.taken, self.n = torch.zeros(4, 2, device=device), 0.5, 0, 0
    def sweep(self, u, z):
        new = self.x + self.scale * z
        taken = u < 0.5
        self.x[taken] = new[taken]
        self.taken += taken.sum().item()
        self.n += len(taken)
        if self.n >= 12:
            rate = self.taken / self.n
            self.scale *= math.exp(rate - 0.3)
            self.taken = self.n = 0
        return self.x.mean(0)
chain = Chain()
def f(u, z):
    return chain.sweep(u, z)
args = (torch.rand(4, device=device), torch.randn(4, 2, device=device))
"""
SPECULATED = """
stats = {"taken": 0}
def f(x):
    n = int((x > 0).cumprod(0).sum())
    stats["taken"] += n
    return torch.cat([x, x[:n]])
args = (torch.rand(6, device=device) - 1.0,)
"""


def _told(text: str, folder: Path) -> list[tuple[str, str]]:
    """The lines of a program's problems, with what is told to write there."""
    names = run(text, folder)
    found: Any = pgk.diagnose(names["f"], *names["args"])
    return [(each.frame.text.strip(), each.fix.partition("\nafter   ")[2]) for each in found.failures]


@pytest.mark.sweep
def test_a_number_that_a_read_one_moves_goes_behind_the_launch_with_what_it_reads(tmp_path: Path) -> None:
    # GIVEN a weight that the step itself moves by what it has read WHEN diagnosed
    told = dict(_told(BALANCED, tmp_path))
    # THEN the line that reads goes behind with it, and is not kept on the device for a line that is gone
    line = next(text for at, text in told.items() if at.startswith("loss ="))
    assert "belongs behind each launch, with line" in line
    assert "`balance = (0.5 * real.abs().mean() - fake.abs().mean()).item()`, of tensors that are returned" in line
    assert "goes on with" not in next(text for at, text in told.items() if at.startswith("balance ="))


@pytest.mark.sweep
def test_a_helper_of_the_hosts_alone_runs_before_each_launch_as_it_is(tmp_path: Path) -> None:
    # GIVEN a schedule of the host's, by a name that optimizers' methods have WHEN diagnosed
    told = _told(PACED, tmp_path)
    # THEN its own lines stay, and no branch of it becomes the device's
    own = [text for at, text in told if at.startswith(("self.", "if "))]
    assert len(own) == 3
    assert all(text.startswith("stays as it is: `pacing.step()`") for text in own)


def test_a_generator_is_called_by_its_objects_name(tmp_path: Path) -> None:
    # GIVEN a generator that an object of the file has WHEN diagnosed THEN who captures has a name for it
    assert "`g.register_generator_state(trainer.gen)`" in _told(DRAWING, tmp_path)[0][1]


@pytest.mark.sweep
def test_a_round_that_ends_ahead_of_its_training_keeps_its_step_outside(tmp_path: Path) -> None:
    # GIVEN rounds that a divergence ends before they train WHEN diagnosed
    told = dict(_told(EARLY, tmp_path))
    # THEN the optimizer steps behind the question, and not within the launch that it ends
    assert "without `self.opt.step()`" in told["if kl > 900:"]
    assert "call `self.opt.step()` there where it goes on" in told["if kl > 900:"]


@pytest.mark.sweep
def test_a_loop_that_the_host_ends_is_launched_round_by_round(tmp_path: Path) -> None:
    # GIVEN a solver whose time the host counts WHEN diagnosed THEN its test is no tensor's
    told = dict(_told(ADAPTIVE, tmp_path))
    assert told["while state.t < end:"].startswith("make one round of the loop of line")


@pytest.mark.sweep
def test_what_is_stored_by_a_mask_is_chosen_and_counts_go_with_what_is_read(tmp_path: Path) -> None:
    # GIVEN a chain that takes some of its proposals, and a rate of these WHEN diagnosed
    told = _told(ACCEPTED, tmp_path)
    # THEN both problems of the store have the same words, and the count goes where the rate does
    stores = {text.partition("; fix=True")[0] for at, text in told if at.startswith("self.x[taken]")}
    assert len(stores) == 1
    assert "`self.x.copy_(torch.where(there, new, self.x))`" in stores.pop()
    assert "before each launch" not in dict(told)["self.n += len(taken)"]


@pytest.mark.sweep
def test_what_follows_a_read_number_goes_where_that_goes(tmp_path: Path) -> None:
    # GIVEN a result that is cut at a number of the device's, which is counted, too WHEN diagnosed
    told = dict(_told(SPECULATED, tmp_path))
    # THEN both go behind the launch with the line that reads
    assert told['stats["taken"] += n'].startswith("goes behind each launch, with line")


AVERAGED = """
class Average:
    def __init__(self, net):
        self.held = {k: v.detach().clone() for k, v in net.state_dict().items()}
        self.calls = 0
    @torch.no_grad()
    def update(self, net):
        self.calls += 1
        d = min(0.99, (1 + self.calls) / (10 + self.calls))
        for k, v in net.state_dict().items():
            self.held[k] = d * self.held[k] + (1 - d) * v
net = nn.Linear(4, 2).to(device)
average = Average(net)
def f(x):
    loss = net(x).square().mean()
    average.update(net)
    return loss.detach()
args = (torch.randn(3, 4, device=device),)
"""
COUNTED = """
class Mean:
    def __init__(self):
        self.mean, self.n = torch.zeros(4, device=device), 0
    def push(self, x):
        self.n += 1
        delta = x - self.mean
        self.mean = self.mean + delta / self.n
mean = Mean()
def f(x):
    z = x - mean.mean
    mean.push(x)
    return z
args = (torch.randn(4, device=device),)
"""


@pytest.mark.sweep
def test_all_that_a_helper_does_goes_with_its_call(tmp_path: Path) -> None:
    # GIVEN an average that a step calls last, with a network of the file's WHEN diagnosed
    told = _told(AVERAGED, tmp_path)
    # THEN each of its lines goes behind the launch with the call, which is given nothing that a step has to return
    assert {text for _, text in told if "average.update" in text} == {text for _, text in told}
    assert told[0][1].endswith("take it out of the step, and call it there")


@pytest.mark.sweep
def test_a_count_goes_where_the_line_that_reads_it_is_told(tmp_path: Path) -> None:
    # GIVEN a mean on the device by a count of the host's WHEN diagnosed
    told = dict(_told(COUNTED, tmp_path))
    # THEN the count is not behind the launch in one place, and before it in the other
    assert "behind" not in told["self.n += 1"]


FOLLOWING = """
import math
class Following(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other, self.n = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), 0
    @torch.no_grad()
    def follow(self):
        m = 0.9 + 0.1 * math.cos(self.n / 10)
        for p, q in zip(self.one.parameters(), self.other.parameters()):
            q.data = q.data * m + p.data * (1 - m)
        self.n += 1
    def forward(self, x):
        self.follow()
        return self.other(x) - self.one(x)
net = Following().to(device)
def f(x):
    return net(x)
args = (torch.randn(4, device=device),)
"""


def test_parameters_that_a_helper_exchanges_keep_it_in_the_step(tmp_path: Path) -> None:
    # GIVEN a network that follows another one ahead of its own call, by `data` that is exchanged WHEN diagnosed
    names = run(FOLLOWING, tmp_path)
    found = pgk.diagnose(names["f"], *names["args"]).failures
    # THEN the parameters are written in place, and the helper, whose work this step reads, goes nowhere
    assert any("q.data.copy_(q.data * m + p.data * (1 - m))" in each.fix for each in found)
    assert not [each.fix for each in found if "take it out of the step" in each.fix]
