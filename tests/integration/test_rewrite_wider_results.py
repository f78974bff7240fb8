"""Results that a rewritten step returns in another type, since a number that it kept is a tensor of float64 now."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")
DECAYED = """\
class Learner:
    def __init__(self):
        self.net, self.coefficient = nn.Linear(4, 3).to(device), 0.1
        self.mean, self.count = torch.zeros(3, device=device), 1e-4
    def loss(self, x):
        logits = self.net(x)
        total = self.count + len(x)
        self.mean = self.mean + (logits.detach().mean(0) - self.mean) * len(x) / total
        self.count = total
        logits = logits - self.mean
        entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()
        loss = logits.square().mean() - self.coefficient * entropy
        self.coefficient = max(self.coefficient * 0.9, 0.001)
        return RETURNED
learner = Learner()
args = (torch.randn(5, 4, device=device),)
def f(x):
    return learner.loss(x)
"""


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ("loss.detach()", "what it returns is of float64 now"),
        ("loss.detach(), entropy.detach()", "a part of what it returns is of float64 now"),
        ("loss.detach().float()", ""),
        ("logits.detach() * self.coefficient", ""),
    ],
)
def test_a_loss_that_a_kept_number_makes_wider_is_told(returned: str, told: str, tmp_path: Path) -> None:
    # GIVEN a step that scales a part of its loss by a number which decays WHEN a fix is asked for
    fix = rewritten(DECAYED.replace("RETURNED", returned), tmp_path)
    # THEN the number is a tensor, and where what is returned has another type by it, that is told
    assert fix.complete, fix
    said = [line for line in fix.verified if "float64" in line]
    assert [told in line for line in said] == ([True] if told else []), fix
    assert all("`.to(torch.float32)`" in line for line in said), fix
