"""What a step does in one of two ways, with boxes and shares that the host draws: words that can be followed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run
from tests.programs.running import seed

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

CUT = """
net = nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).to(device)
def corners(size, share):
    h, w = size[-2], size[-1]
    side = np.sqrt(1.0 - share)
    y, x = np.random.randint(h), np.random.randint(w)
    top, bottom = np.clip(y - int(h * side) // 2, 0, h), np.clip(y + int(h * side) // 2, 0, h)
    left, right = np.clip(x - int(w * side) // 2, 0, w), np.clip(x + int(w * side) // 2, 0, w)
    return top, bottom, left, right
def f(x, order):
    r = np.random.rand()
    if r < 0.7:
        share = np.random.beta(1.0, 1.0)
        a, b, c, d = corners(x.size(), share)
        x[:, a:b, c:d] = x[order, a:b, c:d]
        share = 1 - (b - a) * (d - c) / 36
        return net(x) * share
    else:
        return net(x)
args = (torch.randn(4, 6, 6, device=device), torch.tensor([2, 0, 3, 1], device=device))
"""
STEP = """
a_in, b_in, c_in, d_in = (torch.zeros((), dtype=torch.long, device=device) for _ in range(4))
share_in = torch.zeros((), device=device)
def step(x, order, chosen):
    if chosen:
        at_1 = torch.arange(x.shape[1], device=x.device).view(-1, *[1] * (x.dim() - 2))
        at_2 = torch.arange(x.shape[2], device=x.device).view(-1, *[1] * (x.dim() - 3))
        x.copy_(torch.where((at_1 >= a_in) & (at_1 < b_in) & (at_2 >= c_in) & (at_2 < d_in), x[order], x))
        return net(x) * share_in
    else:
        return net(x)
def before(x):
    r = np.random.rand()
    chosen = bool(r < 0.7)
    if chosen:
        share = np.random.beta(1.0, 1.0)
        a, b, c, d = corners(x.size(), share)
        share = 1 - (b - a) * (d - c) / 36
        a_in.fill_(a), b_in.fill_(b), c_in.fill_(c), d_in.fill_(d), share_in.fill_(share)
    return chosen
"""


def test_a_box_that_a_helper_draws_in_one_of_two_ways_can_be_followed(tmp_path: Path) -> None:
    # GIVEN a step that cuts a box out of other rows in some calls, and multiplies by what is left
    names = run(CUT, tmp_path)
    # WHEN its fixes are told THEN each has whole lines of the step's own names
    told = str(pgk.diagnose(names["f"], *names["args"], fix=True).fix)
    assert "write `if chosen:` here; before each launch do `r = np.random.rand()` (line 20) and find" in told
    assert "`chosen = bool(r < 0.7)`, and launch the graph of that" in told
    assert "belongs before each launch of this way, after `share = np.random.beta(1.0, 1.0)` (line 22): once" in told
    for line in STEP.splitlines()[5:8]:
        assert f"`{line.strip()}`" in told
    assert "`share` is the host's number, which lines 22, 23 and 25 make: do these before each launch of this" in told
    # AND followed, with a graph for each way, they give eager's numbers
    rows = [torch.randn(4, 6, 6) for _ in range(24)]
    device, order = pgk.device(), names["args"][1]
    seed()
    expected = [names["f"](each.to(device), order).cpu() for each in rows]
    names = run(CUT + STEP, tmp_path)
    x, graphs, got = torch.zeros(4, 6, 6, device=device), {}, []
    for chosen in (True, False):
        graphs[chosen] = pgk.cuda.CUDAGraph(), names["step"](x, names["args"][1], chosen)
        with pgk.cuda.graph(graphs[chosen][0]):
            graphs[chosen] = graphs[chosen][0], names["step"](x, names["args"][1], chosen)
    seed()
    ways = set()
    for each in rows:
        x.copy_(each)
        graph, out = graphs[way := names["before"](x)]
        graph.replay()
        ways.add(way)
        got.append(out.detach().cpu().clone())
    assert ways == {True, False}
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(got, expected, strict=True))


HINTED = """
net = nn.Linear(4, 2).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def f(x):
    hint = None
    if random.random() < 0.5:
        with torch.no_grad():
            hint = net(x)
    y = net(x) if hint is None else net(x) + hint.detach()
    loss = y.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
args = (torch.randn(4, 4, device=device),)
"""


def test_a_way_that_the_host_draws_and_one_of_which_computes_has_a_graph_for_each(tmp_path: Path) -> None:
    # GIVEN a step that computes a hint first in some of its calls
    names = run("import random\n" + HINTED, tmp_path)
    # WHEN its fix is told
    told = str(pgk.diagnose(names["f"], *names["args"], fix=True))
    # THEN the host's draw stays what decides it, and gives the host's numbers
    assert "write `if chosen:` here; before each launch find `chosen = bool(random.random() < 0.5)`" in told
    assert "other numbers than the host's" not in told
