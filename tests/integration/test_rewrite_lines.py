"""Statements over several lines, with comments in them, are rewritten like those of one line."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite import rewriting
from tests.integration.rewritten import Fixed, lines_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

HEAD = "net = nn.Linear(6, 1).to(device)\nargs = (torch.randn(4, 6, device=device),)\nlog = []\n@torch.no_grad()\n"
SEVERAL = {
    "parted": (
        """
def f(x):
    values = (net(x)  # all of them
              .squeeze(-1)
              .cpu().numpy())
    top = values.max()
    return float(top) * 2
""",
        "return top.detach() * 2",
    ),
    "a choice": (
        """
def f(x):
    y = net(x)
    if (
        y.sum()  # of all
        > 0
    ):
        y = (y
             * 2)
    return y
""",
        "y = torch.where(y.sum() > 0, y * 2, y)",
    ),
    "drawn before": (
        """
def f(x):
    y = net(x) * (random.random()  # another one each time
                  + 1)
    return y
""",
        "y_in.fill_(random.random() + 1)",
    ),
}


@pytest.mark.parametrize("title", SEVERAL)
def test_a_statement_over_several_lines_is_rewritten(fixed: Fixed, title: str) -> None:
    # GIVEN a statement over several lines, with a comment WHEN rewritten
    text, line = SEVERAL[title]
    found = fixed(HEAD + text)
    # THEN it is right
    assert found.complete, found
    assert line in lines_of(found), found


def test_an_end_of_our_own_is_no_failure_of_the_user_s(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a rewrite that ends with an error of its own
    def rewrite(*_: Any, **__: Any) -> Any:
        raise IndexError("of ours")

    monkeypatch.setattr(rewriting, "rewrite", rewrite)
    # WHEN a function is looked at
    found = pgk.diagnose(lambda x: x * x.sum().item(), torch.ones(4, device=pgk.device()), fix=True)
    # THEN what was found is told, and that no rewrite was
    assert found.codes == ("sync-item",)
    assert found.fix is None
    assert "IndexError: of ours" in str(found)
    assert "no rewrite was tried" in str(found)
