"""Steps that run behind their launch for the most part: what is done again there, what stays, and what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import Fixed, lines_of, run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")


def test_what_a_loop_counts_is_handed_over_and_not_begun_again(fixed: Fixed) -> None:
    # GIVEN tokens of a draft of which as many are accepted as agree: none, some and all, from step to step
    found = fixed("""
args = (torch.zeros(1, 4, dtype=torch.long, device=device), torch.zeros(1, 4, dtype=torch.long, device=device))
accepted = 0
def feed(i):
    picked = torch.zeros(1, 4, dtype=torch.long)
    picked[0, i % 5:] = 1
    return args[0], picked.to(device)
@torch.no_grad()
def f(draft, picked):
    global accepted
    n = 0
    for i in range(4):
        if picked[0, i].item() != draft[0, i].item():
            break
        n += 1
    accepted += n
    return torch.cat([draft[:, :n], picked[:, n:n + 1]], 1).sum()
""")
    # WHEN rewritten THEN the count goes from the graph to what comes behind it (ten steps are compared)
    assert found.complete, found
    assert "n = 0" not in lines_of(found)
    assert "n = torch.where(done, n, n + 1)" in lines_of(found)


def test_where_most_of_a_step_runs_behind_it_that_is_said(fixed: Fixed) -> None:
    # GIVEN values each once, in a step that Dynamo would compile anew each time
    text = """
args = (torch.randn(8, device=device),)
kept = []
@torch.no_grad()
def f(x):
    h = x.sin()
    u = torch.unique(h.round())
    kept.append(u.roll(len(kept), 0).sum().item() + len(kept))
    u = torch.cat([u, u[u > 0]]).roll(len(kept), 0)
    u = u * len(kept) + u.sum()
    return u.numel() + len(kept)
"""
    # WHEN rewritten, and nothing brings more THEN it is whole, and how little is in its graph is said
    found = fixed(text)
    assert found.complete, found
    assert "operations of a step are in the graph, the others run behind it" in str(found)
    assert "it may be no faster" in str(found)
    assert "for more " in str(found)
    assert not found.left


def test_what_a_step_has_kept_is_as_it_was_after_pieces_of_it_were_tried(tmp_path: Path) -> None:
    # GIVEN a step that keeps numbers, where no rewrite is whole, so that it is tried in pieces
    text = """
args = (torch.randn(8, 4, device=device),)
load = []
def f(x):
    h = (x * 2 + 1).sin()
    load.append(h.sum().item())
    u = torch.unique(h.round())
    return u.sum() * torch.svd(h).S[0] + u.numel()
"""
    names = run(text, tmp_path)
    # WHEN diagnosed
    found: Any = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN the list is empty
    assert found.fix is not None
    assert names["load"] == []
