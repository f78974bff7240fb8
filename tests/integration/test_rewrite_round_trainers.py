"""Rounds of loops as trainers have them: wrapped loaders, ways that both read, an iterator, meters, rates of epochs."""

from __future__ import annotations

from inspect import unwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.proving.launches import Launches
from tests.integration.rewritten import TIMES, Program, lines_of, rewritten
from tests.programs.running import differences, eager

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

ROWS = """\
from torch.utils.data import DataLoader, TensorDataset
net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).to(device)
def loader_of(n):
    drawn = torch.Generator().manual_seed(n)
    return DataLoader(TensorDataset(torch.randn(n, 4, generator=drawn), torch.randn(n, 2, generator=drawn)), 4)
class Bar:
    def __init__(self, rows):
        self.rows, self.shown = rows, {}
    def __iter__(self):
        return iter(self.rows)
    def set_postfix(self, **shown):
        self.shown.update(shown)
class Meter:
    def __init__(self):
        self.total, self.seen = 0.0, 0
    def update(self, value, n=1):
        self.total, self.seen = self.total + value * n, self.seen + n
"""
# A loader that a helper makes, in a bar that the loop goes through; a second loop, and a rate that each round sets.
WRAPPED = (
    ROWS
    + """\
opt = torch.optim.Adam(net.parameters(), lr=0.01)
def f():
    rounds, kept = loader_of(16), loader_of(8)
    meter, told = Meter(), 0.0
    bar = Bar(rounds)
    for n, (x, y) in enumerate(bar):
        x, y = x.to(device), y.to(device)
        for group in opt.param_groups:
            group["lr"] = 0.01 / (n + 1)
        loss = F.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        meter.update(loss.item(), x.size(0))
        bar.set_postfix(loss=meter.total / meter.seen)
    with torch.no_grad():
        for x, y in kept:
            x, y = x.to(device), y.to(device)
            told += F.mse_loss(net(x), y).item()
    return meter.total, told
args = ()
"""
)
# Both ways read at their end, one has a scaler that is not there in the other, and a rate is another one in each epoch.
WAYS = (
    ROWS
    + """\
class Options:
    half, rate = False, 0.01
def adjust(opt, epoch):
    for group in opt.param_groups:
        group["lr"] = Options.rate * 0.5 ** (epoch - 1)
def f():
    opt = torch.optim.Adam(net.parameters(), lr=Options.rate)
    rounds, means = loader_of(16), []
    if Options.half:
        scaler = torch.amp.GradScaler(device.type)
    for epoch in range(2):
        seen = []
        for n, batch in enumerate(rounds):
            opt.zero_grad()
            x, y = batch
            x = x.float().to(device)
            y = y.float().to(device)
            if Options.half:
                with torch.autocast(device.type, dtype=torch.bfloat16):
                    loss = F.mse_loss(net(x), y)
                    seen.append(loss.item())
            else:
                loss = F.mse_loss(net(x), y)
                seen.append(loss.item())
            if (n + 1) % 2 == 0:
                print(epoch, loss.item())
            if Options.half:
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()
            else:
                loss.backward()
                opt.step()
        means.append(sum(seen) / len(seen))
        adjust(opt, epoch + 1)
    return means
args = ()
"""
)
# ``while True`` with an iterator; the function makes the optimizer, and a method tells others of each batch.
NEXT = (
    ROWS
    + """\
class Trainer:
    def __init__(self, model):
        self.model, self.optimizer, self.told, self.number = model, None, [], 0
    def configured(self):
        return torch.optim.AdamW(self.model.parameters(), lr=0.01)
    def tell(self):
        if self.number % 2 == 0:
            self.told.append(self.loss.item())
    def run(self):
        model = self.model
        self.optimizer = self.configured()
        rounds = loader_of(12)
        self.number = 0
        rows = iter(rounds)
        while True:
            try:
                batch = next(rows)
            except StopIteration:
                rows = iter(rounds)
                batch = next(rows)
            batch = [t.to(device) for t in batch]
            x, y = batch
            self.loss = F.mse_loss(model(x), y)
            model.zero_grad(set_to_none=True)
            self.loss.backward()
            self.optimizer.step()
            self.tell()
            self.number += 1
            if self.number >= 5:
                break
trainer = Trainer(net)
f, args = trainer.run, ()
"""
)
# An object scales losses, and steps what it is given; gradients are those of two batches.
SCALER = """\
class Scaler:
    def __init__(self):
        self._scaler = torch.amp.GradScaler(device.type, init_scale=16.0, growth_interval=3)
    def __call__(self, loss, optimizer, update_grad=True):
        self._scaler.scale(loss).backward()
        if update_grad:
            self._scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            self._scaler.step(optimizer)
            self._scaler.update()
            return norm
loss_scaler = Scaler()
"""
SCALED = (
    ROWS
    + SCALER
    + """\
opt = torch.optim.AdamW(net.parameters(), lr=0.01)
rounds = loader_of(24)
def f():
    seen = []
    opt.zero_grad()
    for n, (x, y) in enumerate(rounds):
        x, y = x.to(device), y.to(device)
        loss = F.mse_loss(net(x), y)
        seen.append(loss.item())
        loss_scaler(loss / 2, opt, update_grad=(n + 1) % 2 == 0)
        if (n + 1) % 2 == 0:
            opt.zero_grad()
    return seen
args = ()
"""
)
SCALED_OPTIMIZER = "opt = torch.optim.AdamW(net.parameters(), lr=0.01, capturable=True, fused=True)"
TRAINERS = {
    "a bar and two loops": (WRAPPED, ["loss = f_round_2(x, y)", "told += told_now.item()"]),
    "ways and epochs": (
        WAYS,
        ["scaler = None", "seen.append(loss.item())", 'group["lr"].fill_(Options.rate * 0.5 ** (epoch - 1))'],
    ),
    "an iterator": (NEXT, ["run_round(self, model, x, y)"]),
    "an object that scales losses": (SCALED, [SCALED_OPTIMIZER, "opt.zero_grad(set_to_none=False)"]),
}


@pytest.mark.parametrize(
    "name",
    [
        "a bar and two loops",
        pytest.param("ways and epochs", marks=pytest.mark.sweep),
        pytest.param("an iterator", marks=pytest.mark.sweep),
        "an object that scales losses",
    ],
)
def test_a_round_of_a_trainers_loop_is_whole(name: str, program: Program) -> None:
    # GIVEN such a program WHEN it is rewritten
    text, lines = TRAINERS[name]
    truth, names = eager(program(text), "f"), program(text)
    fix: Any = pgk.diagnose(names["f"], fix=True).fix
    # THEN each of its loops has a round, in one diff
    assert fix.alone, str(fix)
    assert not fix.instead, fix
    for line in lines:
        assert line in lines_of(fix), fix
    assert ("capture it where `run` has set `.optimizer`, for each call anew" in fix.verified) == (text is NEXT)
    # AND launched it gives the same over ten other steps
    with fix.applied() as made:
        every = [(fix, made), *((each, unwrap(names[each.alone])) for each in fix.more)]
        launches = {each.alone: Launches(one, each.around, each.bound, each.anew) for each, one in every}
        names.update(launches)
        seen = eager(names, "f")
    assert all(each.replays > 6 for each in launches.values())
    assert not differences(truth, seen, TIMES), fix


@pytest.mark.parametrize(
    ("made", "is_whole"),
    [("Adam(net.parameters(), lr=0.01)", True), ("SGD(net.parameters(), lr=0.01, momentum=0.9)", False)],
)
def test_a_scaler_in_an_object_asks_nothing_of_a_fused_optimizer(made: str, is_whole: bool, tmp_path: Path) -> None:
    # GIVEN a step whose scaler is in an object that also runs the backward pass WHEN it is rewritten
    text = (
        f"{ROWS}{SCALER}opt = torch.optim.{made}\n"
        """\
args = (torch.randn(8, 4, device=device), torch.randn(8, 2, device=device))
def f(x, y):
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)
    norm = loss_scaler(loss, opt)
    return loss.detach(), norm
"""
    )
    found = rewritten(text, tmp_path)
    # THEN the optimizer is fused, and the graph has all of it; but for momentum, which a first step that is left out
    # would leave unwritten
    assert found.complete == is_whole, found
    assert ("fused=True" in found.diff) == is_whole
