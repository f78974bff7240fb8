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
TABLE = """class Sampler:
    def __init__(self):
        self.alphas, self.steps = torch.linspace(0.1, 0.9, 10), [9, 6, 3]
    def sample(self, x):
        alphas = self.alphas
        for i, t in enumerate(self.steps):
            a = alphas[t]
            x = LINE
        return x
    MORE
sampler = Sampler()
def f(x): return sampler.sample(x)
"""
OF_TABLE = TABLE.replace("LINE", "(x - (1 - a).sqrt() * torch.tanh(x)) / a.sqrt()")
RIGHT = {
    "a table's, through variables, in a loop over settings": OF_TABLE.replace("MORE", ""),
    "a table's at a place": "TABLE = torch.linspace(0, 1, 5)\ndef f(x):\n    return x * TABLE[3]\n",
    "a model is given it, as a lambda has it": """class Net(torch.nn.Module):
    def forward(self, x, sigma): return x * (sigma ** 2 + 1).sqrt()
net, sigmas = Net(), torch.linspace(1, 0.1, 4)
def rate(s): return s.log()
def f(x):
    t_of = lambda s: s.log().neg()
    for i in range(len(sigmas) - 1):
        h = t_of(sigmas[i + 1]) - t_of(sigmas[i])
        x = rate(sigmas[i + 1]) * net(x, sigmas[i]) - (-h).expm1() * x
    return x
""",
    "a variable computed of it": "HALF = torch.tensor(0.5)\ndef f(x):\n    a = HALF * 2\n    return x * HALF * a\n",
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
    "a table that a method writes": OF_TABLE.replace("MORE", "def warm(self, v): self.alphas[3] = v"),
    "settings that a method exchanges": OF_TABLE.replace("MORE", "def set_steps(self, steps): self.steps = steps"),
    "an argument picks": "TABLE = torch.linspace(0, 1, 5)\ndef f(x, t):\n    a = TABLE[3] * t\n    return x * a\n"
    "args = (x, torch.tensor(0.5))\n",
    "another function writes it by another name": "class S:\n    a = torch.linspace(0, 1, 5)\ns = S()\ndef f(x):\n"
    "    return x * s.a[3]\ndef warm():\n    a = s.a\n    a[3] = 1\n",
    "an argument that is handed on": "def scaled(x, t): return x * t\ndef f(x, t):\n    return scaled(x, t)\n"
    "args = (x, torch.tensor(0.5))\n",
    "a function gives what an argument is": "def rate(t): return t.sqrt()\ndef f(x, t):\n    return x * rate(t)\n"
    "args = (x, torch.tensor(0.5))\n",
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
