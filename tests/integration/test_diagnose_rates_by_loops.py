"""Rates that a scheduler sets which a function around the step makes, whatever it is called."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
PROGRAM = """import torch, paramgraph_kit as pgk
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LinearLR, ReduceLROnPlateau, SequentialLR, StepLR
device = pgk.device()
class Learner:
    def __init__(self, rate=0.05):
        self.net = nn.Linear(6, 3).to(device)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=rate, fused=torch.is_tensor(rate))
    def step(self, x):
        loss = self.net(x).square().mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()
def falling(opt): return LambdaLR(opt, lambda k: 0.9 ** k)
OTHER = torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=0.1)
learner = Learner(RATE)
def main(one):
    rates = MADE
    for k in range(6):
        one.step(torch.ones(4, 6, device=device)).item()
        LINE
if __name__ == "__main__":
    main(learner)
"""
MADE = [
    ("StepLR(one.opt, 2)", "rates.step()"),
    ("torch.optim.lr_scheduler.CosineAnnealingLR(optimizer=one.opt, T_max=9)", "if k % 2: rates.step()"),
    ("ReduceLROnPlateau(one.opt)", "rates.step(0.5)"),
    ("SequentialLR(one.opt, [LinearLR(one.opt), StepLR(one.opt, 2)], milestones=[3])", "rates.step()"),
    ("falling(one.opt)", "rates.step()"),
]
LEFT = [
    ("StepLR(one.opt, 2)", "print(rates.get_last_lr())", "0.05"),
    ("StepLR(OTHER, 2)", "rates.step()", "0.05"),
    ("StepLR(one.opt, 2)", "rates.step()", "torch.tensor(0.05, device=device)"),
]


def diagnosis_of(made: str, line: str, rate: str, path: Path) -> pgk.Diagnosis:
    """What is said of the learner's step."""
    names = load(PROGRAM.replace("MADE", made).replace("LINE", line).replace("RATE", rate), path)
    return pgk.diagnose(names["learner"].step, names["torch"].ones(4, 6, device=names["device"]))


@pytest.mark.parametrize(("made", "line"), MADE)
def test_a_scheduler_that_a_function_makes_is_told(made: str, line: str, tmp_path: Path) -> None:
    # GIVEN a function that makes a scheduler for the step's optimizer, and steps it WHEN the step is diagnosed
    diagnosis = diagnosis_of(made, line, "0.05", tmp_path / "program.py")
    # THEN its rate is told as frozen, with that line
    assert diagnosis.codes == ("learning-rate-frozen",), str(diagnosis)
    assert "rates.step(" in diagnosis.failure.message


@pytest.mark.parametrize(("made", "line", "rate"), LEFT)
def test_rates_that_no_line_sets_are_not_told(made: str, line: str, rate: str, tmp_path: Path) -> None:
    # GIVEN a scheduler that is never stepped, or is another one's, or a rate in a tensor WHEN diagnosed THEN nothing
    diagnosis = diagnosis_of(made, line, rate, tmp_path / "program.py")
    assert not diagnosis, str(diagnosis)
