"""Fixes of picks that are written as calls: ``torch.masked_select(x, mask)``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import lines_of, rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

TAGS = """\
net = nn.Linear(4, 3).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
hits = 0.0
args = (torch.randn(6, 4, device=device), torch.randint(0, 3, (6,), device=device), torch.arange(6, device=device) < 4)

def f(x, y, mask):
    global hits
    scores = net(x)
    found = torch.masked_select(scores.argmax(-1), mask)
    right = y.masked_select(mask)
    hits += (found == right).float().mean().item()
    opt.zero_grad()
    F.cross_entropy(scores, y).backward()
    opt.step()
"""


def test_what_a_call_selects_is_weighed_by_its_mask_behind_the_launch(tmp_path: Path) -> None:
    # GIVEN a share of right answers at the active positions, picked by calls WHEN the step is rewritten
    fix = rewritten(TAGS, tmp_path)
    # THEN all answers come out of the launch, and it is whole
    assert fix.complete, fix
    assert any("found = scores.argmax(-1)" in line for line in lines_of(fix)), fix


def test_a_mask_of_fewer_directions_selects_as_before(tmp_path: Path) -> None:
    # GIVEN a mask that the call spreads over the classes, as an index would not WHEN the step is rewritten
    text = TAGS.replace("torch.masked_select(scores.argmax(-1), mask)", "torch.masked_select(scores, mask[:, None])")
    text = text.replace("(found == right).float()", "(found.view(-1, 3).argmax(-1) == right).float()")
    fix = rewritten(text, tmp_path)
    # THEN the call stays
    assert not any("scores[mask[:, None]]" in line for line in lines_of(fix)), fix
