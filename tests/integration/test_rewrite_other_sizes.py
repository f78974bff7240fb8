"""What the host makes of the ids that a step is given may be of other sizes with other ids: no tensor of one size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there other ids than those given are not tried")

SAMPLED = """\
import numpy as np
class Table:
    def __init__(self, n=40):
        rng = np.random.default_rng(0)
        self.near = {i: rng.choice(n, size=rng.integers(LEAST, 6), replace=False) for i in range(n)}
        self.feats = torch.randn(n, 8)
    def around(self, ids, most):
        src, dst = [], []
        for row, node in enumerate(ids):
            for other in self.near[int(node)][:most]:
                src.append(int(other))
                dst.append(row)
        return np.array(src), np.array(dst)
class Service:
    def __init__(self):
        self.table, self.net = Table(), nn.Linear(8, 8).to(device)
    @torch.no_grad()
    def predict(self, nodes):
        ids = nodes.cpu().numpy()
        src, dst = self.table.around(ids, 3)
        x = self.table.feats[ids].to(device)
        y = self.table.feats[src].to(device)
        out = torch.zeros(len(nodes), 8, device=device).index_add_(0, torch.from_numpy(dst).to(device), self.net(y))
        return F.relu(self.net(x) + out).softmax(-1)
service = Service()
args = ((torch.randperm(40)[:6]).to(device),)
"""


@pytest.mark.parametrize("least", [1, 3])
def test_what_ids_decide_the_size_of_is_copied_into_no_tensor_of_one_size(least: int, tmp_path: Path) -> None:
    # GIVEN neighbours of the ids that a step is given: fewer for some, or as many for each
    names = run(SAMPLED.replace("LEAST", str(least)), tmp_path)
    # WHEN a fix is asked for
    found: Any = pgk.diagnose(names["service"].predict, *names["args"], fix=True)
    # THEN their rows are copied into a tensor that stays only where there are as many in each call
    assert ("y_in.copy_(" in found.fix.diff) is (least == 3), found
    assert found.fix.complete is (least == 3), found
