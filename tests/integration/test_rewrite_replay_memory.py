"""A step that samples a replay memory of the host's: what is rewritten, and what is told of what it brings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import lines_of, rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

REPLAY = """\
class Memory:
    def __init__(self):
        self.priority = np.ones(32, np.float32)
        self.seen = np.random.randn(32, 6).astype(np.float32)
    def sample(self, n):
        at = np.random.choice(32, n, p=self.priority / self.priority.sum())
        states = torch.tensor(self.seen[at], dtype=torch.float32, device=device)
        weights = torch.tensor(1 / self.priority[at], dtype=torch.float32, device=device)
        return at, states, weights
    def update(self, at, priority):
        self.priority[at] = np.abs(priority) + 1e-3
memory, net = Memory(), nn.Linear(6, 3).to(device)
args = (torch.randint(0, 3, (4,), device=device),)
def f(actions):
    at, states, weights = memory.sample(4)
    picked = net(states)[range(4), actions]
    loss = picked.square() * weights
    net.zero_grad()
    loss.mean().backward()
    memory.update(at, loss.detach().cpu().numpy())
"""


def test_rows_that_are_counted_by_the_host_become_an_arange_and_picks_of_an_array_are_no_table(tmp_path: Path) -> None:
    # GIVEN a step that picks by a range and samples of arrays WHEN it is rewritten
    fix = rewritten(REPLAY, tmp_path)
    # THEN the range is one of the device
    assert "picked = net(states)[torch.arange(4, device=device), actions]" in lines_of(fix), fix
    # THEN what is picked of an array is neither told to be a table that lies on the device, nor one number
    told = "\n".join(fix.instead)
    assert ".to(device)`" not in told, told
    assert "torch.full((), 1 /" not in told
    sampled = "all that `memory.sample(4)` does, at line 24, is the host's: do that before each launch"
    assert fix.alone or told.count(sampled) == 2, told


ADVERSARIES = """\
G, D = nn.Linear(3, 2).to(device), nn.Linear(2, 1).to(device)
g_opt, d_opt = torch.optim.SGD(G.parameters(), lr=0.1), torch.optim.SGD(D.parameters(), lr=0.1)
count = [0]
args = (torch.randn(4, 3, device=device),)
def critic(x):
    d_opt.zero_grad()
    D(G(x)).square().mean().backward()
    d_opt.step()
def generate(x):
    g_opt.zero_grad()
    (-D(G(x)).mean()).backward()
    g_opt.step()
def f(x):
    count[0] += 1
    critic(x)
    if count[0] % 2 == 0:
        generate(x)
"""


def test_gradients_that_a_launch_adds_to_and_moved_lines_let_go_are_none_at_the_capture(tmp_path: Path) -> None:
    # GIVEN a critic whose backward reaches the generator, whose own step, and zero_grad(), go behind the launch
    fix = rewritten(ADVERSARIES, tmp_path)
    # WHEN it is verified THEN it is told to capture where there are none: else launches write what others have by then
    assert fix.complete, fix
    told = [each for each in fix.verified if "their memory serves others then" in each]
    assert len(told) == 1, fix
    assert "`for p in G.parameters(): p.grad = None`" in told[0]
    # AND a critic that keeps its gradients to itself is told nothing
    alone = ADVERSARIES.replace("D(G(x)).sq", "D(G(x).detach()).sq")
    assert "serves others then" not in str(rewritten(alone, tmp_path))
