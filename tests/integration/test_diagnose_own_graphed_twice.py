"""One graphed callable that is called twice ahead of its backward passes: told, with words that hold for any module."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")
TWICE = """
net = nn.Linear(4, 3).to(device)
net(torch.ones(2, 4, device=device)).sum().backward()
net.zero_grad()
graphed = pgk.cuda.make_graphed_callables(net, (torch.ones(2, 4, device=device),))
args = (torch.ones(2, 4, device=device), torch.zeros(2, 4, device=device))
def f(x, y):
    a = graphed(x)
    b = graphed(y)
    loss = (a * b).sum()
    loss.backward()
    return loss.detach()
"""


def test_the_words_put_both_calls_in_one_module(tmp_path: Path) -> None:
    # GIVEN a loss of two calls of one graphed module WHEN it is examined
    names = run("import paramgraph_kit as pgk\n" + TWICE, tmp_path)
    found = pgk.diagnose(names["f"], *names["args"])
    # THEN no word puts both inputs in one batch, whose statistics a normalization would take together
    told = " ".join(failure.fix for failure in found)
    assert "return module(a), module(b)" in told
    assert "torch.cat" not in told
