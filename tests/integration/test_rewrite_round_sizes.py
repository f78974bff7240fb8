"""Rounds of a function below the step, whose tensors are of other sizes from step to step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run
from tests.integration.test_own_lines import parts

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

ATTENDS = """\
class Attention(nn.Module):
    def forward(self, q, cache, lengths):
        outs = []
        for i in range(len(lengths)):
            rows = ROWS
            k = cache[rows]
            w = (k @ q[i]).softmax(0)
            y = torch.relu(k * w[:, None]).sum(0)
            outs.append(torch.tanh(y) * 0.5)
        return torch.stack(outs)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
    def forward(self, q, cache, lengths):
        for layer in [self.attention]:
            q = q + layer(q, cache, lengths)
        return q
class Decoder:
    def __init__(self):
        self.model, self.lengths, self.seen = Model().to(device), [3, 3, 3], []
        self.cache = torch.randn(32, 8, device=device)
    @torch.no_grad()
    def step(self, q):
        self.lengths = [n + 1 for n in self.lengths]
        out = self.model(q, self.cache, self.lengths)
        self.seen.append(out.argmax(-1).tolist())
        return out
decoder = Decoder()
args = (torch.randn(3, 8, device=device),)
"""
GROWING, SLIDING = "list(range(lengths[i]))", "[(lengths[i] + j) % 32 for j in range(4)]"
OWN_SIZES = (
    "`forward_round` was given tensors of 6 sizes: each size has a graph of its own, and no two calls had the same: "
    "that pays only where sizes come again in later ones"
)


@pytest.mark.parametrize("rows", [GROWING, SLIDING], ids=["growing", "sliding"])
def test_sizes_that_rounds_of_a_helper_have_from_step_to_step_are_told(rows: str, tmp_path: Path) -> None:
    # GIVEN a decoder whose layers go through rows of a cache, which are more at each step, or as many as ever
    names = run(ATTENDS.replace("ROWS", rows), tmp_path)
    # WHEN a fix is asked for
    found: Any = pgk.diagnose(names["decoder"].step, *names["args"], fix=True)
    # THEN a round is what a graph holds, and where its sizes are others each time that is said
    assert found.fix.alone == "forward_round", found
    assert (OWN_SIZES in found.fix.verified) is (rows is GROWING), found
    # AND lines of the step, which the diff has not, are told to stay
    told = {parts(each.fix)[0]: parts(each.fix)[1] for each in found}
    line = "self.seen.append(out.argmax(-1).tolist())"
    assert told[line] == "stays as it is, beside the part that a graph holds", found
