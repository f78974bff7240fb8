"""Results that are read behind a further call of what replays a graph: the first of them is the second by then."""

from __future__ import annotations

import re
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
PROGRAM = """
from dataclasses import dataclass
@dataclass
class Out:
    y: torch.Tensor
class Runner:
    def __init__(self, net, give):
        self.net, self.give, self.graph = net, give, None
    def __call__(self, x):
        if self.graph is None:
            self.x = x.clone()
            self.net(self.x)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.y = self.net(self.x)
        self.x.copy_(x)
        self.graph.replay()
        return self.give(self.y)
net = nn.Linear(4, 4).to(device).requires_grad_(False)
one, pair, obj = (Runner(net, give) for give in (GIVE, lambda y: (y, 0), Out))
x = torch.randn(3, 4).to(device)
def cond(x):
    return one(x)
def uncond(x):
    return one(-x)
def mix(c, u):
    return c - u
def launch(graph):
    graph.replay()
def setup():
    at = x.clone()
    net(at)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        out = net(at)
    launch(graph)
    return graph, at, out
class Guide:
    def step(self, x):
        self.c = pair(x)[0]
        self.u = pair(-x)[0]
        return self.c - self.u
guide = Guide()
def step(x):
BODY
"""
READ_ON = {
    "c = pair(x)[0]\nu = pair(-x)[0]\nreturn c - u": "c = pair(x)[0].clone()",
    "c = obj(x).y\nu = obj(-x).y\nreturn c - u": "c = obj(x).y.clone()",
    "c = obj(x)\nu = obj(-x)\nreturn c.y - u.y": "c = obj(x); c = copy.deepcopy(c)",
    "c = one(x)[:, :2]\nu = one(-x)[:, 2:]\nreturn c - u": "c = one(x)[:, :2].clone()",
    "c = one(x).view(-1)\nu = one(-x)\nreturn c[0] - u": "c = one(x).view(-1).clone()",
    "c = cond(x)\nu = uncond(x)\nreturn c - u": "c = cond(x).clone()",
    "c: torch.Tensor = one(x)\nu = one(-x)\nreturn c - u": "c: torch.Tensor = one(x).clone()",
    "if (c := one(x)) is not None:\n    u = one(-x)\nreturn c - u": "(c := one(x).clone())",
    "c, u = pair(x)[0], pair(-x)[0]\nreturn c - u": "c, u = (pair(x)[0].clone(), pair(-x)[0])",
    "d = {'c': one(x), 'u': one(-x)}\nreturn d['c'] - d['u']": "d = {'c': one(x).clone(), 'u': one(-x)}",
    "return guide.step(x)": "self.c = pair(x)[0].clone()",
    "return one(x) - one(-x)": "return one(x).clone() - one(-x)",
    "return pair(x)[0] * (1 - pair(-x)[0])": "return pair(x)[0].clone() * (1 - pair(-x)[0])",
    "return mix(one(x), one(-x))": "return mix(one(x).clone(), one(-x))",
    "return mix(u=one(-x), c=one(x))": "return mix(u=one(-x).clone(), c=one(x))",
    "return torch.lerp(one(-x), one(x), 1.5)": "return torch.lerp(one(-x).clone(), one(x), 1.5)",
    "return one(x).add(one(-x))": "return one(x).clone().add(one(-x))",
    "return one(x) > one(-x)": "return one(x).clone() > one(-x)",
    "c = one(x)\nc -= one(-x)\nreturn c": "c = one(x).clone()",
    "c = one(x)\nfor i in range(3):\n    c = c + one(i * x)\nreturn c": "c = one(x).clone()",
}
RIGHT = (
    "return 2 * one(x) - one(-x)",
    "return one(one(x))",
    "return one(x) - obj(-x).y",
    "c = one(x)[:, :2] * 1\nu = one(-x)\nreturn c, u",
    "c = one(x)\ny = x + c\nz = one(y)\nreturn y + z",
    "c = 0\nfor i in range(3):\n    c += one(i * x)\nreturn c",
    "c = one(x)\nc = c * c - c\nreturn c - one(-x)",
    "graph, at, y = setup()\nfor i in range(3):\n    at.copy_(i * x)\n    launch(graph)\n    x = x + y.sum()\nreturn x",
)


def _failures(tmp_path: Path, body: str, give: str = "lambda y: y") -> list[str]:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    text = PROGRAM.replace("BODY\n", lines).replace("GIVE", give)
    names = load(f"{PRELUDE}{text}", tmp_path / "program.py")
    told = pgk.diagnose(names["step"], names["x"])
    return [f"{each.code}: {each.fix}" for each in told.failures]


@pytest.mark.parametrize(("body", "after"), READ_ON.items(), ids=READ_ON)
def test_a_result_that_is_read_behind_a_further_replay_is_told(tmp_path: Path, body: str, after: str) -> None:
    # GIVEN a step that calls what replays a graph again while it holds a result of it WHEN diagnosed
    told = _failures(tmp_path, body)
    # THEN the line that holds it is told, with a copy of it
    assert [each.rpartition("after   ")[2] for each in told] == [after], told
    assert told[0].startswith("output-alias"), told


@pytest.mark.parametrize("body", RIGHT)
def test_a_result_that_is_read_ahead_of_a_further_replay_is_none(tmp_path: Path, body: str) -> None:
    # GIVEN a step that computes on a result before the next replay, or reads what is there by then WHEN diagnosed
    # THEN nothing is told
    assert not _failures(tmp_path, body)


@pytest.mark.parametrize("body", [each for each in READ_ON if not re.search("pair|obj|guide", each)])
def test_a_result_of_its_own_is_none(tmp_path: Path, body: str) -> None:
    # GIVEN what gives copies of what its graph writes WHEN diagnosed THEN nothing is told, whatever reads them
    assert not _failures(tmp_path, body, "lambda y: y.clone()")
