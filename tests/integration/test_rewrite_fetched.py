"""Batches that the host fetches inside a step are fetched before its launch, in the host's own order."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import lines_of, rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

NET = """
net = nn.Linear(3, 2).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
table, kinds = np.random.RandomState(0).randn(30, 3).astype(np.float32), np.random.RandomState(1).randint(0, 2, 30)
args = ()
"""
# What fetches, with a step that uses it, and lines that the fix has.
FETCHES = {
    "a dictionary of the host's loader": (
        NET
        + """
def loader():
    while True:
        rows = np.random.randint(0, 30, 4)
        yield {"x": torch.from_numpy(table[rows]), "y": torch.from_numpy(kinds[rows])}
batches = loader()
def f():
    batch = {name: each.to(device) for name, each in next(batches).items()}
    loss = F.cross_entropy(net(batch["x"]), batch["y"])
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
""",
        [
            'batch = {"x": batch_in[0], "y": batch_in[1]}',
            "for held, value in zip(batch_in, batch.values(), strict=True):",
        ],
    ),
    "a named tuple of a buffer": (
        NET
        + """
import collections
Rows = collections.namedtuple("Rows", "x y")
class Buffer:
    def __init__(self, size):
        self.size = size
    def draw(self, count):
        rows = torch.randint(self.size, (count,)).numpy()
        return Rows(torch.from_numpy(table[rows]).to(device), torch.from_numpy(kinds[rows]).to(device))
buffer = Buffer(30)
def f():
    rows = buffer.draw(4)
    loss = F.cross_entropy(net(rows.x), rows.y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
""",
        ["rows = Rows(rows_in[0], rows_in[1])", "rows = buffer.draw(4)"],
    ),
    "one for each micro step, in names of the step's own": (
        NET
        + """
def draw():
    rows = torch.randperm(30)[:4].numpy()
    return torch.from_numpy(table[rows]).to(device), torch.from_numpy(kinds[rows]).to(device)
def f():
    opt.zero_grad()
    for _ in range(2):
        x, y = draw()
        loss = F.cross_entropy(net(x), y) / 2
        loss.backward()
    opt.step()
    return loss.detach()
""",
        ["x, y = next(given), next(given)", "fetched += [x, y]"],
    ),
    "the first before the loop, the next in each of its rounds": (
        NET
        + """
def draw():
    rows = np.random.permutation(30)[:4]
    return torch.from_numpy(table[rows]).to(device), torch.from_numpy(kinds[rows]).to(device)
def f():
    x, y = draw()
    opt.zero_grad()
    for _ in range(2):
        loss = F.cross_entropy(net(x), y) / 2
        x, y = draw()
        loss.backward()
    opt.step()
    return loss.detach()
""",
        ["x, y = next(given), next(given)", "fetched = []"],
    ),
}
# What is not the host's alone, or not in an order that the host could keep.
STAYS = {
    "a helper that asks the model": NET
    + """
def draw():
    rows = np.random.randint(0, 30, 4)
    x = torch.from_numpy(table[rows]).to(device)
    return x, (net(x)[:, 0] > 0).long()
def f():
    x, y = draw()
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
""",
    "rounds that end by what the device finds": NET
    + """
def draw():
    rows = np.random.randint(0, 30, 4)
    return torch.from_numpy(table[rows]).to(device), torch.from_numpy(kinds[rows]).to(device)
def f():
    for _ in range(4):
        x, y = draw()
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if loss.item() < 0.6:
            break
    return loss.detach()
""",
}


@pytest.mark.parametrize("name", FETCHES)
def test_a_batch_is_fetched_before_the_launch(name: str, tmp_path: Path) -> None:
    # GIVEN a step that fetches its batch in the middle WHEN it is rewritten THEN that is whole, and so are its numbers
    text, wanted = FETCHES[name]
    fix = rewritten(text, tmp_path)
    assert fix.complete, str(fix)
    # AND the batch comes in tensors that stay
    assert set(wanted) <= set(lines_of(fix)), fix.diff
    assert "before_f()" in fix.usage


@pytest.mark.parametrize("name", STAYS)
def test_what_the_device_decides_is_not_fetched_before_it(name: str, tmp_path: Path) -> None:
    # GIVEN a batch of which the device decides something WHEN it is rewritten
    fix = rewritten(STAYS[name], tmp_path)
    # THEN nothing of it runs before the launch, and what is left is told
    assert "before_f" not in fix.diff or "draw()" not in "".join(lines_of(fix)), fix.diff
    assert fix.complete or fix.alone or fix.instead  # by itself a round may be a launch


CLOCK = (
    NET
    + """
began, ms = time.time(), []
def f():
    global began
    rows = np.random.randint(0, 30, 4)
    x = torch.from_numpy(table[rows]).to(device)
    loss = net(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    now = time.time()
    spent = now - began
    began = now
    if len(ms) < 99:
        ms.append(loss.item() + spent)
    return loss.detach()
"""
)


def test_a_clock_that_is_asked_when_all_is_done_goes_behind_the_launch(tmp_path: Path) -> None:
    # GIVEN a step that asks what time it is at its end, and keeps how long it was WHEN it is rewritten
    fix = rewritten(CLOCK, tmp_path)
    # THEN nothing tells to give the device the time, and the clock is asked behind the launch
    assert not any("now_in" in line for line in (*fix.instead, fix.diff)), str(fix)
    behind = fix.diff.partition("def after_f")[2]
    assert "now = time.time()" in behind, str(fix)


def test_statements_that_share_their_line_go_behind_the_launch_together(tmp_path: Path) -> None:
    # GIVEN a step whose last lines have several statements each WHEN it is rewritten
    text = """
net = nn.Linear(3, 2).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
n, total, log = 0, 0.0, []
args = (torch.randn(4, 3, device=device),)
def f(x):
    global n, total
    loss = net(x).square().mean(); opt.zero_grad(); loss.backward(); opt.step()
    total += loss.item(); n += 1
    if n % 2 == 0: log.append(total); total = 0.0
    last = loss.item(); twice = last * 2; log.append(twice)
    return loss.detach()
"""
    fix = rewritten(text, tmp_path)
    # THEN all of them are moved, each on a line of its own, and nothing stands in their places
    assert fix.complete, str(fix)
    assert {"total += loss.item()", "n += 1", "twice = last * 2", "log.append(twice)"} <= set(lines_of(fix))
    assert "pass" not in fix.diff
