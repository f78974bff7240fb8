"""Fixes of a state that a step is handed as a dictionary, and whose entries it exchanges."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import Fixed, lines_of, run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

ARGS = """
w = torch.randn(4, 4, device=device)
args = ({"x": torch.zeros(4, device=device), "n": torch.ones(4, device=device)}, torch.ones(4, device=device))
"""
STEPS = {
    "by a name": (
        """
def f(state, y):
    h = torch.tanh(state["x"] @ w + y)
    state["x"] = h
    return h.sum()
""",
        ['state["x"].copy_(h)'],
    ),
    "beside a value that is read": (
        """
def f(state, y):
    h = torch.tanh(state["x"] @ w + y)
    state["x"] = h
    return h, (h > 5).all().item()
""",
        ['state["x"].copy_(h)', "return h, (h > 5).all().detach()"],
    ),
    "where it is read": (
        """
def f(state, y):
    state["x"] = torch.tanh(state["x"] @ w + y)
    return state["x"].sum()
""",
        ['state["x"].copy_(torch.tanh(state["x"] @ w + y))'],
    ),
    "two of them": (
        """
def f(state, y):
    h = torch.tanh(state["x"] @ w + y)
    n = state["n"] + h.abs()
    state["x"], state["n"] = h, n
    return h / n
""",
        ['state["x"].copy_(h)', 'state["n"].copy_(n)'],
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_an_entry_that_a_step_exchanges_in_what_it_is_handed_is_written_in_place(name: str, fixed: Fixed) -> None:
    # GIVEN a step that gives an entry of a dictionary, which is its argument, another tensor
    text, expected = STEPS[name]
    # WHEN it is rewritten
    found = fixed(ARGS + text)
    # THEN that is written where a graph reads it, and tried
    assert found.complete, found
    for line in expected:
        assert line in lines_of(found), found
    assert "two runs from one state" not in str(found)


def test_what_a_trial_has_put_into_an_argument_is_gone_behind_it(tmp_path: Path) -> None:
    # GIVEN a step that exchanges an entry and appends to a list of what it is handed
    names = run(
        ARGS
        + """
args[0]["log"] = []
def f(state, y):
    h = torch.tanh(state["x"] @ w + y)
    state["x"] = h
    state["log"].append(h.sum().item())
    return h
""",
        tmp_path,
    )
    state = names["args"][0]
    held = state["x"]
    # WHEN the doctor tries a rewrite
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN two runs agree, and the caller's dictionary is as it was
    assert "two runs from one state" not in str(found)
    assert state["x"] is held
    assert not held.any()
    assert state["log"] == []


def test_a_dictionary_that_the_step_makes_itself_is_no_state(tmp_path: Path) -> None:
    # GIVEN a step that works on a copy of what it is handed
    text = """
def f(state, y):
    state = dict(state)
    h = torch.tanh(state["x"] @ w + y)
    state["x"] = h
    return h.sum()
"""
    names = run(ARGS + text, tmp_path)
    # WHEN it is looked at
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN nothing is to be mended: the caller's tensors stay
    assert not found.failures, found


def test_what_grows_in_an_argument_grows_in_its_trial(tmp_path: Path) -> None:
    # GIVEN a step whose entry gets longer with each call, and is not given a fresh one
    text = """
def f(state, y):
    kept = torch.cat([state["x"], y[:2]])
    state["x"] = kept
    return kept.tanh().exp().sum() * 2 + y
"""
    names = run(ARGS + text, tmp_path)
    # WHEN a fix is looked for
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN no graph of one length is said to be verified
    assert found.fix is not None
    assert not found.fix.complete, found
    assert "replays of one graph give" not in str(found)


def test_what_grows_behind_another_order_of_its_rows_is_written_in_its_room(tmp_path: Path) -> None:
    # GIVEN a step that joins to the rows of a tensor in another order, as a beam search does
    text = """
args = ({"x": torch.randn(4, device=device), "all": torch.zeros(4, 1, device=device)}, torch.ones(4, device=device))
w = torch.randn(4, 4, device=device)
def f(state, y):
    order = state["x"].argsort()
    state["all"] = torch.cat([state["all"][order], y[:, None]], dim=1)
    state["x"] = torch.tanh(state["x"] @ w + y)
    return state["x"].sum()
"""
    names = run(text, tmp_path)
    # WHEN it is told what to do
    told = str(pgk.diagnose(names["f"], *names["args"], fix=True))
    # THEN nothing is written into the copy that an index makes
    assert 'state["all"].copy_(state["all"][order])' in told, told
    assert 'state["all"].index_copy_(1, at + torch.arange(' in told
    assert 'state["all"][order][:, filled' not in told
