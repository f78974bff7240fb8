"""An entry of the table of inputs that no call fills, where what is captured has the table by another name, too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
BATCHES = """
def batches():
    torch.manual_seed(0)
    for _ in range(5):
        made = {"obs": torch.randn(4, 3), "ret": torch.randn(4), "weight": torch.rand(4)}
        yield {k: v.to(device) for k, v in made.items()}
"""
CLOSED = (
    BATCHES
    + """\
KEYS = ("obs", "ret")
def loss_of(net, batch):
    return ((net(batch["obs"]).squeeze(-1) - batch["ret"]) * batch["weight"]).pow(2).mean()
def make(net, example):
    static = {k: v.clone() for k, v in example.items()}
    def body():
        return loss_of(net, static)
    body()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        loss = body()
    def update(batch):
        for k in FED:
            static[k].copy_(batch[k])
        graph.replay()
        return loss.clone()
    return update
@torch.no_grad()
def main():
    net = nn.Linear(3, 1).to(device)
    update = make(net, next(batches()))
    return [update(each).cpu() for each in batches()]
"""
)
HELD = (
    BATCHES
    + """\
class Update:
    def __init__(self, net, example):
        self.net = net
        self.static = {k: v.clone() for k, v in example.items()}
        self.loss_of(self.static)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.loss = self.loss_of(self.static)
    def loss_of(self, batch):
        return ((self.net(batch["obs"]).squeeze(-1) - batch["ret"]) * batch["weight"]).pow(2).mean()
    def __call__(self, batch):
        for k in FED:
            self.static[k].copy_(batch[k])
        self.graph.replay()
        return self.loss.clone()
KEYS = ("obs", "ret")
@torch.no_grad()
def main():
    update = Update(nn.Linear(3, 1).to(device), next(batches()))
    return [update(each).cpu() for each in batches()]
"""
)


@pytest.mark.parametrize(("program", "path"), [(CLOSED, "static"), (HELD, "self.static")])
def test_an_entry_that_no_call_fills_is_told_by_the_name_that_it_has_there(
    program: str, path: str, tmp_path: Path
) -> None:
    # GIVEN a table of inputs of which calls fill all but one, and a function that knows the table as its own argument
    names = load(PRELUDE + program.replace("FED", "KEYS"), tmp_path / "program.py")
    # WHEN the program is asked
    found = pgk.diagnose(names["main"]).failures
    # THEN the one is told with the copy that it needs
    (told,) = found
    assert told.code == "stale-input"
    line = told.fix.partition("\nafter   ")[2]
    assert line.startswith(f"{path}['weight'].copy_(batch['weight']); ")
    # AND nothing is where it has that, or all of them are filled
    _, _, replay = line.rpartition("; ")
    mended = PRELUDE + program.replace("FED", "KEYS").replace(f"        {replay}\n", f"        {line}\n")
    assert not pgk.diagnose(load(mended, tmp_path / "mended.py")["main"]).failures
    filled = PRELUDE + program.replace("FED", 'KEYS + ("weight",)')
    assert not pgk.diagnose(load(filled, tmp_path / "filled.py")["main"]).failures
