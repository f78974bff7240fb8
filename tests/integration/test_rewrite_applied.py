"""What a function does while its fix is applied is what the printed diff does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paramgraph_kit as pgk
from tests.integration.rewritten import TIMES, run
from tests.programs.running import differences, eager

SAMPLER = """
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)).to(device)
peaks = []
def denoised(x, t):
    h = net(x) + t
    h = h + net(torch.tanh(h)).sin()
    peaks.append(h.abs().max().item())
    return h
def f(x):
    for t in (0.1, 0.2, 0.3):
        x = denoised(x, t)
        if x.abs().max().item() > 50:
            break
    return x
args = (torch.randn(4, 4, device=device),)
"""
LOADERS = """
rows = torch.utils.data.TensorDataset(torch.randn(24, 4), torch.randn(24, 2))
loader = torch.utils.data.DataLoader(rows, batch_size=8)
net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
args = ()
"""
NOISY = (
    LOADERS
    + """
def f():
    total = 0.0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        loss = F.mse_loss(net(x + random.random()), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    return total
"""
)
TWO = (
    LOADERS
    + """
def train():
    total = 0.0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        loss = F.mse_loss(net(x * random.uniform(0.5, 1.5)), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    return total
@torch.no_grad()
def validate():
    wrong = 0.0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        out = net(x + random.random())
        wrong += F.mse_loss(out, y).item()
    return wrong
def f():
    return train(), validate()
"""
)
PLAIN = NOISY.replace(" + random.random()", "")
PROGRAMS = {  # and whether something goes around a launch
    "behind, in a helper": (SAMPLER, True),
    "before, in a loop": (NOISY, True),
    "before, in two loops": (TWO, True),
    "nothing": (PLAIN, False),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_function_whose_round_is_a_graph_calls_what_goes_around_its_launch(name: str, tmp_path: Path) -> None:
    # GIVEN a function of which a round is captured, with something of the host's before or behind each launch
    text, is_around = PROGRAMS[name]
    truth, names = eager(run(text, tmp_path), "f"), run(text, tmp_path)
    # WHEN its fix is applied
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert fix.alone, fix
    assert ("before_" in fix.diff or "after_" in fix.diff) == is_around, fix
    with fix.applied():
        seen = eager(names, "f")
    # THEN it gives eager's results and state over ten other steps, with no graph, as the printed diff does
    assert not differences(truth, seen, TIMES), fix
    assert fix.alone not in names
