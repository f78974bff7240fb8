"""What goes around the launches of rounds of several kinds is given what each of them is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.proving.launches import Launches
from tests.integration.rewritten import TIMES, lines_of, run
from tests.programs.running import differences, eager

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

SCALED = """\
net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).to(device)
opt, scaler = torch.optim.AdamW(net.parameters(), lr=0.01), torch.amp.GradScaler(device.type)
rows = torch.utils.data.TensorDataset(torch.randn(24, 4), torch.randn(24, 2))
loader = torch.utils.data.DataLoader(rows, batch_size=8)
def f():
    total = 0.0
    opt.zero_grad()
    for n, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        loss = F.mse_loss(net(x), y) / 2
        scaler.scale(loss).backward()
        if (n + 1) % 2 == 0:
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
        total += loss.item()
    return total
args = ()
"""


def test_what_goes_behind_a_launch_is_given_what_its_round_is(tmp_path: Path) -> None:
    # GIVEN a loop that steps in every other round, with a scaler that asks the host WHEN it is rewritten
    truth, names = eager(run(SCALED, tmp_path), "f"), run(SCALED, tmp_path)
    fix: Any = pgk.diagnose(names["f"], fix=True).fix
    # THEN the loop calls what goes behind with what the round is, not with what one of them was
    assert fix.alone == "f_round", fix
    assert "after_f_round(chosen_in)" in lines_of(fix), fix
    assert "after_f_round(chosen_in)" in fix.loop
    # AND launched rounds of both kinds do what they do
    with fix.applied() as made:
        names[fix.alone] = launches = Launches(made, fix.around, fix.bound)
        seen = eager(names, "f")
    assert launches.replays > 6
    assert not differences(truth, seen, TIMES), fix


SMOOTHED = """\
net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
classes = torch.arange(24) % 3
classes[::5] = -100
rows = torch.utils.data.TensorDataset(torch.randn(24, 4), classes)
loader = torch.utils.data.DataLoader(rows, batch_size=8)
def f():
    total = 0.0
    for n, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        logits = net(x)
        loss = F.cross_entropy(logits, y, label_smoothing=0.3 / (n + 1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    return total
args = ()
"""


def test_a_smoothing_of_labels_that_each_round_has_another_of_is_written_out(tmp_path: Path) -> None:
    # GIVEN a loop whose rounds smooth labels by other numbers, which torch takes as numbers WHEN it is rewritten
    truth, names = eager(run(SMOOTHED, tmp_path), "f"), run(SMOOTHED, tmp_path)
    fix: Any = pgk.diagnose(names["f"], fix=True).fix
    # THEN the round has the formula, also for rows that are left out
    assert fix.alone == "f_round", fix
    assert "torch.where((y != -100), -logits.log_softmax(1).mean(1), 0).sum() / (y != -100).sum()" in fix.diff, fix
    # AND launched rounds do what they do
    with fix.applied() as made:
        names[fix.alone] = launches = Launches(made, fix.around, fix.bound)
        assert not differences(truth, eager(names, "f"), TIMES), fix
    assert launches.replays > 6


TRELLIS = """\
import bisect
moves, names = torch.randn(4, 4).to(device), ["low", "high"]
args = (torch.randn(5, 4).to(device),)
def f(scores):
    best, back, ways = scores[0], [], []
    for row in scores[1:]:
        top, way = (best[:, None] + moves).max(0)
        best = top + row
        back.append(way)
        ways.append(names[bisect.bisect([2], way[0].item())])
    return best, torch.stack(back), ways
"""


def test_what_a_loop_keeps_of_its_rounds_is_cloned_behind_each(tmp_path: Path) -> None:
    # GIVEN a loop that keeps a result of each round, and another that only goes on to the next
    names = run(TRELLIS, tmp_path)
    # WHEN it is rewritten
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN what is kept alone is copied: who replays a graph by hand would have the last round's in all of them
    assert fix.alone == "f_round", fix
    assert "+        way = way.clone()" in fix.diff, fix
    assert "best.clone()" not in fix.diff, fix
    assert not [line for line in fix.verified if "clone" in line], fix


SEARCH = """\
net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
args = (torch.randn(12, 3).to(device),)
@torch.no_grad()
def f(points):
    best, most = None, -1.0
    for i in range(4):
        idx = random.sample(range(12), 3)
        part = points[idx]
        found = net(part).tanh().sum(0) + i
        score = (points @ found[:3]).abs().sum().item()
        if score > most:
            best, most = found, score
    return best * 2
"""


def test_what_a_loop_keeps_by_a_name_is_cloned_behind_each_launch(tmp_path: Path) -> None:
    # GIVEN a loop that keeps the best of what its rounds have found WHEN it is rewritten
    names = run(SEARCH, tmp_path)
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN its lines copy that, as the next replay would write there
    assert fix.alone == "f_round", fix
    assert "+        found = found.clone()" in fix.diff, fix
    assert not [line for line in fix.verified if "clone" in line], fix
