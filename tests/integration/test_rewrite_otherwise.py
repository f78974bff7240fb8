"""What is said where no rewrite is safe: parts that the device bounds, and layers that chance drops."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import lines_of, rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

LENGTHS = """
emb = nn.Embedding(9, 4).to(device)
args = (torch.randint(0, 9, (2, 6), device=device), torch.tensor([3, 6], device=device))
def f(ids, lengths):
    BODY
"""
SAID = {
    "n = lengths.max().item()\n    return emb(ids[:, :n]).mean(1)": "leave the cut out, `n = ids.shape[1]`",
    "rows = [emb(ids[b, :n]).mean(0) for b, n in enumerate(lengths.tolist())]\n    return torch.stack(rows)": (
        "`at = torch.arange(ids[b].shape[0], device=ids[b].device)` and `inside = (at < n)` mark what `ids[b, :n]` is"
    ),
}
DROPPED = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.p = nn.Linear(3, 3), 0.3
    def forward(self, x):
        if self.training and random.random() < self.p:
            return x
        return x + self.fc(x)
net = nn.Sequential(Block(), Block()).to(device)
args = (torch.randn(2, 3, device=device),)
def f(x):
    return net(x)
"""
HEADS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 2), nn.Linear(4, 2)
    def forward(self, x):
        if x.sum() > 0:
            return self.a(x)
        return self.b(x)
net, args = Net().to(device), (torch.randn(3, 4, device=device),)
@torch.no_grad()
def f(x):
    return net(x)
"""

AND_BACK = """\
args = (torch.randn(3, 4, device=device),)
def f(x):
    mean = torch.tensor(x.mean().item()).to(x.device)
    return x - mean
"""


@pytest.mark.parametrize("body", SAID)
def test_a_part_that_the_device_bounds_is_told_with_what_marks_it(body: str, tmp_path: Path) -> None:
    # GIVEN a part of a tensor up to a length of the device WHEN told THEN what marks it, in the user's names
    fix = rewritten(LENGTHS.replace("BODY", body), tmp_path)
    assert any(SAID[body] in line for line in fix.instead), fix


def test_a_layer_that_chance_drops_is_told_to_be_chosen_before_each_launch(tmp_path: Path) -> None:
    # GIVEN layers of which each draws for itself WHEN told THEN all draw before the launch, and the branch is gone
    fix = rewritten(DROPPED, tmp_path)
    told = "here, without the branch of line "
    assert any(told in line and "m.left_out.fill_(bool(m.training and " in line for line in fix.instead), fix


def test_a_layer_that_asks_the_device_takes_both_ways(tmp_path: Path) -> None:
    # GIVEN a module that asks the device which of its layers to take WHEN rewritten THEN it is whole
    fix = rewritten(HEADS, tmp_path)
    assert fix.complete, fix
    assert lines_of(fix) == ["return torch.where(x.sum() > 0, self.a(x), self.b(x))"]


def test_a_number_that_becomes_a_tensor_again_is_the_tensor(tmp_path: Path) -> None:
    # GIVEN a number that goes to the host and back WHEN rewritten THEN torch does not warn
    fix = rewritten(AND_BACK, tmp_path)
    assert fix.complete, fix
    assert lines_of(fix) == ["mean = x.mean().detach().to(x.device)"]
