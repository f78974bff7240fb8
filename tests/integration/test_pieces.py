"""Where no rewrite makes one graph of a function, it is compiled and tried: what that brings is said if proved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.backend.registry import compiled_graphs
from tests.integration.rewritten import rewritten, run
from tests.programs.running import differences, eager, load

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

ASKS = """
import bisect
limits, names = [-9.0, 0.9, 9.0], ["low", "usual", "high", "higher"]
args = (torch.randn(8, 4, device=device),)
def f(x):
    h = x * 2
    kind = names[bisect.bisect(limits, h.mean().item())]
    if kind.startswith("high"):
        h = h / 2
    h = h.relu() + 1
    kind = names[bisect.bisect(limits, h.mean().item())]
    if kind.startswith("high"):
        h = h / 3
    return h.sin() - 1
"""


def test_a_function_of_the_hosts_decisions_is_launched_in_pieces(tmp_path: Path) -> None:
    # GIVEN a function that the host decides in twice, so that no part is half of it
    # WHEN a fix is asked for
    fix = rewritten(ASKS, tmp_path)
    assert not fix.complete
    text = str(fix)
    # THEN what compiling it brings is said, with what to write, how much is launched, and where it is cut
    assert 'pieces   f = torch.compile(f, backend="paramgraph"), without changing a line: eager\'s results' in text
    assert "3 launches with 8 kernels in the last" in text
    assert "what the host does between them stays (program.py:" in text
    # AND that is true
    truth, names = eager(run(ASKS, tmp_path), "f"), run(ASKS, tmp_path)
    names["f"] = torch.compile(names["f"], backend="paramgraph")
    assert not differences(truth, eager(names, "f"), set())


def test_nothing_of_the_trial_stays(tmp_path: Path) -> None:
    # GIVEN what is compiled in this process
    before = {graph.order for graph in compiled_graphs()}
    # WHEN a function is tried in pieces
    names = run(ASKS, tmp_path)
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert fix.pieces
    # THEN no graph is left, and a report of it knows of none
    assert {graph.order for graph in compiled_graphs()} <= before
    assert not pgk.report(names["f"]).rows


def test_a_function_that_is_compiled_anew_at_each_step_is_not_offered(tmp_path: Path) -> None:
    # GIVEN one that Dynamo compiles for each length of a list
    text = ASKS.replace("def f(x):", "past = []\ndef f(x):\n    past.append(0)\n    x = x.roll(len(past), 0)")
    # WHEN / THEN pieces of it would be captured, and never launched: nothing is promised
    fix = rewritten(text, tmp_path)
    assert not fix.complete
    assert not fix.pieces


def test_a_trial_ends_once_it_can_prove_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a function that is cut, of which each call is counted
    calls: list[int] = []
    compiling = torch.compile

    def counted(function: Any, **options: Any) -> Any:
        compiled = compiling(function, **options)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls[-1] += 1
            return compiled(*args, **kwargs)  # type: ignore[no-untyped-call]

        call._torchdynamo_orig_callable = function  # type: ignore[attr-defined]
        calls.append(0)
        return call

    monkeypatch.setattr(torch, "compile", counted)
    # WHEN there is time THEN it is tried for six steps
    assert rewritten(ASKS, tmp_path).pieces
    assert calls == [6]
    # AND when there is none, not for more than one, and nothing is promised
    calls.clear()
    monkeypatch.setattr("paramgraph_kit.verbs._pieces.LIMIT_S", 0.0)
    assert not rewritten(ASKS, tmp_path).pieces
    assert set(calls) == {1}


def test_a_function_that_is_one_graph_is_not_cut(tmp_path: Path) -> None:
    # GIVEN / WHEN a fix is whole
    fix = rewritten("args = (torch.ones(4, device=device),)\ndef f(x):\n    return x * x.sum().item()\n", tmp_path)
    # THEN nothing else is said
    assert fix.complete
    assert not fix.pieces


def test_a_story_that_stops_says_what_can_be_launched_till_then(tmp_path: Path) -> None:
    # GIVEN the same function
    names = run(ASKS, tmp_path)
    # WHEN / THEN
    story = pgk.story(names["f"], *names["args"], say=None)
    assert story.stopped.endswith("; till then it can be launched in pieces, as said")
    assert 'torch.compile(f, backend="paramgraph")' in str(story)


EPOCH = """
import torch
import paramgraph_kit as pgk
device = pgk.device()
model = torch.nn.Linear(8, 4).to(device)
opt = torch.optim.Adam(model.parameters())
data = torch.utils.data.DataLoader([(torch.randn(8), i % 4) for i in range(12)], batch_size=4)
running = 0.0
args = ()
def epoch():
    global running
    for x, y in data:
        x, y = x.to(device), y.to(device)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        running += loss.item()
    print("mine")
"""


def test_what_the_function_prints_is_seen_once_and_not_between_the_lines_of_a_story(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a function that prints, of which one round can be launched
    names = load(EPOCH, tmp_path / "program.py")
    # WHEN it is diagnosed, which tries more than one thing THEN its own words are there once
    found = pgk.diagnose(names["epoch"], fix=True)
    assert found.fix is not None
    assert found.fix.alone
    assert capsys.readouterr().out == "mine\n"
    # AND a story has its own lines alone
    pgk.story(names["epoch"], say=None)
    assert capsys.readouterr().out == ""
