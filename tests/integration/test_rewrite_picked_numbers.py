"""Numbers that a step picks of a list of the host's by a count: the host picks them before each launch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

PICKED = {
    "attribute": """
class Model:
    def __init__(self):
        self.net, self.it = nn.Linear(4, 4).to(device), 0
        self.rates = [0.1 * k for k in range(100)]
    def f(self, x):
        y = self.net(x) * self.rates[self.it]
        self.it += 1
        return y
model = Model()
f, args = model.f, (torch.ones(3, 4, device=device),)
""",
    "beside a device's entry": """
class Model:
    def __init__(self):
        self.net, self.it = nn.Linear(4, 4).to(device), 0
        self.sigmas = tuple(1 / (k + 1) for k in range(100))
        self.table = torch.rand(100, device=device)
    def f(self, x):
        self.it = self.it + 1
        h = self.net(x) + self.sigmas[self.it + 1] * torch.tanh(x)
        return h - self.sigmas[self.it]
model = Model()
f, args = model.f, (torch.ones(3, 4, device=device),)
""",
    "file's": """
NET, BETAS, COUNT = nn.Linear(4, 4).to(device), [0.5 ** k for k in range(60)], {"n": 0}
def f(x):
    y = NET(x) / (1 + BETAS[COUNT["n"]])
    COUNT["n"] += 1
    return y
args = (torch.ones(3, 4, device=device),)
""",
}


@pytest.mark.parametrize("form", PICKED)
def test_a_number_of_a_list_that_a_count_picks_is_picked_before_each_launch(form: str, tmp_path: Path) -> None:
    # GIVEN a step that picks a number of a list of the host's, further on in each call
    # WHEN it is rewritten, and captured over ten other steps
    fix = rewritten(PICKED[form], tmp_path)
    # THEN the whole step is one graph, which reads the number from a tensor
    assert fix.complete, fix
    assert "_in.fill_(" in fix.diff
