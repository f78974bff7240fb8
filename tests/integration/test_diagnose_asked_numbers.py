"""Number arguments of which a test asks, and those that a function takes no more of: what they decide is told."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
HEAD = "import torch, paramgraph_kit as pgk\ndevice = pgk.device()\nx = torch.ones(12, 4, device=device)\n"
GUIDED = """class Sampler:
    until = 8
    def step(self, x, t):
        if TEST:
            x = x * 2
        return x + 1
sampler = Sampler()
def f(x, i): return sampler.step(x, i)
"""
TRAINS = """net = torch.nn.Linear(4, 4).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
seen = {}
def f(epoch, x):
    net(x).square().mean().backward()
    opt.step()
    opt.zero_grad()
    END
"""
RATE = "for g in opt.param_groups: g['lr'] = 0.1 if epoch < 9 * 3 / 10 else 0.02\nargs = (1, x)"
HELD = """class Scaled:
    by = 1.0
    def step(self, epoch, x):
        y = x * self.by
        self.by = 1.0 / (1 + epoch)
        return y
f = Scaled().step
args = (0, x)
"""
STEPPED = """
import math
import numpy as np
RATES = {9: 0.5}
def over(n): return n * n > 900
def f(x, t): return x * (BY)
args = (x, 0)"""
IN_STEPS = {
    "a whole number of epochs": "1.0 + t // 30",
    "every hundredth behind its end": "2.0 if (t + 1) % 100 == 0 else 1.0",
    "a bit": "1.0 if t & 16 else 0.5",
    "a place in a table": "[0.1, 0.2, 0.3, 0.4][t >> 4 & 3]",
    "a rounded fraction": "int(t * 0.3) * 0.2",
    "a rounded one": "math.floor(t / 30) + round(t * 0.01)",
    "an entry of a table": "RATES.get(t, 1.0)",
    "one of few": "2.0 if t in {18, 36} else 1.0",
    "a helper's square": "2.0 if over(t) else 1.0",
    "what divmod gives": "divmod(t, 13)[0]",
    "digits": "len(str(t))",
    "what numpy computes": "float(np.floor(t / 30)) + np.interp(t, [30, 60], [1.0, 0.0])",
    "what begins later": "1.0 + max(t - 33, 0)",
}
TOLD = {
    "a rate that is set behind the step": (TRAINS.replace("END", RATE), "learning-rate"),
    "a number that the next call reads": (HELD, "scalar"),
    "a step is far from where guidance ends": (GUIDED.replace("TEST", "t < self.until") + "args = (x, 40)", "branch"),
    "every hundredth": (GUIDED.replace("TEST", "t % 100 == 99") + "args = (x, 1)", "branch"),
    "a part of the whole, as a number": (GUIDED.replace("TEST", "0.2 < t / 50 < 0.8") + "args = (x, 45)", "branch"),
    "a number with a fraction": (GUIDED.replace("TEST", "t > 0.5") + "args = (x, 0.1)", "branch"),
    "one of few steps": (GUIDED.replace("TEST", "t in (500, 900)") + "args = (x, 1)", "branch"),
    "an entry": (
        GUIDED.replace("TEST", "t['step'] < self.until") + "args = (x, {'step': 40})",
        "branch",
    ),
    "the last of a table": (
        "table = torch.arange(12.0, device=device)\ndef f(x, i): return x * table[i]\nargs = (x, 11)",
        "size",
    ),
    "lengths that come to one whole": (
        "def f(x, lengths): return torch.stack([p.mean(0) for p in x.split(lengths)])\nargs = (x, [3, 4, 5])",
        "size",
    ),
    "an order": ("def f(x, order): return torch.stack([x[each] for each in order])\nargs = (x, [11, 5, 8])", "size"),
}
SOUND = {
    "numbers that nothing of the graph's reads": STEPPED.replace(
        "BY", "1.0 if (t // 30, t & 16, int(t * 0.1)) else 2.0"
    ),
    "what is set behind the step and nobody reads": TRAINS.replace("END", "seen['epoch'] = epoch < 9\nargs = (1, x)"),
    "a test whose ways are one": "def f(x, i):\n    if i < 0: raise ValueError(i)\n    return x + 1\nargs = (x, 3)",
    "a number that is checked": "def f(x, i):\n    assert 0 <= i < 50\n    return x + 1\nargs = (x, 3)",
}


@pytest.mark.parametrize("name", TOLD)
def test_what_a_number_argument_decides_is_told(name: str, tmp_path: Path) -> None:
    # GIVEN a number that others close by go the same way as, or that a function takes no more of WHEN diagnosed
    text, kind = TOLD[name]
    names = load(HEAD + text, tmp_path / "program.py")
    found = pgk.diagnose(names["f"], *names["args"])
    # THEN its line is told
    assert f"{kind}-frozen" in found.codes, str(found)


@pytest.mark.parametrize("name", SOUND)
def test_a_test_that_decides_nothing_of_the_graph_is_none(name: str, tmp_path: Path) -> None:
    # GIVEN a number argument that only checks ask for WHEN diagnosed THEN nothing is told
    names = load(HEAD + SOUND[name], tmp_path / "program.py")
    found = pgk.diagnose(names["f"], *names["args"])
    assert not found, str(found)


@pytest.mark.parametrize("by", IN_STEPS)
def test_a_number_that_many_give_is_told(by: str, tmp_path: Path) -> None:
    # GIVEN a number argument of which those close by give the same WHEN diagnosed
    names = load(HEAD + STEPPED.replace("BY", IN_STEPS[by]), tmp_path / "program.py")
    found = pgk.diagnose(names["f"], *names["args"])
    # THEN what it decides is told all the same
    assert found.codes == ("scalar-frozen",), str(found)
