"""Objects that a step hands to functions of the user's: what these read of them, and lines around the step set."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
PROGRAM = """
import torch, paramgraph_kit as pgk
from functools import partial
device = pgk.device()
class Config:
    def __init__(self): self.gain, self.seen = 1.0, 0
def scaled(c, x): return x * c.gain
def within(x, *, conf): return scaled(conf, x) + 1
def picked(table, x): return x * table["gain"]
def measured(m, x): return scaled(m.config, x)
def mixed(net, x): return net(x) + 1
def summed(m, x): return sum(part * x for part in m.parts)
def noted(m, x):
    m.seen.append(1.0)
    return x + 1
class Step:
    def __init__(self):
        self.config, self.other, self.table = Config(), Config(), {"gain": 2.0, "seen": 0}
        self.net = torch.nn.Sequential(torch.nn.BatchNorm1d(4)).to(device)
        self.parts, self.seen = [1.0, 2.0], [0.0]
    def __call__(self, x):
        return CALL
step, x = Step(), torch.ones(2, 4, device=device)
f = ASKED
def main():
    for k in range(4):
        step(x)
        SETS
"""
CALLS = {
    "by place": ("scaled(self.config, x)", "step.config.gain = 0.5 * k", "c.gain"),
    "by a keyword, and further": ("within(x, conf=self.config)", "step.config.gain = 0.5 * k", "c.gain"),
    "a dictionary": ("picked(self.table, x)", "step.table['gain'] = 0.5 * k", "table['gain']"),
    "the object itself": ("measured(self, x)", "step.config.gain = 0.5 * k", "c.gain"),
    "a list of numbers": ("summed(self, x)", "step.parts = [0.5 * k, 1.0]", "m.parts"),
    "a module": ("mixed(self.net, x)", "step.net.train(k < 2)", "net[0].training"),
}


def _asked(call: str, sets: str, tmp_path: Path, asked: str = "step") -> pgk.Diagnosis:
    text = PROGRAM.replace("CALL", call).replace("SETS", sets).replace("ASKED", asked)
    names = load(text, tmp_path / "program.py")
    return pgk.diagnose(names["f"], names["x"])


@pytest.mark.parametrize("name", CALLS)
def test_what_is_set_of_a_handed_object_is_told_where_it_is_read(name: str, tmp_path: Path) -> None:
    # GIVEN a step that hands an object to a function, which reads what the loop around the step sets
    call, sets, read = CALLS[name]
    # WHEN it is diagnosed THEN it is told by the function's name of it, with the line that sets it
    told = [f.message for f in _asked(call, sets, tmp_path)]
    assert len(told) == 1, told
    assert f"{read} is set between calls, at" in told[0]
    assert sets in told[0]


@pytest.mark.parametrize("asked", ["partial(measured, step)", "partial(partial(within, conf=step.config))"])
def test_what_a_partial_has_bound_is_looked_at_like_an_argument(asked: str, tmp_path: Path) -> None:
    # GIVEN a function asked alone with an object bound to it, as a captured part is
    call = "measured(self, within(x, conf=self.config))"
    # WHEN it is diagnosed THEN what the loop sets of the object is told
    told = [f.message for f in _asked(call, "step.config.gain = 0.5 * k", tmp_path, asked)]
    assert len(told) == 1, told
    assert "c.gain is set between calls, at" in told[0]


@pytest.mark.parametrize(
    ("call", "sets"),
    [
        ("scaled(self.config, x)", "step.other.gain = 0.5 * k"),
        ("scaled(self.config, x)", "step.config.seen = k"),
        ("picked(self.table, x)", "step.table['seen'] = k"),
        ("mixed(self.net, x)", "step.net.eval(); step.net.train()"),
        ("noted(self, x)", "step.seen = [0.0]"),
    ],
)
def test_what_the_function_does_not_read_is_not_told(call: str, sets: str, tmp_path: Path) -> None:
    # GIVEN lines that set another object, or what no function of the step reads WHEN diagnosed THEN no line says so
    assert not [f for f in _asked(call, sets, tmp_path) if "set between" in f.message]
