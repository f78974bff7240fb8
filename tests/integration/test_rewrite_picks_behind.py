"""Picks of another size at each step: those that only a log reads are made behind the launch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.rewrite.result import Rewriting
from paramgraph_kit.rewrite.rewriting import _is_cut_by_tensors
from tests.integration.rewritten import lines_of, rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

STEP = """\
net = nn.Linear(3, 2).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
log = []
args = (torch.randn(4, 3, device=device), torch.tensor([True, False, True, True], device=device))

def f(x, done):
    each = net(x).pow(2).mean(1)
    ended = each[done]
    log.append(tuple(ended.tolist()))
    loss = LOSS
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
"""


def test_a_pick_that_only_a_log_reads_is_made_behind_the_launch(tmp_path: Path) -> None:
    # GIVEN rows that a mask picks for a log alone WHEN rewritten
    fix = rewritten(STEP.replace("LOSS", "each.mean()"), tmp_path)
    # THEN the step is one graph, and the pick stands ahead of the log, behind the launch
    assert fix.complete, fix
    lines = lines_of(fix)
    assert "    ended = each[done]" in fix.diff
    assert lines.index("ended = each[done]") + 1 == lines.index("log.append(tuple(ended.tolist()))"), fix


def test_a_pick_that_a_loss_is_made_of_stays(tmp_path: Path) -> None:
    # GIVEN the same rows, which a loss is made of as well WHEN rewritten
    fix = rewritten(STEP.replace("LOSS", "ended.exp().cumsum(0).mean()"), tmp_path)
    # THEN nothing that trains has moved with them
    assert not fix.complete
    assert "+    ended = each[done]" not in fix.diff


def test_a_length_of_what_trains_stays_a_number() -> None:
    # GIVEN lines that have made a tensor of a length, at which a launch would wait
    made, length = Rewriting("f"), BY_ID["size-frozen"].failure("slice got 4 in one call and 6 in the next", None)
    made.left = [BY_ID["tensor-bound"].failure("a slice is bounded by a tensor", None)]
    rate = BY_ID["learning-rate-frozen"].failure("lr goes from 0.1 to 0.2 in one call", None)
    # WHEN a step trains THEN they are not what else is done comes to, and they are in one that decodes
    assert _is_cut_by_tensors(made, [length, rate])
    assert not _is_cut_by_tensors(made, [length])
    # AND where the step itself had such a tensor, nothing is new
    assert not _is_cut_by_tensors(made, [length, rate, *made.left])
