"""What is written for captured training steps: whose gradients, scales and optimizers are others at a replay."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.programs.reading import read
from tests.programs.running import diagnosed

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAMS = read(Path(__file__).parents[1] / "programs" / "own_graphs" / "fiftysecond_own1.txt")
WORDS = {
    "two micro batches": "`p.grad = torch.zeros_like(p) if p.grad is None else p.grad` for each",
    "graphs of two sizes": "g.grads): p.grad = grad`",
    "state of an optimizer loaded": "[opt.state[p][k].copy_(v) for k, v in saved_opt['state'].get(n, {}).items()",
    "whose scale the capture makes": "once ahead of the capture, on a tensor of the device: scaler.scale(",
    "two graphs of one pool": "with cuda.graph(self.gg): a pool of its own for each",
    "another one uses and zeroes": "ahead of self.g_upd.replay()",
    "graphed module": "`for p in net.parameters(): p.grad = torch.zeros_like(p) if p.grad is None else p.grad`",
    "casts of weights": "dtype=torch.float16, cache_enabled=False): each replay casts again",
    "made anew behind the capture": "and, behind it, a new capture: no replay steps with another optimizer",
    "host reads in a capture": "`scaler.unscale_(opt)`, `nn.utils.clip_grad_norm_(net.parameters(), 1.0)`",
}


@pytest.mark.parametrize("title", WORDS)
def test_the_words_are_the_lines_that_bring_it_to_the_graph(title: str, tmp_path: Path) -> None:
    # GIVEN a program whose replays compute, or step, with something else than eager code would
    # WHEN it is diagnosed
    found = diagnosed(PROGRAMS, title, tmp_path / "program.py")
    # THEN what is written for it works when it is followed
    assert WORDS[title] in found.failures[0].fix, found.failures[0].fix
