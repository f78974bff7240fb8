"""What is written for a number whose object has other names where the capture, or the replay, stands."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE, read
from tests.programs.running import diagnosed, load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAMS = read(Path(__file__).parents[1] / "programs" / "own_graphs" / "fortyninth_own.txt")
WORDS = {
    "a graph for each batch size": "after   at the end of `__init__` `self.task_in = torch.zeros(1",
    "by a name of its own": "ahead of g.replay() `dec.pos_in.fill_(dec.pos)`",
    "compared with draws": "self.eps = torch.full((), float(self.eps), device='sim'); "
    "here: self.eps.fill_(max(0.05, self.eps * 0.9))",
}
ANNEALED = """
def main():
    net, x, max_norm = nn.Linear(8, 2).to(device), torch.randn(4, 8, device=device), 1.0
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    def step():
        opt.zero_grad(set_to_none=True)
        net(x).square().mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), max_norm)
        opt.step()
    step()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        step()
    for i in range(4):
        max_norm = 1.0 / (1 + i)
        x.normal_()
        g.replay()
    return x.sum().item()
"""


@pytest.mark.parametrize("title", WORDS)
def test_words_have_the_names_and_the_places_of_the_lines_where_they_are_written(title: str, tmp_path: Path) -> None:
    # GIVEN a number that a capture reads through an object, and that moves between its replays
    # WHEN
    found = diagnosed(PROGRAMS, title, tmp_path / "program.py")
    # THEN the words can be written as they are: once for all graphs, by the names there, in the order of the lines
    assert WORDS[title] in found.failure.fix
    assert not found.failure.fix.endswith("0.9)), ahead of self.g.replay()")


def test_a_norm_that_is_annealed_is_a_tensor_in_lines_that_clip_without_asking_it(tmp_path: Path) -> None:
    # GIVEN a captured step whose norm of gradients is another one at each replay
    names = load(f"{PRELUDE}{ANNEALED}", tmp_path / "program.py")
    # WHEN
    fix = pgk.diagnose(names["main"]).failure.fix
    # THEN a tensor has it, and what asks a tensor for its number is not among the lines
    assert "`max_norm_in = torch.full((), float(max_norm), device='sim')`" in fix
    assert "p.grad.mul_((max_norm_in / (norm + 1e-6)).clamp(max=1.0))" in fix
    assert (
        "for `nn.utils.clip_grad_norm_(net.parameters(), max_norm)`, and ahead of g.replay() `max_norm_in.fill_" in fix
    )
