"""Tensors of the device that a line fetches anew: told at that line, and fetched before each launch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")
HEAD = """
import itertools, queue
net = nn.Linear(4, 2).to(device)
data = [torch.randn(3, 4).to(device) for _ in range(12)]
pairs = [(each, each[:, :2]) for each in data]
"""
PROGRAMS = {
    "a list's iterator": """
args = (iter(data),)
def f(it):
    x = next(it)
    return net(x).sum()
""",
    "pairs in turn": """
args = (itertools.cycle(pairs),)
def f(it):
    x, y = next(it)
    return (net(x) * y).sum()
""",
    "a dictionary's parts": """
args = (iter([{"x": x, "y": y} for x, y in pairs]),)
def f(it):
    batch = next(it)
    x = batch["x"]
    y = batch["y"]
    return (net(x) * y).sum()
""",
    "a place": """
args = (iter([torch.randint(3, (2,)).to(device) for _ in range(12)]),)
def f(it):
    x = next(it)
    return net(data[0])[x].sum()
""",
    "a queue": """
q = queue.Queue()
for each in data * 10:
    q.put(each)
args = (q,)
def f(q):
    x = q.get()
    return net(x).sum()
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_fetch_is_told_at_its_line_and_goes_before_the_launch(name: str, tmp_path: Path) -> None:
    # GIVEN a step that takes its batch, which is on the device, out of something of the host's
    names = run(HEAD + PROGRAMS[name], tmp_path)
    # WHEN
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN it is told where it is fetched, and a diff that holds fetches it before each launch
    told = [f.frame.text for f in found if f.code == "stale-input" and f.frame is not None]
    assert len(told) == 1
    assert "next(it)" in told[0] or "q.get()" in told[0]
    assert found.fix is not None
    assert "before_f(" in found.fix.diff
    assert found.fix.complete
    assert any("replays of one graph give eager's results" in line for line in found.fix.verified)


def test_an_iterator_of_a_list_is_where_it_was_behind_a_diagnosis(tmp_path: Path) -> None:
    # GIVEN an iterator with fewer batches than a diagnosis asks for
    names = run(HEAD + PROGRAMS["a list's iterator"], tmp_path)
    (it,) = names["args"]
    next(it)
    # WHEN
    pgk.diagnose(names["f"], it, fix=True)
    # THEN it gives the next of its batches, and all behind that
    assert next(it) is names["data"][1]
    assert len([*it]) == len(names["data"]) - 2


def test_a_key_that_is_fetched_is_no_tensor(tmp_path: Path) -> None:
    # GIVEN weights that are chosen by a name from an iterator WHEN diagnosed
    program = """
weights = {"en": torch.randn(4, 3).to(device), "de": torch.randn(4, 3).to(device)}
names = itertools.cycle(weights)
args = (torch.ones(2, 4, device=device),)
def f(x):
    name = next(names)
    return x @ weights[name]
"""
    names = run(HEAD + program, tmp_path)
    found = pgk.diagnose(names["f"], *names["args"])
    # THEN the tensor is told at the line that reads it, and no name becomes one
    stale = [f for f in found if f.code == "stale-input"]
    assert [f.frame.text for f in stale if f.frame] == ["return x @ weights[name]"]
    assert "name_in" not in str(found)


@pytest.mark.parametrize("fix", [False, True])
def test_what_is_taken_out_of_a_table_by_a_counter_is_never_written_over_an_entry_of_it(
    fix: bool, tmp_path: Path
) -> None:
    # GIVEN a step that takes tables in turn, in a helper that something else keeps from a diff
    program = """
class Turns:
    n = 0
    def __init__(self):
        self.best, self.tables = 1.0, [torch.full((4,), float(k)).to(device) for k in range(3)]
    def table(self, x):
        held = self.tables[Turns.n % len(self.tables)]
        Turns.n += 1
        return x * held
    def step(self, x):
        y = self.table(x)
        self.best = max(self.best, y.sum().item())
        return y, self.best
turns = Turns()
args = (torch.ones(4).to(device),)
"""
    names = run(HEAD + program, tmp_path)
    # WHEN diagnosed
    found = pgk.diagnose(names["turns"].step, *names["args"], fix=fix)
    # THEN the entry is copied before each launch to a tensor that stays, and nothing is copied over it
    told = [f.fix for f in found if f.code == "stale-input" and f.frame and "self.tables[" in f.frame.text]
    assert len(told) == 1
    text = "self.tables[Turns.n % len(self.tables)]"
    assert f"once `tables_in = {text}.clone()`, before each launch `tables_in.copy_({text})`" in told[0]
    assert "held.copy_(new)" not in str(found)
