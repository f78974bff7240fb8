"""What the device computes stays in the graph, also where one name has it before and behind a draw of the host's."""

from __future__ import annotations

import pytest
import torch

from tests.integration.rewritten import Fixed, lines_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

ACTOR = """
class Actor:
    def __init__(self):
        self.obs = torch.zeros(4, 3, device=device)
        self.weights = torch.ones(3, 2, device=device)
        self.noise = torch.zeros(4, device=device)
        self.net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
    @torch.no_grad()
    def step(self):
        actions = FIRST
        actions = torch.where(self.noise < 0.3, torch.full_like(actions, random.randrange(2)), actions)
        return actions.cpu()
f, args = Actor().step, ()
"""


@pytest.mark.parametrize(
    "first",
    [
        pytest.param("self.net(self.obs).argmax(1)", marks=pytest.mark.sweep),
        "(self.obs @ self.weights).argmax(1)",
    ],
)
def test_a_network_stays_in_the_graph_where_a_draw_gives_its_result_the_same_name(first: str, fixed: Fixed) -> None:
    # GIVEN actions of a network, of which a draw of the host's exchanges some, under the same name
    # WHEN rewritten
    found = fixed("import random\n" + ACTOR.replace("FIRST", first))
    # THEN the network is launched, what draws comes behind it under the same mode, and the share is said
    assert found.complete, found
    assert not any(line.startswith("def before_") for line in lines_of(found)), found
    assert f"-        actions = {first}" not in found.diff, found
    assert "with torch.no_grad():" in lines_of(found), found
    assert "operations of a step are in the graph, the others run behind it" in str(found)


@pytest.mark.sweep
def test_what_the_host_fetches_comes_ahead_under_the_mode_of_the_step(fixed: Fixed) -> None:
    # GIVEN a step without gradients that has a buffer draw rows and computes with them
    found = fixed("""
table = np.random.RandomState(0).randn(30, 3).astype(np.float32)
net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
args = ()
class Buffer:
    def draw(self, count):
        rows = np.random.randint(0, 30, count)
        return torch.from_numpy(table[rows]).to(device), torch.from_numpy(rows).to(device)
buffer = Buffer()
@torch.no_grad()
def f():
    x, rows = buffer.draw(4)
    return net(x).sum(1) * rows
""")
    # WHEN rewritten THEN they come before the launch, gradients are off there, too, and nothing is lacking
    assert found.complete, found
    lines = lines_of(found)
    before = next(number for number, line in enumerate(lines) if line.startswith("def before_"))
    assert lines[before - 1] == "@torch.no_grad()", found
    assert "x, rows = buffer.draw(4)" in lines, found
    assert "operations of a step are in the graph" not in str(found)


@pytest.mark.sweep
def test_a_clock_ahead_of_a_launch_asks_for_no_mode(fixed: Fixed) -> None:
    # GIVEN a step that takes its time
    found = fixed("""
import time
class Timed:
    def __init__(self):
        self.x, self.w, self.ms = torch.ones(4, device=device), torch.ones(4, device=device), 0.0
    def step(self):
        begun = time.perf_counter()
        self.w.add_(self.x.sin())
        self.ms = time.perf_counter() - begun
        return self.w.sum()
f, args = Timed().step, ()
""")
    # WHEN rewritten THEN the clock is read around the launch, and nothing is said of gradients
    assert found.complete, found
    assert "begun = time.perf_counter()" in lines_of(found), found
    assert "no_grad" not in found.diff, found
