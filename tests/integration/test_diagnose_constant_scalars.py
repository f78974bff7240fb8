"""Numbers in tensors of the CPU: one that nothing moves is right in a graph, and any other is frozen."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
HEAD = "import torch, paramgraph_kit as pgk\ndevice = pgk.device()\nx = torch.ones(3, 4, device=device)\nargs = (x,)\n"
MODULE = """class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        MADE
    def forward(self, x):
        return x * self.scale
    MORE
f = Net()
"""
PLAIN = "HALF = torch.tensor(0.5)\ndef f(x):\n    return x * HALF\n"
ATTRIBUTE = "self.scale = torch.tensor(2.0)"
SETTER = "def set_scale(self, v):\n        self.scale = torch.tensor(v)"
RIGHT = {
    "a constant of the file": PLAIN,
    "an attribute": MODULE.replace("MADE", ATTRIBUTE).replace("MORE", ""),
    "a buffer": MODULE.replace("MADE", "self.register_buffer('scale', torch.tensor(2.0))").replace("MORE", ""),
}
WRONG = {
    "it is filled": PLAIN + "def anneal(v):\n    HALF.fill_(v)\n",
    "it is another one": PLAIN + "def anneal(v):\n    global HALF\n    HALF = torch.tensor(v)\n",
    "a method gives another": MODULE.replace("MADE", ATTRIBUTE).replace("MORE", SETTER),
    "it is written at a place": PLAIN + "def anneal(v):\n    HALF[...] = v\n",
    "it is an argument": "def f(x, t):\n    return x * t\nargs = (x, torch.tensor(0.5))\n",
    "another one is beside it": "HALF = torch.tensor(0.5)\ndef f(x):\n    a = HALF * 2\n    return x * HALF * a\n",
    "it is a variable": "HALF = torch.tensor(0.5)\ndef f(x):\n    a = HALF * 2\n    return x * a\n",
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_constant_is_no_problem(name: str, tmp_path: Path) -> None:
    # GIVEN a number in a tensor of the CPU that no line moves WHEN it is diagnosed THEN nothing is told
    names = load(HEAD + RIGHT[name], tmp_path / "program.py")
    diagnosis = pgk.diagnose(names["f"], *names["args"])
    assert not diagnosis, str(diagnosis)


@pytest.mark.parametrize("name", WRONG)
def test_one_that_may_move_is_told(name: str, tmp_path: Path) -> None:
    # GIVEN one that some line moves, or that nobody knows of WHEN it is diagnosed THEN it is told
    names = load(HEAD + WRONG[name], tmp_path / "program.py")
    diagnosis = pgk.diagnose(names["f"], *names["args"])
    assert diagnosis.codes == ("cpu-scalar-frozen",), str(diagnosis)
