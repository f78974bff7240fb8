"""Arguments of a captured call that move between its replays, and modes that a module has only behind all of them."""

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
GUIDED = """
class Sampler:
    def __init__(self):
        self.x, self.y = torch.ones(3, device=device), torch.zeros(3, device=device)
        self.sigmas, self.graph = [0.5, 0.25, 0.125], None
    def step(self, i, guidance):
        BODY
    def __call__(self, guidance):
        for i in range(3):
            if self.graph is None:
                self.graph = cuda.CUDAGraph()
                with cuda.graph(self.graph):
                    self.step(i, guidance)
            self.graph.replay()
        return self.y.clone()
def main():
    sampler = Sampler()
    return [sampler(scale) for scale in (1.0, 2.0, 3.0)]
"""
READ = {
    "self.y.copy_(self.x * self.sigmas[i] * guidance)": (
        "i is",
        "guidance is",
        "`if i not in graphs:`",
        ".fill_(guidance)",
    ),
    "self.y.copy_(self.x * self.sigmas[i])": ("i is", "`if i not in graphs:`"),
    "self.y.copy_(self.x * 2)": (),
    "self.y.copy_(self.x * float(locals()['i']))": ("i is",),  # nobody knows which of them it reads
}
SWITCHED = """
def main():
    x = torch.zeros(2, 6, device=device)
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5)).to(device).requires_grad_(False)
    graph, kept = cuda.CUDAGraph(), []
    with cuda.graph(graph):
        out = model(x)
    for again in range(2):
        graph.replay()
        kept.append(out.clone())
    model.eval()
    for again in range(2):
        graph.replay()
        kept.append(out.clone())
    model.train()
    return kept
"""


@pytest.mark.parametrize("body", READ)
def test_all_arguments_that_move_are_told_and_none_that_the_captured_function_never_reads(
    body: str, tmp_path: Path
) -> None:
    # GIVEN a captured call with two numbers that are others at later replays, of which its function reads some
    names = load(PRELUDE + GUIDED.replace("BODY", body), tmp_path / "program.py")
    # WHEN
    found = [f for f in pgk.diagnose(names["main"]) if f.code == "scalar-frozen"]
    # THEN those that it reads are told at once, with a graph for each of their values together
    assert len(found) == bool(READ[body]), found
    assert all(word in f"{f.message} {f.fix}" for f in found for word in READ[body])
    assert "guidance is" in READ[body] or "locals" in body or all("guidance" not in f.message for f in found)


def test_a_mode_is_told_where_it_is_another_one_with_a_key_that_is_python(tmp_path: Path) -> None:
    # GIVEN a program that replays after eval(), and switches back to train() behind its last replay
    names = load(PRELUDE + SWITCHED, tmp_path / "program.py")
    # WHEN
    frozen = [f for f in pgk.diagnose(names["main"]) if f.code == "branch-frozen"]
    # THEN the way back is no problem, and the layer is named as one writes it
    assert [f.frame.text for f in frozen if f.frame] == ["model.eval()"]
    assert "`if model[1].training not in graphs:`" in frozen[0].fix
