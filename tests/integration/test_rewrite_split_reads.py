"""Statements of a round that compute and read at once are cut in two, so that what they compute is in its graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run, with_rounds

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

NET = """\
net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
rows = torch.utils.data.TensorDataset(torch.randn(24, 4), torch.randint(0, 3, (24,)))
data = torch.utils.data.DataLoader(rows, batch_size=8)
args = ()
def step(x, y):
    opt.zero_grad()
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    opt.step()
    {ends}
"""
LOSS, BOTH = "return loss.item()", "return loss.item(), float(loss.detach().square()), x"
# what a loop does, with lines that the diff adds
WHOLE = {
    "a sum of losses, under no_grad": (
        NET.format(ends=LOSS)
        + """\
@torch.no_grad()
def f():
    total, n = 0.0, 0
    for batch in data:
        x, y = (t.to(device) for t in batch)
        total += F.cross_entropy(net(x), y, reduction="sum").item()
        n += y.size(0)
    return total / n
""",
        ["total_now = f_round(x, y)", "total += total_now.item()"],
    ),
    "a function that trains and returns a number": (
        NET.format(ends=LOSS)
        + """\
def f():
    running = 0.0
    for i, (x, y) in enumerate(data):
        running += step(x.to(device), y.to(device))
    return running / (i + 1)
""",
        [
            "return loss.detach()",
            "x_there = x.to(device)",
            "running_now = f_round(x_there, y_there)",
            "running += running_now.item()",
        ],
    ),
    "a function that returns several numbers and a tensor": (
        NET.format(ends=BOTH)
        + """\
def f():
    losses = []
    for x, y in data:
        x, y = x.to(device), y.to(device)
        loss, square, _ = step(x, y)
        losses += [loss, square]
    return losses
""",
        [
            "return loss.detach(), loss.detach().square().detach(), x",
            "loss, square, _ = (value_now[0].item(), float(value_now[1]), value_now[2])",
        ],
    ),
    "a method of a trainer, beside another object's of its name": (
        NET.format(ends=LOSS)
        + """\
class Trainer:
    def __init__(self):
        self.opt, self.history = opt, []
    def step(self, batch):
        x, y = batch
        self.opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        self.opt.step()
        return float(loss.detach())
    def fit(self):
        for batch in data:
            batch = [t.to(device) for t in batch]
            self.history.append(self.step(batch))
trainer = Trainer()
f = trainer.fit
""",
        ["value_now = fit_round(self, batch)", "self.history.append(float(value_now))"],
    ),
    "what a block of a round tells at its end stands behind it": (
        NET.format(ends=LOSS)
        + """\
def f():
    best, right = 9.0, 0
    for x, y in data:
        x, y = x.to(device), y.to(device)
        with torch.no_grad():
            out = net(x)
            loss = F.cross_entropy(out, y)
            right += int((out.argmax(1) == y).sum())
            worst = loss.item()
        best = min(best, worst)
    return best, right
""",
        ["loss, right_now = f_round(x, y)", "right += int(right_now)", "worst = loss.item()"],
    ),
    "a test in inference mode": (
        NET.format(ends=LOSS)
        + """\
def f():
    total, right = 0.0, 0
    with torch.inference_mode():
        for x, y in data:
            x, y = x.to(device), y.to(device)
            out = net(x)
            total += F.cross_entropy(out, y).item() * x.size(0)
            right += int((out.argmax(dim=-1) == y).sum())
    return total, right
""",
        ["@torch.inference_mode()", "total += total_now.item() * x.size(0)", "right += int(right_now)"],
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_a_statement_computes_before_it_reads_is_in_the_graph_of_the_round(name: str, tmp_path: Path) -> None:
    # GIVEN a loop with statements that do both WHEN it is rewritten THEN its round computes, and the loop reads
    with_rounds(*WHOLE[name], tmp_path)


# what must not be cut in two, with the reason
AS_THEY_ARE = {
    "a number that somebody else reads, too": """\
def f():
    total = 0.0
    for x, y in data:
        total += step(x.to(device), y.to(device))
    return total + step(torch.ones(2, 4, device=device), torch.zeros(2, dtype=torch.long, device=device))
""",
    "a number that a method of a class below rounds": """\
class Trainer:
    def step(self, x, y):
        return step_of(x, y).item()
class Below(Trainer):
    def step(self, x, y):
        return round(super().step(x, y), 2)
def step_of(x, y):
    opt.zero_grad()
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    opt.step()
    return loss
trainer, below = Trainer(), Below()
def f():
    total = 0.0
    for x, y in data:
        total += trainer.step(x.to(device), y.to(device))
    return total
""",
    "what somebody asks for by its name": """\
import sys
def other(x, y):
    return round(getattr(sys.modules[__name__], "step")(x, y), 2)
def f():
    total = 0.0
    for x, y in data:
        total += step(x.to(device), y.to(device))
    return total
""",
    "what is not computed in each round": """\
def f():
    total = 0.0
    for x, y in data:
        x = x.to(device)
        net(x).sum().backward()
        total += x.abs().sum().item() if len(x) > 99 else 0.5
    return total
""",
}


@pytest.mark.parametrize("name", AS_THEY_ARE)
def test_what_is_read_elsewhere_or_not_always_is_not_cut_in_two(name: str, tmp_path: Path) -> None:
    # GIVEN WHEN
    names = run(NET.format(ends=LOSS) + AS_THEY_ARE[name], tmp_path)
    found = pgk.diagnose(names["f"], fix=True)
    # THEN no half of a statement has a name
    assert "_now" not in str(found.fix)
