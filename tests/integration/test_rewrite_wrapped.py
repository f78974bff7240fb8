"""An optimizer that one of the user's own makes inside: its rate becomes a tensor where the outer one is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import differences, eager, load, quiet

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
OUTER = """
class Noisy(torch.optim.Optimizer):
    def __init__(self, params, base, **kwargs):
        super().__init__(params, kwargs)
        self.base = base(self.param_groups, **kwargs)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.mul_(0.5)
        self.base.step()

net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
optimizer = Noisy(net.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9)
data = torch.utils.data.TensorDataset(*(torch.linspace(-1, 1, 12 * n).view(12, n) for n in (6, 2)))
loader = torch.utils.data.DataLoader(data, batch_size=4)

def train(epoch):
    for group in optimizer.param_groups:
        group["lr"] = 0.05 * 0.9 ** epoch
    for x, y in loader:
        loss = F.mse_loss(net(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.detach()

def feed(i):
    return (i,)
args = feed(1)
"""


def test_the_shown_lines_run_as_they_are(tmp_path: Path) -> None:
    # GIVEN a loop whose rate the epoch sets, of an optimizer that one of the user's own holds
    file = tmp_path / "program.py"
    truth = eager(load(PRELUDE + OUTER, file), "train")
    names = load(PRELUDE + OUTER, file)
    # WHEN it is rewritten
    with quiet():
        fix: Any = pgk.diagnose(names["train"], *names["args"], fix=True).fix
    assert fix.alone, str(fix)
    # THEN the rate is a tensor where the outer one is made, and the file with these lines does what it did
    assert 'group["lr"] = torch.tensor(float(group["lr"]), device=device)' in fix.diff
    (text,) = fix.texts.values()
    seen = eager(load("".join(line.rstrip("\n") + "\n" for line in text), file), "train")
    assert not differences(truth, seen, set())
