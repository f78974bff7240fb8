"""A line that sets the name that it reads is what the lines below it compute with, however its value is in a trial."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.apart import APART
from tests.integration.rewritten import launched, lines_of

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
WEIGHED = """
import types
LATE = {18, 36, 54}
net = nn.Linear(6, 3).to(device)
opt = torch.optim.SGD(net.parameters(), lr=1e-2)
S = types.SimpleNamespace(n=0, log=[])
def f(x, target):
    S.n += 1
    out = net(x)
    loss = F.mse_loss(out, target)
    LINE
    loss = loss + 0.1 * out.abs().mean()
    opt.zero_grad()
    loss.backward()
    if S.n % 50 == 1:
        for p in net.parameters():
            p.grad.zero_()
    opt.step()
    return loss.detach()
args = (torch.randn(8, 6).to(device), torch.randn(8, 3).to(device))
"""
WEIGHTS = {
    "by a name": "loss = loss * (2.0 if S.n in LATE else 1.0)",
    "in place": "loss *= 2.0 if S.n in LATE else 1.0",
    "by a sum": "loss = loss + max(S.n - 50, 0) * out.square().mean()",
}


@pytest.mark.sweep
@pytest.mark.parametrize("line", WEIGHTS)
def test_a_weight_that_is_one_in_a_trial_stays_in_what_trains(line: str, tmp_path: Path) -> None:
    # GIVEN a loss that is weighed in steps far from those of a trial WHEN a part of the step is cut out
    fix = launched(WEIGHED.replace("LINE", WEIGHTS[line]), tmp_path)
    # THEN what trains is the weighed one, if there is a part: no copy is weighed behind it
    assert not any("loss_told" in each for each in lines_of(fix)), fix.diff


@pytest.mark.sweep
def test_what_only_tells_of_a_loss_waits_with_a_copy(tmp_path: Path) -> None:
    # GIVEN a line that only tells of it there WHEN cut out THEN it waits, with what the loss was
    fix = launched(WEIGHED.replace("LINE", "S.log.append(loss.item())"), tmp_path)
    assert not fix.alone or any("loss_told" in each for each in lines_of(fix)), fix.diff
