"""Objects that capture by themselves and that a function returns beside others, asked alone: what loops set of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

STEP = """
class Step:
    def __init__(self, net, scale):
        self.net, self.scale, self.graph = net, scale, None
        self.x = torch.zeros(4, device=device)
    def {method}(self, x):
        self.x.copy_(x)
        if self.graph is None:
            self.net(self.x)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.net(self.x) * self.scale
        self.graph.replay()
        return self.out.clone()
def build():
    torch.manual_seed(0)
    net = nn.Linear(4, 4).to(device)
    {returns}
@torch.no_grad()
def main():
    {names} = build()
    for it in range(5):
        {sets}
        y = {called}(torch.full((4,), float(it), device=device))
made = build()
"""
AS_OBJECT = ("__call__", "return net, Step(net, 0.5)", "net, step")
WRONG = {
    "a number of an object that is called": (*AS_OBJECT, "step.scale = 0.1 * it", "step", "scalar-frozen"),
    "a number, by a variable": (
        *("run", "step = Step(net, scale=0.5); return step, net", "runner, net", "runner.scale = 0.1 * it"),
        *("runner.run", "scalar-frozen"),
    ),
    "memory of what it was made with": (
        *("run", "step = Step(net=net, scale=0.5); return net, step", "model, step"),
        *("model.bias.data = model.bias.data * 0.5", "step.run", "parameter-rebound"),
    ),
    "the same of an object that is called": (
        *(*AS_OBJECT, "net.bias.data = net.bias.data * 0.5", "step"),
        "parameter-rebound",
    ),
}
RIGHT = {
    "memory that is written": (*AS_OBJECT, "net.bias.data.mul_(0.5)", "step"),
    "a number of something else": (*AS_OBJECT, "net.scale = 0.1 * it", "step"),
    "another object of the kind": (*AS_OBJECT, "other = Step(net, 0.1); other.scale = 0.1 * it", "step"),
}


def ask(at: Path, method: str, returns: str, names: str, sets: str, called: str) -> Any:
    text = STEP.format(method=method, returns=returns, names=names, sets=sets, called=called)
    names_there = load(PRELUDE + text, at)
    with torch.no_grad():
        step = next(each for each in names_there["made"] if hasattr(each, "graph"))
        return pgk.diagnose(step if called == "step" else step.run, torch.ones(4, device=names_there["device"]))


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_what_loops_set_of_an_object_returned_beside_others(tmp_path: Path, case: tuple[str, ...]) -> None:
    # GIVEN a function that returns an object which captures, beside what it was made with; two lines call that
    *program, code = case
    # WHEN the object is asked alone
    found = ask(tmp_path / "program.py", *program)
    # THEN what the loop sets is told
    assert [f.code for f in found.failures] == [code]


@pytest.mark.parametrize("case", RIGHT.values(), ids=RIGHT)
def test_nothing_is_told_of_what_no_replay_misses(tmp_path: Path, case: tuple[str, ...]) -> None:
    # GIVEN the same, where the loop sets nothing that the graph has the first of
    # WHEN the object is asked alone
    found = ask(tmp_path / "program.py", *case)
    # THEN there is no problem
    assert not found.failures


INHERITED = ("class Step:\n    def __init__(self, net, scale):", "class Base:\n    def __init__(self, net, scale):")
FIELDS = """@dataclasses.dataclass
class Step:
    net: nn.Module
    scale: float
    graph: object = None
    x: torch.Tensor = dataclasses.field(default_factory=lambda: torch.zeros(4, device=device))
"""


@pytest.mark.parametrize("made", ["inherited", "fields"])
def test_what_an_object_keeps_by_a_class_that_it_is_made_of_or_by_its_fields(tmp_path: Path, made: str) -> None:
    # GIVEN the same, where a base class, or a dataclass, keeps the net, of which the loop exchanges memory
    net, names, sets = (
        "step = Step(net, 0.5); return net, step",
        "model, step",
        "model.bias.data = model.bias.data * 0.5",
    )
    text = STEP.format(method="run", returns=net, names=names, sets=sets, called="step.run")
    if made == "inherited":
        text = text.replace(*INHERITED).replace("    def run", "class Step(Base):\n    def run")
    else:
        text = "import dataclasses\n" + FIELDS + text[text.index("    def run") :]
    names_there = load(PRELUDE + text, tmp_path / "program.py")
    # WHEN asked alone
    with torch.no_grad():
        step = next(each for each in names_there["made"] if hasattr(each, "graph"))
        found = pgk.diagnose(step.run, torch.ones(4, device=names_there["device"]))
    # THEN
    assert [f.code for f in found.failures] == ["parameter-rebound"]
