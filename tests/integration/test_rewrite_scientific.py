"""Fixes of programs that simulate, filter, price, cluster and render."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.driver import host_random
from paramgraph_kit.rewrite.advised.host.from_host import decided
from paramgraph_kit.rewrite.source.edits import Source
from paramgraph_kit.rewrite.source.place import Place
from paramgraph_kit.trace.model import Failure
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
    engine = torch.quasirandom.SobolEngine(3, scramble=True, seed=2)  # type: ignore[no-untyped-call]
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


BOUNCE = """\
x, v = torch.rand(20, 2, device=device) - 0.5, torch.randn(20, 2, device=device)
args = (torch.tensor(0.1, device=device),)
def f(dt):
    x.add_(dt * v)
    below = x[:, 1] < 0
    v[below, 1] *= -0.5
    v[below, 0] = v[below, 0] + 0.1 * x[below, 1]
    return x + dt
"""
FRONTIER = """\
near = torch.rand(9, 9, generator=torch.Generator().manual_seed(0)).to(device) < 0.3
args = (torch.zeros(1, dtype=torch.long, device=device),)
def f(frontier):
    dist = torch.full((9,), -1, dtype=torch.long, device=device)
    dist[frontier] = 0
    while frontier.numel() > 0:
        new = near[frontier].any(0).nonzero().flatten()
        frontier = new[dist[new] < 0]
        dist[frontier] = 1
    return dist
"""
SCHEDULE = """
def f(v):
    c1 = math.exp(-gamma * 0.1)
    c2 = math.sqrt((1 - c1**2) * sim.T)
    v = c1 * v + c2 * v.cos()
    sim.T *= 0.9
    return v
"""


def test_assignment_to_a_column_by_a_mask_keeps_its_size(fixed: Fixed) -> None:
    # GIVEN particles that bounce: one column of what a mask picks is written WHEN it is fixed
    fix = fixed(BOUNCE)
    # THEN the column is written by where
    assert fix.complete, fix
    assert "v[:, 1].copy_(torch.where(below, v[:, 1] * (-0.5), v[:, 1]))" in lines_of(fix)
    assert "v[:, 0].copy_(torch.where(below, v[:, 0] + 0.1 * x[:, 1], v[:, 0]))" in lines_of(fix)


def test_frontier_of_a_search_is_not_taken_for_what_a_loop_has_left(program: Program) -> None:
    # GIVEN a search whose next frontier is found among others WHEN it is fixed
    names = program(FRONTIER)
    text = " ".join(str(pgk.diagnose(names["f"], *names["args"], fix=True)).split())
    # THEN nobody is told to keep the first frontier and to leave rows of it out
    assert "each round has fewer of" not in text
    # AND it is said that the little which a graph has of it is worth none
    assert "a graph does not pay here: leave the step as it is" in text


def test_of_several_numbers_of_a_line_the_one_that_moves_is_given(tmp_path: Path) -> None:
    # GIVEN a line with two numbers of the host's, of which the first is always the same
    file = tmp_path / "program.py"
    file.write_text(SCHEDULE)
    source = Source.of(str(file))
    assert source is not None
    statement = source.statement(5)
    assert statement is not None
    # WHEN it is told what the graph is given THEN it is the other one
    space = {"torch": torch, "math": math, "gamma": 0.5}
    told = decided(Place(source, statement, Failure("scalar-frozen", "", ""), "device", space, plain=("c1", "c2")))
    assert "here `c2_in` for `c2`" in told
    assert "c1_in" not in told
