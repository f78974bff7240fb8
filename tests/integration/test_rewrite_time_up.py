"""Where trials of rewritten lines have taken long enough, the fix says what was not tried."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite import conditions, truths
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="what is said of trials is the same on a GPU")
WAITS = """
args = (torch.ones(4, device=device),)
def f(x):
    return x * x.sum().item()
"""


def test_inputs_of_other_kinds_that_were_not_tried_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a line that waits, and no time for inputs of other kinds
    names = run(WAITS, tmp_path)
    monkeypatch.setattr(conditions, "LIMIT_S", 0.0)
    # WHEN a fix is tried THEN it says what it was not run with
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert fix is not None
    assert any("it was not run with inputs as they are, " in each and "negated" in each for each in fix.verified), fix
    # and with time for all, nothing of that
    monkeypatch.undo()
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert fix is not None
    assert not any("long enough" in each for each in fix.verified)


STOPS = """
net, state = nn.GRUCell(6, 8).to(device), {"h": torch.zeros(1, 8, device=device), "silent": 0}
args = (torch.randn(6, device=device),)
@torch.no_grad()
def f(x):
    if (x**2).mean().item() < 0.1:
        state["silent"] += 1
        return -1
    state["h"] = net(torch.log1p(x.abs())[None], state["h"])
    return state["h"].softmax(-1).argmax(-1).item()
"""


def test_ways_that_were_not_begun_in_time_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a step of which a part could be a graph, and no time for more than the first way
    names = run(STOPS, tmp_path)
    for limit in ("LIMIT_S", "FIRST_S", "LEAST_S"):
        monkeypatch.setattr(truths, limit, 0.0)
    # WHEN a fix is tried THEN it ends, and says that there are others
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    assert any("not all was tried: left are" in each for each in found.notes), found
    monkeypatch.undo()
    # and nothing of that where the first one is enough
    names = run(WAITS, tmp_path)
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    assert not any("not all was tried" in each for each in found.notes), found
