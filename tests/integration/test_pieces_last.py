"""Pieces that are offered go on to be launched, in sixty calls and with other numbers, or say what that needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from paramgraph_kit.rewrite.proving.proof import NOTHING
from paramgraph_kit.rewrite.result import Rewriting
from paramgraph_kit.verbs import _lasting
from paramgraph_kit.verbs._lasting import LIMIT
from paramgraph_kit.verbs._pieces import in_pieces
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.pieces,
]

MANY = """
w = torch.randn(8, 8, device=device)
past = {"n": 0}
args = (torch.randn(4, 8, device=device), 2)
def f(x, k):
    h = torch.tanh(x @ w)
    n = int((h[:, :3] > 0.0).sum().item())
    past["n"] = n
    for _ in range(n):
        h = torch.tanh(h @ w)
    return h * k
"""


def test_pieces_of_many_numbers_are_offered_with_as_many_graphs(tmp_path: Path) -> None:
    # GIVEN a count that is read, of which each value has a graph of its own: in sixty calls there are more than eight
    names = run(MANY, tmp_path)
    # WHEN it is tried in pieces
    pieces = in_pieces(names["f"], names["args"], {}, Rewriting("f"))
    # THEN what is to be written lets Dynamo make as many, and it says when that pays
    assert pieces.text.startswith(f'{LIMIT}; f = torch.compile(f, backend="paramgraph"), without changing a line')
    assert "what the host decides has many graphs, and without the first line calls would be eager once" in pieces.text


def test_a_number_that_is_compiled_for_each_value_is_told_beside_the_pieces(tmp_path: Path) -> None:
    # GIVEN a function that is given how many rounds it goes: Dynamo unrolls them for each number
    text = MANY.replace("range(n)", "range(k)")
    # WHEN it is tried in pieces, with one number only
    names = run(text, tmp_path)
    pieces = in_pieces(names["f"], names["args"], {}, Rewriting("f"))
    # THEN the number is named with what it needs, and one that is only a factor is not
    assert pieces.text.startswith(f"{LIMIT}; f = torch.compile(")
    assert "each other `k` has graphs of its own, and without the first line calls would be eager" in pieces.text
    names = run(MANY.replace("range(n)", "range(2)"), tmp_path)
    pieces = in_pieces(names["f"], names["args"], {}, Rewriting("f"))
    assert pieces.text.startswith("f = torch.compile(")


def test_pieces_that_no_number_of_graphs_is_enough_for_are_not_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a count that grows for ever, by one in each third call, and decides how many rounds there are
    text = MANY.replace(
        "    for _ in range(n)", "    past['all'] = past.get('all', 0) + n % 2\n    for _ in range(past['all'])"
    )
    names = run(text, tmp_path)
    monkeypatch.setattr("paramgraph_kit.verbs._lasting.SETTLING_S", 1.0)
    # WHEN / THEN some calls later all would be eager: nothing is promised
    assert not in_pieces(names["f"], names["args"], {}, Rewriting("f"))


APART = """
parts = nn.ModuleList(nn.Linear(4, 4) for _ in range(MANY)).to(device)
seen = []
args = (torch.randn(5, 4, device=device),)
def part(x, k):
    y = parts[k](x)
    if y.abs().sum() > 0:
        seen.append(k)
        y = y * (k + 1)
    return y.relu() + x
def f(x):
    del seen[:]
    for k in range(MANY):
        x = part(x, k)
    return x
"""


@pytest.mark.parametrize(("many", "given_up"), [(4, False), (12, True)])
def test_a_function_of_which_no_more_graphs_are_made_is_told_beside_the_pieces(
    many: int, given_up: bool, tmp_path: Path
) -> None:
    # GIVEN a function that one call runs with as many numbers, of which each has graphs of its own
    names = run(APART.replace("MANY", str(many)), tmp_path)
    # WHEN it is tried in pieces
    text = in_pieces(names["f"], names["args"], {}, Rewriting("f")).text
    # THEN it is said that the rest of them are eager, and what gives them graphs, where they are too many
    assert text.startswith('f = torch.compile(f, backend="paramgraph"), without changing a line'), text
    assert ("of `part` torch.compile makes 8 graphs and no more" in text) is given_up, text
    assert (f"`{LIMIT}` ahead of that line" in text) is given_up, text


@pytest.mark.parametrize("each", [True, False], ids=["each call compiles", "the first does"])
def test_calls_that_compile_so_slowly_that_time_is_over_go_on_compiling(
    each: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a step of which a call takes seconds, as it compiles for another rate each time: two are seen in time
    calls: list[int] = []

    class Slowly:
        def launched(self, call: Any, _: object) -> None:
            for _ in range(12):
                call()

    made: Any = Slowly()
    monkeypatch.setattr(_lasting, "compiled_graphs", lambda: calls if each else calls[:1])
    monkeypatch.setattr(_lasting, "worked_s", lambda: 1.6 * len(calls))
    # WHEN it is asked whether it goes on THEN as it did, and is eager once there are eight graphs
    grown, _ = _lasting._grown(lambda: calls.append(0), made, NOTHING)
    assert (sum(grown) > _lasting.MOST_LATE) is each
