"""Fixes of programs that simulate, filter, price, cluster and render."""

from __future__ import annotations

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.driver import host_random
from tests.integration.rewritten import Fixed, Program, lines_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

SOBOL = """\
engine = torch.quasirandom.SobolEngine(4, scramble=True, seed=1)
args = (torch.tensor(3.0, device=device),)
def f(s):
    u = engine.draw(8).to(device)
    return (s * u.sum(1)).mean().item() > 0
"""
EMPTY = """\
args = (torch.randn(20, 3, device=device), torch.randn(2, 3, device=device))
def f(x, centers):
    d = torch.cdist(x, centers)
    labels = d.argmin(1)
    new = torch.zeros_like(centers)
    for k in range(centers.size(0)):
        members = x[labels == k]
        if len(members) == 0:
            far = d.min(1).values.argmax()
            new[k] = x[far]
        else:
            new[k] = members.mean(0)
    return new
"""


def test_engine_of_sobol_points_is_put_back() -> None:
    # GIVEN an engine that has given some points
    engine = torch.quasirandom.SobolEngine(3, scramble=True, seed=2)
    engine.draw(5)
    before = host_random.state_of(engine)
    # WHEN it gives more and is put back THEN it gives the same again
    then = engine.draw(4)
    assert host_random.state_of(engine) != before
    host_random.put_back(engine, before)
    assert torch.equal(engine.draw(4), then)


def test_diagnosis_leaves_an_engine_of_sobol_points_where_it_was(program: Program) -> None:
    # GIVEN a step that draws from one
    names = program(SOBOL)
    # WHEN it is diagnosed THEN the engine has given nothing
    pgk.diagnose(names["f"], *names["args"])
    assert names["engine"].num_generated == 0


def test_branch_that_no_call_takes_is_looked_up_on_the_device(fixed: Fixed) -> None:
    # GIVEN clusters of which none is empty, so that no call has shown that `x[far]` waits WHEN it is fixed
    fix = fixed(EMPTY)
    # THEN the row is found on the device, and what the loop counts with stays a number
    assert fix.complete, fix
    assert "new[k] = torch.where(chosen, x[far.reshape(1)][0], new[k])" in lines_of(fix)


REPLAY = """\
class Buffer:
    def __init__(self):
        self.s, self.r = torch.randn(40, 4, device=device), torch.randn(40, device=device)
        self.prio = np.ones(40, dtype=np.float32)
    def sample(self, n, beta):
        p = self.prio / self.prio.sum()
        idx = np.random.choice(40, n, p=p)
        w = torch.as_tensor(p[idx] ** -beta, device=device, dtype=torch.float32)
        return self.s[idx], self.r[idx], w, idx
    def update(self, idx, td):
        self.prio[idx] = np.abs(td) + 1e-5
buf = Buffer()
args = (0.4,)
def f(beta):
    s, r, w, idx = buf.sample(8, beta)
    td = r - s.sum(1)
    buf.update(idx, td.cpu().numpy())
    return (w * td ** 2).mean()
"""


def test_words_for_a_replay_buffer_say_what_is_drawn_before_and_what_is_read_behind(program: Program) -> None:
    # GIVEN a step that draws by priorities, and sets them by what it reads of the device
    names = program(REPLAY)
    # WHEN it is fixed
    text = " ".join(str(pgk.diagnose(names["f"], *names["args"], fix=True)).split())
    # THEN the draw goes before the launch, though an argument is given to it
    assert "all that `buf.sample(8, beta)` does, at line 24, is the host's: do that before each launch" in text
    # AND the graph returns the tensor, and not what a capture cannot read
    assert "and return `idx`, `td`, of which it is given `td.cpu().numpy()` there" in text
