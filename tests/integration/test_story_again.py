"""A story told again, as a cell runs again, says the same: what its trials change of the user's objects is put back."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load, seed

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device")
Program = Callable[[str], dict[str, Any]]
OPTIMIZERS = ("Adam", "Adagrad", "SGD")
OTHERS = ("AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "ASGD", "Rprop")  # which count as Adam does
TEXT = """
net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
opt = torch.optim.{}(net.parameters(), lr=1e-3)
losses = []
def step(x):
    opt.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    opt.step()
    losses.append(loss.item())
    return loss.detach()
args = (torch.randn(4, 8, device=device),)
for _ in range(2):
    step(*args)
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """Runs a program from a file of its own; returns its names."""
    yield lambda text: load(PRELUDE + text, tmp_path / "program.py")
    pgk.diagnose.repair()


def kept(optimizer: Any) -> list[Any]:
    """What an optimizer holds: the very tensors, where they are and what is in them, and its options."""
    states = [
        (name, id(value), str(value.device), value.tolist())
        for values in optimizer.state.values()
        for name, value in values.items()
        if isinstance(value, torch.Tensor)
    ]
    options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    return [*states, *options]


def test_problems_stand_in_the_order_of_cells_whatever_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a helper in one cell and its caller in another, whose numbers grow when they run again
    helper = "def helper(x):\n    return x * x.sum().item()\n"
    caller = "def f(x):\n    y = helper(x)\n    return y + x.mean().item()\n"
    names: dict[str, Any] = {}
    told = []
    for numbers in ((2, 13), (20, 31), (9, 10)):
        for number, text in zip(numbers, (helper, caller), strict=True):
            file = f"<ipython-input-{number}-0a1b2c>"
            monkeypatch.setitem(linecache.cache, file, (len(text), None, text.splitlines(keepends=True), file))
            exec(compile(text, file, "exec"), names)
        # WHEN diagnosed THEN what stands first in the notebook is told first
        found = pgk.diagnose(names["f"], torch.ones(4, device=pgk.device()))
        told.append([failure.frame.text for failure in found if failure.frame is not None])
    assert told[0] == told[1] == told[2] == ["return x * x.sum().item()", "return y + x.mean().item()"]


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, *(pytest.param(each, marks=pytest.mark.sweep) for each in OTHERS)])
def test_an_optimizer_that_has_counted_is_left_as_it_was(program: Program, optimizer: str) -> None:
    # GIVEN a step whose optimizer has taken some, and counts them on the host where it does so
    names = program(TEXT.format(optimizer))
    before = kept(names["opt"])
    told = []
    # WHEN its story is told twice
    for _ in range(2):
        seed()
        told.append(pgk.story(names["step"], *names["args"], say=None).lines)
        # THEN the optimizer is what it was, each count where it was
        assert kept(names["opt"]) == before
    # AND both say the same, as many values compared among it
    assert told[0] == told[1]


def test_a_diagnosis_is_the_same_again(program: Program) -> None:
    # GIVEN such a step WHEN it is diagnosed and rewritten twice
    names = program(TEXT.format("Adam"))
    before = kept(names["opt"])
    found = [str(pgk.diagnose(names["step"], *names["args"], fix=True)) for _ in range(2)]
    # THEN nothing of it stays
    assert kept(names["opt"]) == before
    assert found[0] == found[1]


CARRIED = """
class Filter:
    def __init__(self):
        self.x, self.w = torch.randn(8, 4, device=device), torch.full((8,), -2.0, device=device)
    @torch.no_grad()
    def observe(self, z, at):
        self.x = torch.tanh(self.x) + 0.1
        self.w = self.w - 0.5 * ((self.x[:, :2] - z) ** 2).sum(-1)
        self.w = self.w - torch.logsumexp(self.w, 0)
        mean = (self.w.exp()[:, None] * self.x).sum(0)
        if mean.sum() > 9:
            self.x = self.x[torch.linalg.eigvals(self.x[:4]).abs().argsort().repeat(2)]
        return mean
pf = Filter()
f = pf.observe
args = (torch.randn(2, device=device), torch.arange(8, device=device).flip(0))
"""


@pytest.mark.pieces
def test_what_rewritten_lines_write_is_put_back_after_each_way_of_launching(tmp_path: Path) -> None:
    # GIVEN a filter of which some lines are rewritten, to write in place, and others are left
    names = load(PRELUDE + CARRIED, tmp_path / "model.py")
    before = [value.clone() for value in (names["pf"].x, names["pf"].w)]
    # WHEN it is diagnosed, with what it would be in pieces, and its story is told
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    assert found.fix is not None
    assert ".copy_(" in found.fix.diff or found.fix.alone == "observe_part"
    story = pgk.story(names["f"], *names["args"], say=None)
    assert "pieces" in str(story) or found.fix.alone in str(story)
    # THEN its tensors hold what they held
    assert all(torch.equal(a, b) for a, b in zip(before, (names["pf"].x, names["pf"].w), strict=True))
