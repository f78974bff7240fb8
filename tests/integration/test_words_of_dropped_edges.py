"""Words for edges that a mask leaves out in a helper, or ahead of a model that a loss is computed of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run
from tests.integration.test_own_lines import parts
from tests.programs.running import captured, differences, eager

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

GRAPH = """\
class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2 = nn.Linear(5, 8), nn.Linear(8, 3)
    def propagate(self, x, edge_index):
        src, dst = edge_index
        return torch.zeros_like(x).index_add_(0, dst, x[src])
    def forward(self, x, edge_index):
        return self.propagate(self.l2(F.relu(self.propagate(self.l1(x), edge_index))), edge_index)
def drop_edges(edge_index, w):
    mask = w > 0.3
    return edge_index[:, mask]
model = GCN().to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
edges = torch.randint(0, 10, (2, 40), device=device)
args = (torch.randn(10, 5, device=device), torch.randint(0, 3, (10,), device=device), torch.rand(40, device=device))
def f(x, y, w):
    DROPPED
    opt.zero_grad()
    loss = F.cross_entropy(model(x, ei), y)
    loss.backward()
    opt.step()
    return loss.detach()
"""
CALLED = "ei = drop_edges(edges, w)"
INLINE = "keep = w > 0.3\n    ei = edges[:, keep]"


@pytest.mark.parametrize("dropped", [CALLED, pytest.param(INLINE, marks=pytest.mark.sweep)])
def test_edges_that_are_left_out_are_given_to_a_node_of_their_own(dropped: str, tmp_path: Path) -> None:
    # GIVEN a graph network's step that leaves out edges, also in a helper
    text = GRAPH.replace("DROPPED", dropped)
    truth, names = eager(run(text, tmp_path), "f"), run(text, tmp_path)
    # WHEN it is diagnosed, and the words are followed to the letter
    (told,) = (each for each in pgk.diagnose(names["f"], *names["args"]) if each.code == "dynamic-shape")
    words = parts(told.fix)[1]
    assert told.frame is not None
    head = re.search(r"in place of line \d+ write (.+?)(?:; `drop_edges` takes|; and in line)", words)
    cut = re.search(r"in line \d+ `(.+?)` for `(.+?)`", words)
    assert head is not None, words
    assert cut is not None, words
    here = re.search(r"here `(.+?)`;", words)
    lines = "\n    ".join(re.findall(r"`(.+?)`", head[1]))
    new = text.replace(dropped.rpartition("    ")[2], lines).replace(cut[2], cut[1])
    if here is not None:
        new = new.replace(told.frame.text.strip(), here[1]).replace("(edge_index, w)", "(edge_index, w, n_nodes)")
    # THEN one graph has eager's numbers, with other edges left out in each step
    assert not differences(truth, captured(run(new, tmp_path), "f"), set()), new


@pytest.mark.sweep
def test_a_line_that_picks_twice_is_not_told_to_be_two_lines(tmp_path: Path) -> None:
    # GIVEN edges and their weights that one line leaves out
    text = GRAPH.replace("DROPPED", "keep = w > 0.3\n    ei, kept = edges[:, keep], w[keep]\n    x = x * kept.sum()")
    names = run(text, tmp_path)
    # WHEN it is diagnosed THEN no word picks by the mask as before
    told = [parts(e.fix)[1] for e in pgk.diagnose(names["f"], *names["args"]) if e.code == "dynamic-shape"]
    assert told
    assert not any("w[keep]" in each for each in told), told
