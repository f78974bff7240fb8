"""Rounds that are functions and no graphs yet: they are shown, with what is left in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.counting.optimizers import DECAYS
from paramgraph_kit.rewrite.proving.launches import Launches
from tests.integration.rewritten import TIMES, lines_of, run
from tests.programs.running import differences, eager

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

LEFT = """\
net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).to(device)
opt = torch.optim.Adam(net.parameters(), lr=0.01)
rows = torch.utils.data.TensorDataset(torch.randn(24, 4), torch.randn(24, 2))
loader = torch.utils.data.DataLoader(rows, batch_size=8)
def f():
    total = 0.0
    for n, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        loss = torch.cdist(net(x), y, p=1.0 + 1.0 / (n + 1 + total)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    return total
args = ()
"""


def test_a_round_that_is_no_graph_yet_is_shown_with_what_is_left_in_it(tmp_path: Path) -> None:
    # GIVEN a loop whose rounds give torch another number, which it takes as a number only WHEN it is rewritten
    names = run(LEFT, tmp_path)
    fix: Any = pgk.diagnose(names["f"], fix=True).fix
    # THEN the round is a function, with what could be rewritten, and is not called a graph
    assert not fix.alone
    assert not fix.complete
    lines = lines_of(fix)
    assert any(line.startswith("def f_round(x, y, ") for line in lines), fix
    assert "opt = torch.optim.Adam(net.parameters(), lr=0.01, capturable=True)" in lines
    assert "is `f_round` here: this is what can be captured, once what stands below is done in it" in str(fix)
    # AND what is left is told at the round, with what to do
    assert "in `f_round`: torch takes `p=` as a number of the host's only" in str(fix), fix
    assert "then `pgk.diagnose(f_round, ..., fix=True)` with what the loop gives it" in str(fix)


def test_a_decay_of_weights_that_each_round_has_another_of_is_told_with_lines(tmp_path: Path) -> None:
    # GIVEN a loop that sets another weight decay in each round, and lets gradients go by hand, so that its step cannot
    # stay the host's WHEN it is rewritten
    text = DECAYED.replace("KIND", "AdamW").replace("opt.zero_grad()", "for p in net.parameters(): p.grad = None")
    fix: Any = pgk.diagnose(run(text, tmp_path)["f"], fix=True).fix
    # THEN what to write is told
    assert not fix.alone
    assert f"if p.grad is not None: {DECAYS['AdamW']}" in str(fix), fix
    assert '`group["decay"].fill_(0.3 * (n + 1))`' in str(fix)


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_these_lines_do_what_the_optimizer_does_with_such_a_decay(kind: str, tmp_path: Path) -> None:
    # GIVEN a loop, and the same with the lines that are told WHEN its rounds are launched
    truth = eager(run(DECAYED.replace("KIND", kind), tmp_path), "f")
    names = run(FOLLOWED.replace("LINE", DECAYS[kind]).replace("KIND", kind), tmp_path)
    names["f_round"] = launches = Launches(names["f_round"])
    # THEN they give eager's numbers
    assert not differences(truth, eager(names, "f"), TIMES)
    assert launches.replays > 6


DECAYED = """\
net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).to(device)
opt = torch.optim.KIND(net.parameters(), lr=0.05)
rows = torch.utils.data.TensorDataset(torch.randn(24, 4), torch.randn(24, 2))
loader = torch.utils.data.DataLoader(rows, batch_size=8)
def f():
    total = 0.0
    for n, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        for group in opt.param_groups:
            group["weight_decay"] = 0.3 * (n + 1)
        loss = F.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    return total
args = ()
"""
FOLLOWED = """\
net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).to(device)
opt = torch.optim.KIND(net.parameters(), lr=0.05, **{"AdamW": dict(capturable=True), "SGD": {}}["KIND"])
for group in opt.param_groups:
    group["decay"], group["weight_decay"] = torch.tensor(float(group["weight_decay"]), device=device), 0.0
rows = torch.utils.data.TensorDataset(torch.randn(24, 4), torch.randn(24, 2))
loader = torch.utils.data.DataLoader(rows, batch_size=8)
def f_round(x, y):
    loss = F.mse_loss(net(x), y)
    opt.zero_grad()
    loss.backward()
    with torch.no_grad():
        for group in opt.param_groups:
            for p in group["params"]:
                if p.grad is not None: LINE
    opt.step()
    return loss.detach()
def f():
    total = 0.0
    for n, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        for group in opt.param_groups:
            group["decay"].fill_(0.3 * (n + 1))
        loss = f_round(x, y)
        total += loss.item()
    return total
args = ()
"""
