"""Programs whose unusual inputs come only after the trial: replays have eager's numbers then, too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

UNUSUAL = {
    "no smoothing, and a score of -inf": """\
def f(x, y, s):
    return F.cross_entropy(x, y, label_smoothing=s.item())
args = (torch.randn(8, 5, device=device), torch.arange(8, device=device) % 4, torch.tensor(0.1, device=device))
def feed(i):
    drawn = torch.Generator().manual_seed(i)
    x, y = torch.randn(8, 5, generator=drawn), torch.randint(0, 4, (8,), generator=drawn)
    if i % 2:
        x[:, 4] = -float("inf")
    return x.to(device), y.to(device), torch.tensor(0.0 if i % 2 else 0.1, device=device)
""",
    "whether something is True, which it was not in the trial": """\
def f(x):
    ok = bool((x > 0).any())
    return x * 2 if ok is True else x
args = (-torch.ones(1, device=device),)
def feed(i):
    return ((-1.0) ** i * torch.ones(1, device=device),)
""",
    "which kind a number is, where the trial did not ask": """\
def f(x):
    n = x.sum().item()
    if x.numel() > 1:
        return x * 2 if isinstance(n, float) else x
    return x * n
args = (torch.ones(1, device=device),)
""",
    "keys of a table, none of which was there in the trial": """\
TABLE = {7: 0.5}
def f(x, ids):
    w = torch.zeros(4, device=device)
    for k in range(4):
        w[k] = w[k] + TABLE.get(ids[k].item(), 1.0)
    return x * w
args = (torch.randn(4, device=device), torch.zeros(4, dtype=torch.long, device=device))
def feed(i):
    return torch.ones(4, device=device), torch.full((4,), i, device=device)
""",
    "a number under a name, which is looked for among others": """\
class Seen:
    def __init__(self):
        self.names = {5: 2.0}
table = Seen()
def f(x):
    k = (x > 0).sum().item()
    return x * (table.names[k] if k in table.names else 1.0)
args = (-torch.ones(8, device=device),)
def feed(i):
    return (torch.arange(8, device=device) - 7.5 + i,)
""",
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_said_to_be_whole_has_eagers_numbers_with_unusual_inputs(name: str, tmp_path: Path) -> None:
    # GIVEN WHEN a program is rewritten THEN, where that is said to be whole, ten steps from a graph are eager's
    rewritten(UNUSUAL[name], tmp_path)


def test_a_number_that_is_asked_for_its_kind_stays_a_number(tmp_path: Path) -> None:
    # GIVEN a number whose kind another call would ask for WHEN it is rewritten
    fix = rewritten(UNUSUAL["which kind a number is, where the trial did not ask"], tmp_path)
    # THEN the name is no tensor
    assert "n = x.sum().detach()" not in fix.diff
