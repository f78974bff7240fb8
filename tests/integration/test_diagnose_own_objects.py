"""Graphs of objects that were captured before they are asked for: given to a function, in tables, of other files."""

from __future__ import annotations

import sys
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
import torch
from torch import nn
import paramgraph_kit as pgk
cuda, device = pgk.cuda, pgk.device()
"""
GRAPHED = """
class Graphed:
    def __init__(self, call, x):
        self.call, self.x = call, x
        with torch.no_grad():
            call(x)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.y = call(x)

    def __call__(self, x):
        self.x.copy_(x)
        self.graph.replay()
        return self.y.clone()
"""
ENGINE = """
class Engine:
    def __init__(self, make):
        self.net = nn.Linear(8, 8).to(device)
        self.gain = GAIN
        self.graphed = {n: make(self.forward, torch.zeros(n, 8, device=device)) for n in (2, 4)}

    def forward(self, x):
        return self.net(x) * self.gain

    def infer(self, x, gain):
        SET
        return self.graphed[len(x)](x)

def run(engine, batches):
    return [engine.infer(x, 1.0 / (1 + i)) for i, x in enumerate(batches)]
"""
FORMS = {
    "a number": ("1.0", "self.gain = gain", ("scalar-frozen", "self.gain = gain")),
    "a tensor": ("torch.ones((), device=device)", "self.gain.fill_(gain)", None),
    "other memory": (
        "torch.ones((), device=device)",
        "self.gain = torch.full((), gain, device=device)",
        ("stale-input", "self.gain = torch.full((), gain, device=device)"),
    ),
}


@pytest.mark.parametrize("beside", [True, False], ids=["another file", "the same file"])
@pytest.mark.parametrize("by_loop", [True, False], ids=["given", "asked alone"])
@pytest.mark.parametrize("form", FORMS)
def test_what_a_graph_has_of_its_capture_is_told_of_an_object_that_has_captured(
    form: str, by_loop: bool, beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN an object whose table has graphs of before, their class in its own file or in another one
    given, line, wrong = FORMS[form]
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "graphed_beside", raising=False)
    (tmp_path / "graphed_beside.py").write_text(HEAD + GRAPHED)
    head = HEAD + ("from graphed_beside import Graphed\n" if beside else GRAPHED)
    names = load(head + ENGINE.replace("GAIN", given).replace("SET", line), tmp_path / "program.py")
    engine = names["Engine"](names["Graphed"])
    # WHEN one of its methods is asked for, or a function that is given it
    batches = [torch.ones(n, 8, device=pgk.device()) for n in (2, 4)]
    found = pgk.diagnose(names["run"], engine, batches) if by_loop else pgk.diagnose(engine.infer, batches[1], 0.5)
    # THEN what its replays do not see is told, and nothing else
    told = [(f.code, f.frame.text) for f in found.failures if f.frame is not None]
    assert told == [wrong] * bool(wrong), found


OF_A_HELPER = """
import types

def record(call):
    with torch.no_grad():
        call()
        g = cuda.CUDAGraph()
        with cuda.graph(g):
            out = call()
    return GIVEN

class Engine:
    def __init__(self):
        self.net = nn.Linear(8, 8).to(device)
        self.x, self.penalty = torch.zeros(4, 8, device=device), PENALTY
        self.recorded = record(self.forward)

    def forward(self):
        return self.net(self.x) - self.penalty

    def run(self, x, penalty):
        SET
        self.x.copy_(x)
        self.recorded.graph.replay()
        return self.recorded.out.clone()
"""
PENALTIES = {
    "0.0": ("self.penalty = penalty", ["scalar-frozen"]),
    "torch.zeros((), device=device)": ("self.penalty.fill_(penalty)", []),
}


@pytest.mark.parametrize("penalty", PENALTIES)
def test_a_capture_of_a_helper_that_gives_a_namespace_back_is_found(penalty: str, tmp_path: Path) -> None:
    # GIVEN an object whose graph a helper has captured, which gives it back as an attribute of a namespace
    line, codes = PENALTIES[penalty]
    text = OF_A_HELPER.replace("GIVEN", "types.SimpleNamespace(graph=g, out=out)")
    engine = load(HEAD + text.replace("PENALTY", penalty).replace("SET", line), tmp_path / "program.py")["Engine"]()
    # WHEN its method is asked for
    found = pgk.diagnose(engine.run, torch.ones(4, 8, device=pgk.device()), 0.5)
    # THEN
    assert [f.code for f in found.failures] == codes, found


OF_FIELDS = """
from dataclasses import dataclass
from typing import Any

@dataclass
class Runner:
    net: nn.Module
    gain: float = 1.0
    graph: Any = None

    def __post_init__(self):
        self.x = torch.zeros(4, 8, device=device)
        with torch.no_grad():
            self.net(self.x)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.y = self.net(self.x) * self.gain

    def run(self, x, gain):
        self.gain = gain
        self.x.copy_(x)
        self.graph.replay()
        return self.y.clone()
"""


def test_what_a_dataclass_makes_is_told_where_it_makes_things(tmp_path: Path) -> None:
    # GIVEN a dataclass that captures once its fields are set
    names = load(HEAD + OF_FIELDS, tmp_path / "program.py")
    runner = names["Runner"](torch.nn.Linear(8, 8).to(pgk.device()))
    # WHEN
    found = pgk.diagnose(runner.run, torch.ones(4, 8, device=pgk.device()), 2.0)
    # THEN nobody is told to write into its `__init__`, which has no lines
    assert found.codes == ("scalar-frozen",)
    assert "in `__post_init__`, ahead of the first capture" in found.failures[0].fix
