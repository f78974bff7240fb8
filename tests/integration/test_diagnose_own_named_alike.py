"""Lines that give a table of tables other tensors, and lists of functions that never run, which have the same name."""

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
import torch
from torch import nn
import paramgraph_kit as pgk
cuda, device = pgk.cuda, pgk.device()

class Model:
    def __init__(self):
        torch.manual_seed(0)
        self.net = nn.Linear(4, 4).to(device)
        self.x = torch.zeros(2, 4, device=device)
        self.caches = self.fresh()
        with torch.no_grad():
            self.forward()
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.y = self.forward()

    def fresh(self):
        return MADE

    def forward(self):
        y = self.net(self.x)
        for pair in TABLES:
            pair[PART].add_(y)
            y = y + pair[PART]
        return y

    def begin(self):
        BEGIN

    def step(self, x):
        self.x.copy_(x)
        self.graph.replay()
        return self.y.clone()

def run(model, xs):
    results = []
    for number, x in enumerate(xs):
        if number % 2 == 0:
            model.begin()
        results.append(model.step(x))
    return results
"""
LISTS = ("[(torch.zeros(2, 4, device=device), None) for _ in range(2)]", "self.caches", "0")
NAMED = ("{n: {'k': torch.zeros(2, 4, device=device)} for n in range(2)}", "self.caches.values()", "'k'")
IN_PLACE = (
    "for held, new in [(held, new) for held_0, new_0 in zip(self.caches, self.fresh()) "
    "for held, new in zip(held_0[:1], new_0)]: held.copy_(new)"
)


@pytest.mark.parametrize("form", [LISTS, NAMED], ids=["lists", "named"])
def test_a_line_that_gives_tables_in_a_table_other_tensors_is_told_there(
    form: tuple[str, str, str], tmp_path: Path
) -> None:
    # GIVEN caches of several layers, which are made anew
    text = HEAD.replace("BEGIN", "self.caches = self.fresh()")
    for name, value in zip(("MADE", "TABLES", "PART"), form, strict=True):
        text = text.replace(name, value)
    names = load(text, tmp_path / "program.py")
    # WHEN
    found = pgk.diagnose(names["run"], names["Model"](), [torch.ones(2, 4, device=pgk.device())] * 4)
    # THEN the line that makes them anew is told, with what writes them in place
    told = [(f.code, f.frame.text) for f in found.failures if f.frame is not None]
    assert told == [("stale-input", "self.caches = self.fresh()")], found
    assert "held.copy_(new)" in found.failures[0].fix
    assert (".values()" in found.failures[0].fix) == (form is NAMED)


def test_what_writes_them_in_place_is_right(tmp_path: Path) -> None:
    # GIVEN the same, written in place
    text = HEAD.replace("BEGIN", IN_PLACE)
    for name, value in zip(("MADE", "TABLES", "PART"), LISTS, strict=True):
        text = text.replace(name, value)
    names = load(text, tmp_path / "program.py")
    # WHEN / THEN
    found = pgk.diagnose(names["run"], names["Model"](), [torch.ones(2, 4, device=pgk.device())] * 4)
    assert not found.failures, found


def test_a_list_of_the_same_name_in_a_function_that_never_runs_is_not_told(tmp_path: Path) -> None:
    # GIVEN a sampler that keeps its state as it is and gives the list back, and an eager one with such a list
    names = load(SAMPLER, tmp_path / "program.py")
    # WHEN
    found = pgk.diagnose(names["serve"], names["Sampler"](), [torch.ones(2, 4, device=pgk.device())] * 2)
    # THEN only the line that keeps it is told
    assert [f.frame.text for f in found.failures if f.frame is not None] == ["trail.append(x)"], found


SAMPLER = """
import torch
from torch import nn
import paramgraph_kit as pgk
cuda, device = pgk.cuda, pgk.device()

class Sampler:
    def __init__(self):
        torch.manual_seed(0)
        self.net = nn.Linear(4, 4).to(device)
        self.x = torch.zeros(2, 4, device=device)
        with torch.no_grad():
            self.net(self.x)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.y = self.net(self.x)

    @torch.no_grad()
    def sample(self, noise):
        x = self.x
        x.copy_(noise)
        trail = []
        for _ in range(3):
            self.graph.replay()
            x.add_(self.y, alpha=0.1)
            trail.append(x)
        return x.clone(), trail

def serve(sampler, noises):
    results = []
    for noise in noises:
        image, trail = sampler.sample(noise)
        results += [image, torch.stack(trail).std()]
    return results

def eager(net, noise):
    x, trail = noise, []
    for _ in range(3):
        x = x + 0.1 * net(x)
        trail.append(x.clone())
    return x, trail
"""
