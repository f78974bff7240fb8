"""Branches that no step has run and that read what grows: they are given what is written, as before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.place_cases import CACHE
from tests.integration.rewritten import lines_of, run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.sweep,
]
STEP = """
@torch.no_grad()
def f(x):
    p, t = cache.pos, x.shape[2]
    cache.k[:, :, p : p + t] = lin(x)
    cache.v[:, :, p : p + t] = x
    cache.pos += t
    k, v = cache.k[:, :, : p + t], cache.v[:, :, : p + t]
    att = x @ k.mT
    {}
    return att.softmax(-1) @ v
"""
PROMPT = """if t > 1:
        seen = torch.ones(t, k.shape[2], dtype=torch.bool, device=device).tril(k.shape[2] - t)
        att = att.masked_fill(~seen, -torch.inf)"""
OTHERWISE = """if t == 1:
        pass
    else:
        causal = torch.full((t, k.shape[2]), -torch.inf, device=device).triu(k.shape[2] - t + 1)
        att = att + causal"""
ROUNDS = """for _ in range(2):
        if t > 1:
            att = att + torch.ones(t, k.shape[2], device=device)"""
IN_ONE_LINE = "att = att + torch.ones(t, k.shape[2], device=device) if t > 1 else att"


@pytest.mark.parametrize("branch", [PROMPT, OTHERWISE], ids=["a branch", "the other way"])
def test_the_prompts_branch_reads_what_is_written(branch: str, tmp_path: Path) -> None:
    # GIVEN a step of one token, with a branch that only a prompt takes
    text, prompt = CACHE + STEP.format(branch), torch.randn(2, 2, 5, 4)
    plain, names = run(text, tmp_path), run(text, tmp_path)
    # WHEN it is rewritten
    found = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN it is one graph, and the branch has the parts of before
    assert found is not None
    assert found.complete, found
    assert any("att, k, v, there = att[..., :n], k[..., :n, :], v[..., :n, :], there[:n]" in n for n in lines_of(found))
    assert "was not tried, and is given what is written, as before" in str(found)
    # AND two prompts one after another give eager's numbers
    with found.applied():
        for _ in range(2):
            given = prompt.to(plain["device"])
            torch.testing.assert_close(names["f"](given).cpu(), plain["f"](given).cpu())


@pytest.mark.parametrize("branch", [ROUNDS, IN_ONE_LINE], ids=["in a loop", "in one line"])
def test_where_a_whole_would_come_back_it_stays(branch: str, tmp_path: Path) -> None:
    # GIVEN a branch that a later round, or the rest of its line, would read once more
    names = run(CACHE + STEP.format(branch), tmp_path)
    # WHEN it is rewritten THEN nothing is read as a whole
    found = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert found is not None
    assert not any("there" in line for line in lines_of(found)), found
