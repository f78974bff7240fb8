"""What a shorter input leaves of whole numbers is filled with the pad that the program's own tables have."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
TOWER = """
class Tower:
    def __init__(self):
        self.items, self.graph = nn.Embedding(6, 3, padding_idx=0).to(device), None
        self.hist = torch.zeros(1, 6, dtype=torch.long, device=device)
    def __call__(self, ids):
        LINES
        if self.graph is None:
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph), torch.no_grad():
                self.out = self.items(self.hist).sum(1)
        self.graph.replay()
        return self.out.clone()
tower = Tower()
def f(batches):
    return torch.stack([tower(each) for each in batches])
args = ([torch.tensor([1, 2, 3, 4], device=device), torch.tensor([3, 1], device=device)],)
"""
LINE = "self.hist[:, :len(ids)] = ids"


def _told(text: str, folder: Path) -> list[str]:
    names = run(text, folder)
    return [f.fix for f in pgk.diagnose(names["f"], *names["args"]) if f.code == "size-frozen"]


def test_the_pad_of_a_program_s_own_table_is_told(tmp_path: Path) -> None:
    # GIVEN a graph that reads histories, of which 0 is the pad, and a shorter one leaves the end of a longer one
    # WHEN it is diagnosed
    told = _told(TOWER.replace("LINES", LINE), tmp_path)

    # THEN what is left gets that pad, and no other one is asked for; so it is right
    assert len(told) == 1
    assert f"self.hist.fill_(0); {LINE}: 0 is the padding_idx of line" in told[0]
    assert "one more row" not in told[0]
    assert not _told(TOWER.replace("LINES", f"self.hist.fill_(0); {LINE}"), tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("change", [("padding_idx=0", "sparse=False"), ("([1, 2, 3, 4]", "([1, 0, 3, 4]")])
def test_a_number_that_is_no_pad_fills_nothing(change: tuple[str, str], tmp_path: Path) -> None:
    # GIVEN the same with a table that has no pad, or with 0 among what is looked up
    # WHEN it is diagnosed
    told = _told(TOWER.replace("LINES", LINE).replace(*change), tmp_path)

    # THEN a pad is asked for, and 0 is said to be a number only where it came
    assert "with a `pad` that counts for nothing" in told[0]
    assert ("as 0 is one of its numbers" in told[0]) == ("[1, 0," in change[1])
