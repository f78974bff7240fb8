"""Lines that a diff has moved, or does not touch, are told so; pieces that change no line come first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.own_lines import PLAIN, in_own_lines
from tests.integration.rewritten import run
from tests.integration.test_own_lines import parts

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

GATHERED = """
net = nn.Linear(4, 3).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
class Count:
    n, total = 0, 0.0
count = Count()
args = (torch.randn(6, 4, device=device),)
def f(x):
    loss = net(x).pow(2).mean()
    loss.backward()
    count.total += loss.item()
    count.n += 1
    if count.n % 4 == 0:
        opt.step()
        opt.zero_grad()
    return loss.detach()
"""


def test_a_branch_that_moved_is_told_to_have_moved_though_a_line_in_it_is_another(tmp_path: Path) -> None:
    # GIVEN gradients that gather, and a branch behind the launch in which they are zeroed in place
    names = run(GATHERED, tmp_path)
    # WHEN a fix is asked for
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN the branch is told where it is, as the lines around it
    assert found.fix is not None
    assert "opt.zero_grad(set_to_none=False)" in found.fix.diff
    told = {parts(failure.fix)[0]: parts(failure.fix)[1] for failure in found}
    assert told["if count.n % 4 == 0:"] == "the same behind each launch, in `after_f`, as in the diff"


def test_lines_of_a_diff_are_told_beside_pieces_that_change_no_line(tmp_path: Path) -> None:
    # GIVEN a diff that is not all of it, and pieces that were proved of the lines as they are
    names = run(GATHERED, tmp_path)
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    assert found.fix is not None
    pieces = f'net.compile(backend="paramgraph"), {PLAIN} of f: 6 steps'
    whole: Any = found.fix
    fix = replace(whole, complete=False, pieces=pieces)
    # WHEN
    told = in_own_lines(names["f"], names["args"], {}, list(found), fix=fix)
    # THEN what is proved comes first at each line, and the diff's words are of one graph
    assert all(parts(each.fix)[1].startswith("stays as it is in pieces, ") for each in told)
