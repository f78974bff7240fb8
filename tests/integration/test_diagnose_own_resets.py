"""States that a method makes anew between requests."""

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
RESET = """
class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.key = nn.Linear(4, 4)
        self.reset()
    def reset(self):
        self.pos = torch.zeros(1, dtype=torch.long, device=device)
    def forward(self, x):
        self.pos += 1
        return self.key(x) / self.pos
def f():
    with torch.no_grad():
        dec, x, outs = Decoder().to(device), torch.zeros(1, 4, device=device), []
        dec(x)
        cuda.synchronize()
        g = cuda.CUDAGraph()
        with cuda.graph(g):
            y = dec(x)
        for i in range(3):
            dec.reset()
            x.fill_(i)
            g.replay()
            outs.append(y.clone())
        return torch.stack(outs)
args = ()
"""


def test_a_count_that_goes_on_in_place_is_made_by_its_reset_alone(tmp_path: Path) -> None:
    # GIVEN a method that `__init__` calls, too, and a forward pass that counts on in place
    names = run(RESET, tmp_path)
    # WHEN
    (failure,) = pgk.diagnose(names["f"]).failures
    # THEN the first call makes it, as there is nothing to write to
    assert failure.code == "stale-input"
    assert "if hasattr(self, 'pos'): self.pos.copy_(" in failure.fix
