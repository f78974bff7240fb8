"""Gradients that a loop around a trainer's step sets to None: no line of the step mends that."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
HEAD = """import torch, paramgraph_kit as pgk
from torch import nn
device = pgk.device()
class Learner:
    def __init__(self):
        self.net = nn.Linear(8, 1).to(device)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
    def step(self, x):
        loss = self.net(x).square().mean()
        loss.backward()
        self.opt.step()
        loss = loss.detach()
        return loss
def rows():
    return torch.ones(4, 8, device=device)
def build(): return Learner()
def build_more():
    made = build()
    return made
AROUND
learner = build()
if __name__ == "__main__":
    main()
"""
FIT = "def fit(one, kept, best=None):\n    for k in range(9):\n        LINES\n    return best\n"
CALLED = FIT + "def main(): fit(MADE, [])\n"
HERE = (
    "def main():\n    one, kept, best = MADE, [], None\n    for k in range(9):\n        LINES\n    print(kept, best)\n"
)


def program(lines: str, *, around: str = HERE, made: str = "build()") -> str:
    """A learner, and a loop around its step."""
    text = HEAD.replace("AROUND", around.replace("MADE", made))
    return text.replace("LINES", lines.replace("\n", "\n        "))


PLACES = [(HERE, "Learner()"), (HERE, "build()"), (HERE, "build_more()"), (CALLED, "Learner()"), (CALLED, "build()")]
NULLED = [
    "one.opt.zero_grad()\none.step(rows())",
    "one.step(rows())\none.net.zero_grad(set_to_none=True)",
    "one.step(rows())\nfor p in one.net.parameters(): p.grad = None",
]
ZEROED = [
    "one.opt.zero_grad(set_to_none=False)\none.step(rows())",
    "one.step(rows())\nfor p in one.net.parameters(): p.grad.zero_()",
    "one.step(rows())\nBAG.zero_grad()",
]


@pytest.mark.parametrize(("around", "made"), PLACES)
@pytest.mark.parametrize("lines", NULLED)
def test_gradients_that_a_loop_sets_to_none_are_told(lines: str, around: str, made: str, tmp_path: Path) -> None:
    # GIVEN a loop that sets the gradients of its trainer to None between two steps WHEN the method is diagnosed
    names = load(program(lines, around=around, made=made), tmp_path / "program.py")
    names["learner"].step(names["rows"]())
    diagnosis = pgk.diagnose(names["learner"].step, names["rows"]())
    # THEN that line is told
    (failure,) = diagnosis
    line = next(each for each in lines.splitlines() if "zero_grad" in each or "grad = None" in each)
    assert failure.code == "gradients-rebound", str(diagnosis)
    assert failure.frame is not None
    assert failure.frame.text == line


@pytest.mark.parametrize("lines", ZEROED)
def test_gradients_that_stay_where_they_are_are_not_told(lines: str, tmp_path: Path) -> None:
    # GIVEN a loop that sets them to zero in place, or those of another optimizer WHEN diagnosed THEN nothing is told
    bag = "BAG = torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=0.1)\n"
    names = load(program(lines, around=bag + HERE), tmp_path / "program.py")
    names["learner"].step(names["rows"]())
    diagnosis = pgk.diagnose(names["learner"].step, names["rows"]())
    assert not diagnosis, str(diagnosis)


@pytest.mark.parametrize("lines", NULLED)
def test_what_is_said_keeps_the_gradients_where_they_are(lines: str, tmp_path: Path) -> None:
    # GIVEN such a loop WHEN a fix is asked for THEN no diff of the step says that it is mended, and its line is told
    names = load(program(lines), tmp_path / "program.py")
    names["learner"].step(names["rows"]())
    diagnosis = pgk.diagnose(names["learner"].step, names["rows"](), fix=True)
    assert diagnosis.fix is None
    (failure,) = diagnosis
    assert "zero_grad(set_to_none=False): in place" in failure.fix or "p.grad.zero_(): in place" in failure.fix
    assert "beside the part" not in str(diagnosis)
