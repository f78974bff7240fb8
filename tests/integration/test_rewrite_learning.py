"""What programs that learn to act and to write have: coins whose ratio falls, rows of one number, fetching methods."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")
PARTS = """
net = nn.Linear(4, 3).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
epoch, batches = 0, [(torch.randn(6, 4), torch.randint(0, 3, (6,))) for _ in range(2)]
args = ()
def f():
    global epoch
    for batch in batches:
        x, y = (each.to(device) for each in batch)
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    epoch += 1
"""


def test_a_loop_whose_batch_comes_part_by_part_is_looked_at(tmp_path: Path) -> None:
    # GIVEN a loop in which a generator brings the parts of a batch WHEN it is rewritten THEN that comes to an end
    fix = rewritten(PARTS, tmp_path)
    assert fix.instead or fix.complete or fix.alone, fix
    assert "AttributeError" not in str(fix)
