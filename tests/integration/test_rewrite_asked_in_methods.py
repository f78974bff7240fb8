"""A method that asks the host for a number computes on in the graph, also where it brings a table there as well."""

from __future__ import annotations

import pytest
import torch

from tests.integration.rewritten import Fixed, lines_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

FILTER = """
class Filter:
    def __init__(self):
        self.state, self.gain = torch.randn(8, 4, device=device), 1.05
        self.seen = np.arange(0, 4, 2)
    def correct(self, y):
        mean = self.state.mean(0)
        spread = (self.state - mean) * self.gain
        at = torch.as_tensor(self.seen, device=device)
        left = y - (mean + spread)[:, at]
        self.state = mean + spread + left @ spread[:, at].T @ spread / 8
        return left
    def step(self, y):
        y = torch.as_tensor(y, dtype=torch.float32).to(device)
        left = self.correct(y)
        ratio = (left.pow(2).mean().sqrt() / self.state.std(0).mean()).item()
        self.gain = min(max(self.gain * (1.02 if ratio > 1.2 else 0.99), 1.0), 1.3)
        return self.state.mean(0)
f = Filter().step
args = (np.linspace(0.5, 1.5, 2),)
"""
SAMPLER = """
class Sampler:
    def __init__(self):
        self.net, self.warmth = nn.Linear(4, 6).to(device), 2.0
        self.biases = [0.1, 0.2, 0.0, -0.1, 0.3, 0.0]
        self.log = []
    def scores(self, x):
        bias = torch.tensor(self.biases, device=device)
        return (self.net(x) + bias) / self.warmth
    def step(self, x):
        with torch.no_grad():
            y = self.scores(x).softmax(-1)
        self.warmth = max(self.warmth * 0.9, y.max().item())
        self.log.append(self.warmth)
        return y
f = Sampler().step
args = (torch.ones(3, 4, device=device),)
"""


@pytest.mark.parametrize(("program", "fed"), [(FILTER, "self.gain"), (SAMPLER, "self.warmth")])
def test_a_number_in_a_method_beside_a_table_is_fed(program: str, fed: str, fixed: Fixed) -> None:
    # GIVEN a method that reads a number which moves behind the launch, and brings a table of the host's to the device
    # WHEN it is rewritten
    fix = fixed(program)
    # THEN both are found before the launch, and what the method computes stays in the graph
    assert fix.complete, fix
    added = lines_of(fix)
    assert any(line.endswith(f"_in.fill_({fed})") for line in added)
    assert not any("self.correct(" in line or "self.scores(" in line for line in added)
