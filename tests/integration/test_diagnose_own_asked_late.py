"""Methods that capture in their first call, asked for behind that: what a capture was given is looked at anew."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
HEAD = """
import random
from collections import OrderedDict
import torch
from torch import nn
import paramgraph_kit as pgk
cuda, device = pgk.cuda, pgk.device()

class Runner:
    def __init__(self):
        torch.manual_seed(0)
        self.net = nn.Linear(8, 8).to(device)
        self.x = torch.zeros(4, 8, device=device)
        self.at = torch.zeros((), device=device)
        self.graphs, self.results, self.graph, self.calls = {}, {}, None, 0

    def forward(self, n, at):
        return self.net(self.x[:n]) * READ
"""
TABLE = """
    @torch.no_grad()
    def _capture(self, n, at):
        self.forward(n, at)
        g = cuda.CUDAGraph()
        with cuda.graph(g):
            self.results[n] = self.forward(n, at)
        self.graphs[n] = g

    def step(self, x, at):
        n = x.shape[0]
        self.x[:n].copy_(x)
        self.at.fill_(at + 1)
        if n not in self.graphs:
            self._capture(n, at + 1)
        self.graphs[n].replay()
        self.calls += 1
        return self.results[n].clone()
"""
GIVEN_BACK = """
    def _graph_for(self, n, at):
        if n in self.graphs:
            return self.graphs[n]
        with torch.no_grad():
            self.forward(n, at)
            g = cuda.CUDAGraph()
            with cuda.graph(g):
                y = self.forward(n, at)
        self.graphs[n] = g, y
        return g, y

    def step(self, x, at):
        self.x[:len(x)].copy_(x)
        self.at.fill_(at + 1)
        g, y = self._graph_for(len(x), at + 1)
        g.replay()
        return y.clone()
"""
ONE = """
    def _capture(self, at):
        with torch.no_grad():
            self.forward(4, at)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.y = self.forward(4, at)

    def step(self, x, at):
        if self.graph is None:
            self._capture(at + 1)
        self.x.copy_(x)
        self.at.fill_(at + 1)
        self.graph.replay()
        return self.y.clone()
"""
MOST = """
    @torch.no_grad()
    def _capture(self, n, at):
        self.forward(n, at)
        g = cuda.CUDAGraph()
        with cuda.graph(g):
            y = self.forward(n, at)
        return g, y

    def step(self, x, at):
        self.x[:len(x)].copy_(x)
        self.at.fill_(at + 1)
        if not isinstance(self.graphs, OrderedDict):
            self.graphs = OrderedDict()
        if len(x) in self.graphs:
            self.graphs.move_to_end(len(x))
        else:
            if len(self.graphs) > 2:
                self.graphs.popitem(last=False)
            made = self._capture(len(x), at + 1)
            self.graphs[len(x)] = made
        g, y = self.graphs[len(x)]
        g.replay()
        return y.clone()
"""
FORMS = {"the latest ones": MOST, "a table": TABLE, "a table that is asked first": GIVEN_BACK, "one graph": ONE}


@pytest.mark.parametrize("read", ["at", "self.at"])
@pytest.mark.parametrize("form", FORMS)
def test_what_a_capture_of_before_was_given_is_told(form: str, read: str, tmp_path: Path) -> None:
    # GIVEN a step that has captured in its first call, with a number or with a tensor that is filled
    text = HEAD.replace("READ", read) + FORMS[form].replace(", at)\n", f", {read})\n")
    runner = load(text, tmp_path / "program.py")["Runner"]()
    x = torch.ones(4, 8, device=pgk.device())
    before = runner.step(x, 0).tolist()
    graphs = dict(runner.graphs), runner.graph
    # WHEN it is diagnosed behind that
    found = pgk.diagnose(runner.step, x, 1)
    # THEN the number is told, and nothing is said not to have been looked at
    assert [f.code for f in found.failures] == ["scalar-frozen"] * (read == "at"), found
    assert not any("was not run again" in note for note in found.notes), found
    # AND its graphs are what they were
    assert (dict(runner.graphs), runner.graph) == graphs
    assert runner.step(x, 0).tolist() == before


def test_what_nobody_can_look_at_does_not_read_as_if_it_had_been(tmp_path: Path) -> None:
    # GIVEN a graph whose capture stands in a function that has returned, and has left nothing but the graph
    names = load(HEAD.replace("READ", "1") + LEFT, tmp_path / "program.py")
    # WHEN what replays it is diagnosed
    found = pgk.diagnose(names["step"], torch.ones(4, 8, device=pgk.device()))
    # THEN the first line tells that this is not all
    assert not found.failures
    assert "no problems around its replays, and its capture was not looked at" in found.heading, found


LEFT = """
def made(net):
    x, g = torch.zeros(4, 8, device=device), cuda.CUDAGraph()
    with torch.no_grad():
        net(x)
        with cuda.graph(g):
            y = net(x) * random.random()
    def step(value):
        x.copy_(value)
        g.replay()
        return y.clone()
    return step

net = Runner().net
step = [made(net), made(net)][0]
"""


OBJECTS = """
import random
import torch
from torch import nn
import paramgraph_kit as pgk
cuda, device = pgk.cuda, pgk.device()

class Slot:
    def __init__(self, net, n):
        self.x, noise = torch.zeros(n, 4, device=device), 1.0
        with torch.no_grad():
            net(self.x)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.y = net(self.x) * MOVED

    def __call__(self, x):
        self.x.copy_(x)
        self.graph.replay()
        return self.y.clone()

class Runner:
    def __init__(self):
        self.net, self.slots = nn.Linear(4, 4).to(device), {}

    def step(self, x):
        if len(x) not in self.slots:
            self.slots[len(x)] = Slot(self.net, len(x))
        return self.slots[len(x)](x)
"""


@pytest.mark.parametrize(("moved", "codes"), [("random.random()", ["host-random"]), ("noise", [])])
def test_what_is_captured_where_an_object_is_made_is_looked_at_anew(
    moved: str, codes: list[str], tmp_path: Path
) -> None:
    # GIVEN a table of objects that capture when they are made, for sizes that come first
    runner = load(OBJECTS.replace("MOVED", moved), tmp_path / "program.py")["Runner"]()
    runner.step(torch.ones(2, 4, device=pgk.device()))
    slots = dict(runner.slots)
    # WHEN
    found = pgk.diagnose(runner.step, torch.ones(2, 4, device=pgk.device()))
    # THEN
    assert [f.code for f in found.failures] == codes, found
    assert "was not looked at" not in found.heading
    assert runner.slots == slots
