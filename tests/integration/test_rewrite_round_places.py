"""Rounds of loops that stand elsewhere than in a function of a module: in closures, and in what a function calls."""

from __future__ import annotations

import sys
from inspect import unwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.doctor.observe.examine import examine
from paramgraph_kit.rewrite.loops.merging import merged
from paramgraph_kit.rewrite.proving.launches import Launches
from paramgraph_kit.rewrite.round_within import one_round
from paramgraph_kit.rewrite.source.borrow import borrowed, compiled
from paramgraph_kit.rewrite.truths import Known
from tests.integration.rewritten import TIMES, lines_of, run
from tests.programs.running import differences, eager

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

ROWS = """\
rows = torch.utils.data.TensorDataset(torch.randn(24, 4), torch.randn(24, 2))
"""
CLOSED = (
    ROWS
    + """\
def main():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).to(device)
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(rows, batch_size=8)
    def loss_of(out, y):
        return F.mse_loss(out, y)
    def train():
        total = 0.0
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            loss = loss_of(model(x), y)
            opt.zero_grad(); loss.backward()
            opt.step()
            total += loss.item()
        return total
    return train, model
f, model = main()
args = ()
"""
)


def test_a_round_of_a_closures_loop_is_given_what_the_closure_has(tmp_path: Path) -> None:
    # GIVEN a function that trains a model of the function around it WHEN it is rewritten
    truth, names = eager(run(CLOSED, tmp_path), "f"), run(CLOSED, tmp_path)
    fix: Any = pgk.diagnose(names["f"], fix=True).fix
    # THEN the round stands beside both, with what it needs of them
    assert fix.alone == "train_round", fix
    assert "def train_round(loss_of, model, opt, x, y):  # one round of a loop of train" in lines_of(fix), fix
    assert "opt.zero_grad(); loss.backward()" in lines_of(fix)  # what shares a line goes together
    # AND the loop does from graphs what it does as it is
    with fix.applied() as made:
        names[fix.alone] = launches = Launches(made, fix.around, fix.bound)
        assert not differences(truth, eager(names, "f"), TIMES)
    assert launches.replays > 6


@pytest.mark.parametrize("kind", ["def", "lambda"])
def test_a_frame_of_lines_that_read_nothing_of_the_closure_can_be_looked_at(kind: str, tmp_path: Path) -> None:
    # GIVEN a closure, and rewritten lines that read less of it, or nothing
    body = {"def": "    def inner(x):\n        return x + {}\n", "lambda": "    inner = lambda x: x + {}\n"}[kind]
    text = f"def outer(a, b):\n{body}    return inner\n"
    file, space = str(tmp_path / "closed.py"), dict[str, Any]()
    exec(compile(text.format("a + b"), file, "exec"), space)
    inner, seen = space["outer"](1, 2), []
    # WHEN someone looks at the frame while they are lent
    for other, result in (("b", 12), ("100", 110)):
        lines = text.format(other).splitlines(keepends=True)
        with borrowed([inner], {file: compiled(file, lines)}, {}):
            sys.setprofile(lambda frame, event, _: seen.append(dict(frame.f_locals)) if event == "return" else None)
            try:
                assert inner(10) == result
            finally:
                sys.setprofile(None)
        # THEN it has what the closure has, as ever
        assert {"x": 10, "a": 1, "b": 2} in seen
        seen.clear()
    assert inner(10) == 13


FITTED = (
    ROWS
    + """\
class Trainer:
    def __init__(self, model):
        self.model, self.best = model.to(device), 9.0
        self.opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.opt, 0.8)
        self.loader = torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True)
    def train_epoch(self):
        self.model.train()
        total = 0.0
        for x, y in self.loader:
            self.opt.zero_grad()
            x, y = x.to(device), y.to(device)
            loss = F.mse_loss(self.model(x), y)
            loss.backward()
            self.opt.step()
            total += loss.item()
        return total
    @torch.no_grad()
    def validate(self):
        self.model.eval()
        total = 0.0
        for x, y in self.loader:
            out = self.model(x.to(device))
            total += F.mse_loss(out, y.to(device)).item()
        return total
    def fit(self, epochs):
        for _ in range(epochs):
            loss, told = self.train_epoch(), self.validate()
            self.best = min(self.best, told)
            self.schedule.step()
        return loss
net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Dropout(0.1), nn.Linear(6, 2))
trainer = Trainer(net)
f, args = trainer.fit, (2,)
"""
)
TWO_LOOPS = (
    ROWS
    + """\
net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Dropout(0.1), nn.Linear(6, 2)).to(device)
opt = torch.optim.Adam(net.parameters())
loader = torch.utils.data.DataLoader(rows, batch_size=8)
def f(epochs):
    told = []
    for _ in range(epochs):
        net.train()
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            opt.zero_grad()
            loss = F.mse_loss(net(x), y)
            loss.backward()
            opt.step()
            told.append(loss.item())
        net.eval()
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            out = net(x)
            loss = F.mse_loss(out, y)
            told.append(loss.item())
    return sum(told)
args = (2,)
"""
)


@pytest.mark.parametrize(
    ("text", "rounds"),
    [(FITTED, ["train_epoch_round", "validate_round"]), (TWO_LOOPS, ["f_round", "f_round_2"])],
    ids=["methods that it calls", "two loops of one function"],
)
def test_each_loop_that_a_function_comes_to_has_a_round_of_its_own(
    text: str, rounds: list[str], tmp_path: Path
) -> None:
    # GIVEN a function that trains and validates in two loops WHEN it is rewritten
    truth, names = eager(run(text, tmp_path), "f"), run(text, tmp_path)
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN both have one round cut out, in one diff
    assert [fix.alone, *(each.alone for each in fix.more)] == rounds, fix
    assert {f"def {each}(" in fix.diff for each in rounds} == {True}
    assert "x, y = x.to(device), y.to(device)" not in lines_of(fix)  # it stays in the loop, ahead of the round
    assert f"`{fix.function}`, with all of these rounds from graphs, gives the original's" in str(fix)
    # AND with launches of both it does over ten other calls what it does as it is
    with fix.applied() as made:
        launched = [Launches(made, fix.around, fix.bound)]
        launched += [Launches(unwrap(names[each.alone]), each.around, each.bound) for each in fix.more]
        names.update(zip(rounds, launched, strict=True))
        assert not differences(truth, eager(names, "f"), TIMES)
    assert all(each.replays > 6 for each in launched)
    assert not any(each in names for each in rounds)  # afterwards nothing of it is left


def test_changes_of_one_place_by_two_are_no_lines_of_both() -> None:
    # GIVEN lines WHEN others have changed them THEN what each has done in places of its own is in them
    lines = list("abcdef")
    assert merged(lines, [list("Xabcdef"), list("Yabcdef"), list("abcdeF")]) == list("XYabcdeF")
    assert merged(lines, [list("aBcdef"), list("aBcef")]) == list("aBcef")
    # AND one that does what another does, and more beside it, is that one, also behind a line that both have changed
    assert merged(lines, [list("aBcdef"), list("aBXef"), list("abcdeFY"), list("abcdeFZ")]) == list("aBXeFYZ")
    # AND nothing where they have not
    assert merged(lines, [list("aBcdef"), list("aCcdef")]) is None
    assert merged(lines, [list("aef"), list("abcXdef")]) is None


AGEING = """
market = {"rate": 0.02, "days": 90}
args = torch.rand(16, device=device) * 6 + 4, torch.rand(16, device=device) * 20 + 92
def price(spot, strike, tau, rate, sigma):
    d = (torch.log(spot / strike) + (rate + 0.5 * sigma ** 2) * tau) / (sigma * math.sqrt(tau))
    value = spot * torch.erf(d) - strike * math.exp(-rate * tau) * torch.erf(d - sigma * math.sqrt(tau))
    slope = spot * math.sqrt(tau) * torch.exp(-0.5 * d ** 2) / math.sqrt(2 * math.pi)
    return value, slope
def f(quote, strike):
    tau = market["days"] / 365
    spot = torch.full_like(quote, 100.0)
    bad = quote <= (spot - strike * math.exp(-market["rate"] * tau)).clamp(min=0)
    sigma = torch.full_like(quote, 0.3)
    for _ in range(2):
        value, slope = price(spot, strike, tau, market["rate"], sigma)
        error = (value - quote).masked_fill(bad, 0.0)
        sigma = (sigma - error / slope.clamp(min=1e-2)).clamp(0.01, 4.0)
        if f"{error[~bad].abs().sum().item():.3f}" == "0.000":
            break
    sigma[bad] = 0.0
    market["days"] -= 1
    return sigma
"""


def test_a_number_that_a_helper_is_given_anew_in_each_call_is_one_in_a_tensor(tmp_path: Path) -> None:
    # GIVEN a helper whose part is a graph, and which is given a number that the function counts
    truth, names = eager(run(AGEING, tmp_path), "f"), run(AGEING, tmp_path)
    # WHEN that part is cut out
    problems = examine(names["f"], names["args"], {}, limit_s=30.0).problems
    fix = one_round(names["f"], names["args"], {}, problems, of_loader=False, known=Known())
    # THEN no graph keeps the number, or what the host makes of it
    assert fix is not None
    assert fix.alone == "price_part"
    assert "its graph keeps `rate`: capture" in str(fix)
    assert "exp_in = torch.full((), math.exp(-rate * tau), device=device)" in lines_of(fix)
    # AND with launches over ten other calls it does what it does as it is
    with fix.applied() as made:
        names[fix.alone] = launches = Launches(made, fix.around, fix.bound)
        assert not differences(truth, eager(names, "f"), TIMES)
    assert launches.replays > 6
