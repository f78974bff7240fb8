"""What a loop around a step that replays a graph of its own sets: the step alone is asked, and its loop is read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load, quiet

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
AHEAD = """import copy
class Runner:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 3)).to(device)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.x, self.gain, self.seen = torch.randn(4, 6, device=device), 1.0, []
        self.capture()
    def capture(self):
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            self.body()
        cuda.current_stream().wait_stream(side)
        self.graph = cuda.CUDAGraph()
        self.opt.zero_grad(set_to_none=True)
        with cuda.graph(self.graph):
            self.loss = self.body()
    def body(self):
        self.opt.zero_grad(set_to_none=True)
        loss = self.net(self.x).square().mean() * self.gain
        loss.backward()
        self.opt.step()
        return loss
    def step(self, x):
        self.x.copy_(x)
        self.graph.replay()
        return self.loss.clone()
def decay(opt, rate):
    for group in opt.param_groups: group["lr"] = rate
def main():
    r = Runner()
    for k in range(4):
        INSIDE
        r.step(torch.randn(4, 6, device=device))
r = Runner()
f, args = r.step, (torch.randn(4, 6, device=device),)
"""
LAZY = """
class Head:
    def __init__(self, net):
        self.net, self.graphs, self.cfg, self.bias = net, {}, {"temp": 1.0}, [0.5]
    def capture(self, x):
        held, graph = x.clone(), cuda.CUDAGraph()
        self.net(held)
        with cuda.graph(graph):
            out = self.net(held) / self.cfg["temp"] + sum(self.bias)
        return graph, held, out
    def __call__(self, x):
        key = KEY
        if key not in self.graphs:
            self.graphs[key] = self.capture(x)
        graph, held, out = self.graphs[key]
        held.copy_(x)
        graph.replay()
        return out.clone()
def main(n):
    head = Head(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1)).to(device).eval())
    for k in range(n):
        out = head(torch.randn(4, 6, device=device))
        INSIDE
f = Head(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1)).to(device).eval())
args = (torch.randn(4, 6, device=device),)
"""
WRONG = [
    (
        AHEAD,
        "decay(r.opt, 0.1 / (k + 1))",
        "learning-rate-frozen",
        'group["lr"] = rate',
        "g['lr']|group['lr'].fill_(rate)",
    ),
    (AHEAD, "r.gain = 1.0 / (k + 1)", "scalar-frozen", "r.gain = 1.0", "r.gain.fill_(1.0 / (k + 1))"),
    (AHEAD, "r.net.eval()", "branch-frozen", "r.net.eval()", "a graph for each value"),
    (AHEAD, "for p in r.net.parameters(): p.data = p.data * 0.9", "parameter-rebound", "p.data =", "p.data.copy_("),
    (AHEAD, "r.net[0] = nn.Linear(6, 8).to(device)", "parameter-rebound", "r.net[0] =", "r.net[0].load_state_dict("),
    (LAZY, "head.net.train(k % 2 == 0)", "branch-frozen", "head.net.train(", "a graph for each value"),
    (LAZY, "head.cfg['temp'] = 1.0 + k", "scalar-frozen", "head.cfg['temp'] = 1.0 + k", ".fill_(1.0 + k)"),
]
RIGHT = [
    (AHEAD, "r.net.eval(); r.net(r.x); r.net.train(); r.other = k"),
    (AHEAD, "r.gain = 1.0; r.net.train(); r.seen.append(k)"),
    (AHEAD, "for p in r.net.parameters(): p.data.mul_(0.9)"),
    (AHEAD, "r.gain = 1.0 / (k + 1); r.capture()"),
    (LAZY, "head.cfg['temp'] = 1.0 + k; head.graphs.clear()"),
    (LAZY, "head.cfg['steps'] = k; head.net.eval()"),
    (
        LAZY.replace("KEY", "x.shape, self.net.training, self.cfg['temp']"),
        "head.net.train(k > 2); head.cfg['temp'] = k",
    ),
]


@pytest.mark.parametrize(("program", "inside", "code", "line", "fix"), WRONG)
def test_what_a_loop_sets_between_replays_is_told_at_its_line(
    program: str, inside: str, code: str, line: str, fix: str, tmp_path: Path
) -> None:
    # GIVEN a step that replays a graph of its own, and a loop that sets what the captured lines read
    names = load(PRELUDE + program.replace("INSIDE", inside).replace("KEY", "x.shape"), tmp_path / "program.py")
    # WHEN the step alone is diagnosed
    with quiet():
        found = pgk.diagnose(names["f"], *names["args"])
    # THEN it is told at the line of the loop, with what to write there
    assert [f.code for f in found] == [code], str(found)
    assert found.failures[0].frame is not None
    assert line in found.failures[0].frame.text, str(found)
    assert any(each in found.failures[0].fix for each in fix.split("|")), str(found)


@pytest.mark.parametrize(("program", "inside"), RIGHT)
def test_what_a_loop_leaves_as_the_graph_has_it_is_right(program: str, inside: str, tmp_path: Path) -> None:
    # GIVEN the same with a loop that puts it back, captures again, or sets what no graph reads
    names = load(PRELUDE + program.replace("INSIDE", inside).replace("KEY", "x.shape"), tmp_path / "program.py")
    # WHEN
    with quiet():
        found = pgk.diagnose(names["f"], *names["args"])
    # THEN
    assert not found, str(found)
