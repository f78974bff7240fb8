"""Numbers that lines set around the replays of a graph that holds a step alone, and ahead of its capture as well."""

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
TARGETS = """
class Teacher:
    def __init__(self):
        self.net, self.mean, self.tau = torch.ones(4, device=device), torch.zeros(4, device=device), 0.9
    def update(self):
        self.mean.mul_(self.tau).add_(self.net, alpha=1 - self.tau)
def main():
    teacher = Teacher()
    teacher.update()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        teacher.update()
    for k in range(4):
        SETS
        g.replay()
    return teacher.mean
f = Teacher().update
args = ()
"""
ADAPTERS = """
class Layer:
    def __init__(self):
        self.scaling = 1.0
    def __call__(self, x):
        return x * self.scaling
class Server:
    def __init__(self):
        self.layer, self.x = Layer(), torch.ones(4, device=device)
    def use(self, alpha):
        self.layer.scaling = alpha / 2
    def capture(self):
        self.layer(self.x)
        cuda.synchronize()
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.y = self.layer(self.x)
    def infer(self, alpha):
        self.use(alpha)
        self.graph.replay()
        return self.y.clone()
def f():
    s = Server()
    s.use(1.0)
    s.capture()
    return torch.stack([s.infer(1.0 + i) for i in range(4)])
args = ()
"""
SETTINGS = """
class Params:
    def __init__(self, temperature=1.0):
        self.temperature = temperature
class Sampler:
    def __init__(self):
        self.params, self.x = Params(), torch.ones(4, device=device)
    def sample(self):
        return self.x / self.params.temperature
def f():
    s = Sampler()
    s.sample()
    cuda.synchronize()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = s.sample()
    out = []
    for i in range(4):
        s.params.temperature = 1.0 + i
        if i == 2:
            s.params = Params(0.5)
        g.replay()
        out.append(y.clone())
    return torch.stack(out)
args = ()
"""


def test_a_number_that_a_loop_of_replays_sets_is_told_of_the_step_alone(tmp_path: Path) -> None:
    # GIVEN a step, and beside it a function that captures it and sets its number between replays
    (failure,) = pgk.diagnose(run(TARGETS.replace("SETS", "teacher.tau = 0.9 + 0.01 * k"), tmp_path)["f"]).failures
    # WHEN THEN the words have a tensor at each read of it, also where torch takes a number alone
    assert failure.code == "scalar-frozen"
    assert "`teacher.tau.fill_(0.9 + 0.01 * k)`" in failure.fix
    assert "`add_((1 - self.tau) * self.net)` for `add_(self.net, alpha=1 - self.tau)`" in failure.fix


def test_a_loop_of_replays_that_sets_nothing_of_it_is_none(tmp_path: Path) -> None:
    # GIVEN the same where the loop fills what the step reads
    # WHEN THEN
    assert not pgk.diagnose(run(TARGETS.replace("SETS", "teacher.net.fill_(k)"), tmp_path)["f"]).failures


def test_a_number_that_is_also_set_ahead_of_the_capture_is_a_number_there(tmp_path: Path) -> None:
    # GIVEN a method that sets it between replays, and once ahead of the capture
    (failure,) = pgk.diagnose(run(ADAPTERS, tmp_path)["f"]).failures
    # WHEN THEN its words do for both
    assert "`if torch.is_tensor(self.layer.scaling): self.layer.scaling.fill_(alpha / 2)`" in failure.fix


@pytest.mark.sweep
def test_a_number_of_settings_that_are_exchanged_has_a_tensor_of_its_own(tmp_path: Path) -> None:
    # GIVEN one line that sets it, and another that exchanges what has it
    told = pgk.diagnose(run(SETTINGS, tmp_path)["f"]).failures
    # WHEN THEN no tensor is kept where the next settings have a number
    assert len(told) == 2
    assert all("ahead of g.replay() `s.params_temperature_in.fill_(s.params.temperature)`" in f.fix for f in told)


ROLLOUT = """
class Policy:
    def __init__(self):
        self.net, self.graphs = nn.Linear(4, 2).to(device), {}
    @torch.no_grad()
    def act(self, obs):
        if len(obs) not in self.graphs:
            x = obs.clone()
            self.net(x)
            cuda.synchronize()
            g = cuda.CUDAGraph()
            with cuda.graph(g):
                y = self.net(x)
            self.graphs[len(obs)] = g, x, y
        g, x, y = self.graphs[len(obs)]
        x.copy_(obs)
        g.replay()
        return y
def f():
    p, rollout = Policy(), []
    for i in range(6):
        obs = torch.full((2 + i % 2, 4), float(i), device=device)
        rollout.append(dict(obs=obs, probs=p.act(obs)))
    return torch.cat([r["probs"] for r in rollout])
args = ()
"""
QUEUE = """
def f():
    bank = nn.Module()
    bank.rows, x = torch.zeros(6, 4, device=device), torch.ones(2, 4, device=device)
    def step():
        loss = bank.rows.sum() + x.sum()
        bank.rows = torch.cat([bank.rows[2:], x])
        return loss
    step()
    cuda.synchronize()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = step()
    out = []
    for i in range(4):
        x.fill_(i)
        g.replay()
        out.append(y.item())
    return out
args = ()
"""


@pytest.mark.sweep
def test_what_several_graphs_give_is_copied_where_a_row_is_kept(tmp_path: Path) -> None:
    # GIVEN a row of an input, which is another one each time, and of what one of two graphs gives
    (failure,) = pgk.diagnose(run(ROLLOUT, tmp_path)["f"]).failures
    # WHEN THEN
    assert "probs=p.act(obs).clone()" in failure.fix


@pytest.mark.sweep
def test_a_window_that_leaves_out_its_oldest_is_written_in_place(tmp_path: Path) -> None:
    # GIVEN a queue that a step gives new rows, in place of as many old ones
    told = pgk.diagnose(run(QUEUE, tmp_path)["f"]).failures
    # WHEN THEN no line has to be made anew around it
    assert any("bank.rows.copy_(new) if bank.rows.shape == new.shape else new" in f.fix for f in told), told
