"""Samples of ``make_graphed_callables`` that are the program's data, too, which each call writes over."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
TRAINED = """
class Learner:
    def __init__(self, net, rows):
        self.net, self.opt = net, torch.optim.SGD(net.parameters(), lr=0.1)
        KEEP
        AHEAD
        self.forward = cuda.make_graphed_callables(net, (SAMPLE,))
    def step(self, x):
        self.opt.zero_grad()
        loss = self.forward(x).square().mean()
        loss.backward()
        self.opt.step()
        return loss.detach()
    def once(self):
        return torch.stack([self.step(x) for x, _ in self.rows])
def data():
    return [(torch.full((3, 4), 1.0 + i, device=device), i) for i in range(3)]
def made():
    torch.manual_seed(0)
    rows = data()
    return Learner(nn.Linear(4, 2).to(device), rows)
def f():
    torch.manual_seed(0)
    rows = data()
    learner = Learner(nn.Linear(4, 2).to(device), rows)
    ROUNDS
alone = made()
"""
EPOCHS = "return torch.stack([learner.once() for _ in range(ROUNDS)])"
KEPT, TAKEN = "self.rows = rows", "pass"
OURS = "return torch.stack([learner.step(x) for _ in range(ROUNDS) for x, _ in rows])"
TURNS = "return torch.stack([learner.step(rows[i % 3][0]) for i in range(2 * ROUNDS + 1)])"
LOOPS = """seen = []
    for _ in range(ROUNDS):
        for x, _ in rows:
            seen.append(learner.step(x))
    return torch.stack(seen)"""
FORMS = {
    "an element of an element": ("rows[0][0]", KEPT, TAKEN, EPOCHS),
    "what an object has": ("self.rows[0][0]", KEPT, TAKEN, EPOCHS),
    "a name that is taken out": ("x", KEPT, "x, _ = rows[0]", EPOCHS),
    "the first of all": ("x", KEPT, "x, _ = next(iter(rows))", EPOCHS),
    "held by who calls": ("rows[0][0]", TAKEN, TAKEN, OURS),
    "in turns": ("rows[0][0]", TAKEN, TAKEN, TURNS),
    "a loop in a loop": ("rows[0][0]", TAKEN, TAKEN, LOOPS),
}


def _text(form: str, rounds: int, own: str = "") -> str:
    sample, keep, ahead, ways = FORMS[form]
    text = TRAINED.replace("ROUNDS", ways, 1).replace("ROUNDS", str(rounds))
    return text.replace("SAMPLE", sample + own).replace("KEEP", keep).replace("AHEAD", ahead)


@pytest.mark.parametrize("asked", ["f", "step"])
@pytest.mark.parametrize("form", FORMS)
def test_a_sample_that_is_data_is_told_where_it_is_used_once_more(form: str, asked: str, tmp_path: Path) -> None:
    # GIVEN epochs over batches, of which the first is the sample itself
    names = run(_text(form, 2), tmp_path)
    # WHEN
    args = (torch.full((3, 4), 7.0, device=device_of(names)),) if asked == "step" else ()
    found = pgk.diagnose(names["f"] if asked == "f" else names["alone"].step, *args)
    # THEN it is told where it becomes the graph's input, with a copy of its own
    assert [failure.code for failure in found.failures] == ["graphed-sample-overwritten"], found
    line = f"cuda.make_graphed_callables(net, ({FORMS[form][0]},))"
    assert found.failure.fix == f"before  {line}\nafter   {line.replace(',))', '.clone(),))')}"


@pytest.mark.parametrize("asked", ["f", "step"])
@pytest.mark.parametrize("form", FORMS)
def test_samples_that_are_copies_or_read_once_are_nothing_to_tell(form: str, asked: str, tmp_path: Path) -> None:
    # GIVEN the same with a sample of its own, and with one epoch, whose first batch is read ahead of all others
    for rounds, own in ((2, ".clone()"), (1, "")):
        if form == "in turns" and not own:
            continue
        names = run(_text(form, rounds, own), tmp_path)
        args = (torch.full((3, 4), 7.0, device=device_of(names)),) if asked == "step" else ()
        # WHEN
        found = pgk.diagnose(names["f"] if asked == "f" else names["alone"].step, *args)
        # THEN: of lines alone one round cannot be told from two
        if own or asked == "f":
            assert not found.failures, found


def device_of(names: dict[str, object]) -> str:
    """Where a program computes."""
    return str(names["device"])


READ_LATER = """
net = nn.Linear(4, 2).to(device)
def f(x):
    held = {"sample": torch.ones(3, 4, device=device)}
    h = cuda.make_graphed_callables(net, (held["sample"],))
    with torch.no_grad():
        outs = [h(x).clone(), h(x * 2).clone()]
        BETWEEN
        return outs, LATER
args = (torch.randn(3, 4, device=device),)
"""


@pytest.mark.parametrize(
    ("between", "later", "told"),
    [
        ("pass", 'held["sample"] + 1', True),
        ("pass", 'h(held["sample"]).clone()', True),
        ('held["sample"].zero_()', 'held["sample"] + 1', False),
        ('held["sample"].copy_(x)', 'h(held["sample"]).clone()', False),
        ("pass", 'torch.zeros_like(held["sample"])', False),
    ],
)
def test_a_sample_that_is_read_behind_calls_is_told_but_where_it_is_filled_anew(
    between: str, later: str, told: bool, tmp_path: Path
) -> None:
    # GIVEN a sample that is read when calls have copied other numbers there
    names = run(READ_LATER.replace("BETWEEN", between).replace("LATER", later), tmp_path)
    # WHEN
    found = pgk.diagnose(names["f"], *names["args"])
    # THEN
    assert ("graphed-sample-overwritten" in {failure.code for failure in found.failures}) == told, found
