"""Parameters that a later step freezes: pieces are not offered of lines that keep their gradients where they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.pieces,
    pytest.mark.sweep,
]

TEXT = """\
import types
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(device)
opt = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01, capturable=True)
S = types.SimpleNamespace(n=0)
def f(x, target):
    S.n += 1
    n = S.n
    loss = F.mse_loss(net(x), target)
    loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=True)
    if n == 7:
        for p in net[0].parameters():
            FREEZES
    return loss.detach()
args = (torch.randn(8, 6, device=device), torch.randn(8, 3, device=device))
"""


@pytest.mark.parametrize("freezes", ["p.requires_grad_(False)", "p.requires_grad = False"])
def test_lines_that_keep_gradients_are_no_pieces_where_parameters_are_frozen(freezes: str, tmp_path: Path) -> None:
    # GIVEN a step whose seventh call freezes a layer, which no trial comes to
    names = run(TEXT.replace("FREEZES", freezes), tmp_path)
    # WHEN it is diagnosed with fix=True
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN what is offered changes no line: with gradients of zeros, and decay, the optimizer would move that layer
    assert not fix.complete
    assert "with these lines" not in fix.pieces


def test_a_step_that_freezes_nothing_keeps_its_gradients(tmp_path: Path) -> None:
    # GIVEN the same step, which does nothing of the kind in its seventh call
    names = run(TEXT.replace("FREEZES", "p.seen = True"), tmp_path)
    # WHEN it is diagnosed with fix=True THEN it is one graph
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert fix.complete, fix
