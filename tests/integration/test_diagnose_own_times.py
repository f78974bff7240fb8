"""A time that moves on behind each replay, read in a capture: it goes into a tensor, as it never comes twice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
FIELD = """
class Field:
    def __init__(self):
        self.u = torch.linspace(0, 1, 8, device=device)
        self.v, self.t, self.dt = self.u * 0.5, 0.1, 0.15
        self.graph = cuda.CUDAGraph()
    def work(self):
        self.u.mul_(0.9)
        WORK
    def begin(self):
        kept = self.u.clone()
        self.work()
        with cuda.graph(self.graph):
            self.work()
        self.u.copy_(kept)
    def advance(self, graphed):
        self.graph.replay() if graphed else self.work()
        self.t += self.dt
        return self.u.sum()
def main(graphed=True):
    field = Field()
    if graphed:
        field.begin()
    return torch.stack([field.advance(graphed).clone() for _ in range(5)]), field.u.clone()
"""
EACH, PAIR = re.compile(r"`([^`]*)`"), re.compile(r"`([^`]*)` for `([^`]*)`")


@pytest.mark.parametrize(
    "work",
    [
        "self.u[0].fill_(math.sin(2 * math.pi * self.t))",
        "self.u[:2] = math.sin(2 * math.pi * self.t)",
        "self.u[1:3] += self.t",
        "self.u.masked_fill_(self.u > 0.5, self.t)",
        "self.u.add_(self.v, alpha=math.cos(self.t))",
        "self.u.sub_(self.v + 1, alpha=self.t)",
        "self.u.clamp_(max=self.t)",
        "self.u.add_(float(self.t))",
        "edge = math.exp(-self.t)\n        self.u[-1:] = edge",
        "self.u.addcmul_(self.v, self.v, value=self.t)",
        "self.u.add_(torch.full_like(self.u, self.t))",
        "self.u.add_(torch.full((8,), self.t, device=device))",
        "self.u.addcdiv_(self.v, self.v + 1, value=-self.t)",
        "self.u.copy_(torch.full_like(self.u, 2 * self.t) + self.v)",
    ],
)
def test_a_time_goes_into_a_tensor_that_is_filled_ahead_of_each_replay(work: str, tmp_path: Path) -> None:
    # GIVEN a program whose captured lines read a time
    text = FIELD.replace("WORK", work)
    main = run(text, tmp_path)["main"]
    # WHEN it is diagnosed
    (told,) = [f for f in pgk.diagnose(main).failures if f.code == "scalar-frozen"]
    # THEN no graph is asked for each of its values, and what is told gives what it gives without a graph
    assert "graphs" not in told.fix, told.fix
    made, _, rest = told.fix.partition(", what is captured reads ")
    made = made.rpartition("`__init__` ")[2]
    read, _, filled = rest.partition("ahead of self.graph.replay()")
    body = text[text.index("    def work") : text.index("    def begin")]
    mended = body
    for new, old in reversed(PAIR.findall(read)):
        assert old in mended, (old, mended)
        mended = re.sub(rf"{re.escape(old)}(?! =)", new, mended)
    text = text.replace(body, mended)
    start = "        self.graph = cuda.CUDAGraph()\n"
    text = text.replace(start, start + "".join(f"        {line}\n" for line in EACH.findall(made)))
    start = "    def advance(self, graphed):\n"
    text = text.replace(start, start + "".join(f"        {line}\n" for line in EACH.findall(filled)[:1]))
    (tmp_path / "mended").mkdir()
    for ours, eager in zip(run(text, tmp_path / "mended")["main"](), main(graphed=False), strict=True):
        assert torch.allclose(ours, eager)


@pytest.mark.parametrize(
    "work", ["self.u.add_(F.softplus(self.v, self.t))", "self.u.copy_(F.leaky_relu(self.v - 0.2, self.t))"]
)
def test_no_graph_is_asked_for_each_value_of_what_moves_on_at_each_launch(work: str, tmp_path: Path) -> None:
    # GIVEN a time that goes where torch takes a number alone
    main = run(FIELD.replace("WORK", work), tmp_path)["main"]
    # WHEN it is diagnosed
    (told,) = [f for f in pgk.diagnose(main).failures if f.code == "scalar-frozen"]
    # THEN a tensor is told, and that what takes only a number is written out with it
    assert "no value comes twice" in told.fix
    assert "self.t_in.fill_(self.t)" in told.fix


def test_a_place_that_moves_on_is_told_as_an_index_of_the_device(tmp_path: Path) -> None:
    # GIVEN a step that picks from a list of numbers, and from a tensor
    text = FIELD.replace(
        "self.t, self.dt = self.u * 0.5, 0.1, 0.15", "self.t, self.dt = torch.eye(8, device=device), 0, 1"
    )
    text = text.replace("WORK", "self.u.mul_([0.9, 0.8, 0.7, 0.6, 0.5][self.t]).add_(self.v[self.t] * 0.5)")
    main = run(text, tmp_path)["main"]
    # WHEN it is diagnosed
    (told,) = [f for f in pgk.diagnose(main).failures if f.code == "scalar-frozen"]
    # THEN no graph is asked for each, and the index is a whole number
    assert "graphs[" not in told.fix
    assert "float(" not in told.fix
    assert "self.t_in.fill_(self.t)" in told.fix
