"""What is said of numbers that the host keeps, fills a list with, or computes of what the step is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

# A step, the line that something is said of, what is said, and what is not.
HOST = {
    "returns that a loop fills from the last reward on": (
        """
from collections import deque
net = nn.Linear(3, 2).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
args = (torch.randn(3, 3, device=device),)
class Agent:
    def __init__(self):
        self.rewards, self.chosen = [], []
agent = Agent()
def act(x):
    scores = net(x).softmax(-1)
    at = torch.multinomial(scores, 1)
    agent.chosen.append(scores.gather(0, at).log())
    return at.item()
def f(x):
    for row in x:
        agent.rewards.append(1.0 + act(row))
    total, returns = 0, deque()
    for r in agent.rewards[::-1]:
        total = r + 0.9 * total
        returns.appendleft(total)
    gains = torch.tensor(returns).to(device)
    loss = (torch.cat(agent.chosen) * gains).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    del agent.rewards[:]
    del agent.chosen[:]
""",
        "gains = torch.tensor(returns).to(device)",
        "`returns` is filled on the host, at line",
        "sizes alone",
    ),
    "where a window of one size begins, which the host moves by what it has seen": (
        """
net = nn.Conv2d(1, 1, 3).to(device)
args = (torch.randn(1, 1, 12, 12, device=device),)
class Tracker:
    def __init__(self):
        self.center = [6, 6]
    def crop(self, img, size):
        y, x = self.center
        top = min(max(int(y) - size // 2, 0), img.shape[-2] - size)
        left = min(max(int(x) - size // 2, 0), img.shape[-1] - size)
        return img[:, :, top:top + size, left:left + size]
    @torch.no_grad()
    def update(self, img):
        score = net(self.crop(img, 6))
        at = score.argmax().item()
        self.center[0] = (self.center[0] + at // 4 + 1) % 12
        self.center[1] = (self.center[1] + at % 4 + 1) % 12
        return score
tracker = Tracker()
tracker.crop(args[0], 4)
def f(img):
    return tracker.update(img)
""",
        "return img[:, :, top:top + size, left:left + size]",
        "torch.arange(size, device=img.device)).index_select(3, left_in + torch.arange(size, device=img.device))`; wh",
        "torch.where(",
    ),
    "how many places there are by which values are picked for a mean": (
        """
net = nn.Linear(4, 1).to(device)
args = (torch.randn(6, 4, device=device),)
class Filter:
    count = 0
    def step(self, x):
        score = net(x)[:, 0].sigmoid()
        ids = torch.where(score < 0.6)
        loss = score[ids].mean(0)
        loss.backward()
        self.count += ids[0].size(0)
        return loss.item()
kept = Filter()
def f(x):
    return kept.step(x)
""",
        "ids = torch.where(score < 0.6)",
        "keep the mask, `there = score < 0.6`, in its place, and write `torch.where(there, score, 0).sum() / there.su",
        "there.long().argmax()",
    ),
    "counts of what is given, which a helper's weights come of": (
        """
counts = np.ones(3)
net = nn.Linear(4, 3).to(device)
args = (torch.randn(6, 4, device=device), torch.tensor([0, 2, 1, 2, 0, 2], device=device))
def weights():
    shares = 1 / counts
    return torch.FloatTensor(shares / shares.sum()).to(device)
def f(x, y):
    global counts
    counts = counts + np.bincount(y.cpu().numpy(), minlength=3)
    return F.cross_entropy(net(x), y, weight=weights()).detach()
""",
        "counts = counts + np.bincount(",
        "belongs before each launch, with line 20: `weights` there reads what it makes",
        "behind the launch: leave it",
    ),
    "what an object of the host's holds by then": (
        """
class Memory:
    rewards = [1.0, 2.0]
memory = Memory()
args = (torch.randn(2, device=device),)
def f(x):
    gains = torch.tensor(list(memory.rewards)).to(device)
    memory.rewards = [x.sum().item(), memory.rewards[0]]
    return x * gains
""",
        "gains = torch.tensor(list(memory.rewards)).to(device)",
        "",
        "sizes alone",
    ),
    "a rate by a count that the same method moves": (
        """
net = nn.Linear(3, 2).to(device)
class Scheduled:
    def __init__(self):
        self.opt, self.n = torch.optim.Adam(net.parameters(), lr=1.0), 0
    def step_and_update(self):
        self._update()
        self.opt.step()
    def _update(self):
        self.n += 1
        rate = 0.1 * min(self.n ** -0.5, self.n * 4 ** -1.5)
        for group in self.opt.param_groups:
            group["lr"] = rate
opt = Scheduled()
args = (torch.randn(4, 3, device=device), torch.randn(2, 4, 3))
def f(x, rows):
    total = 0
    for each in rows:
        loss = (net(each.to(device)) * net(x)).square().mean()
        opt.opt.zero_grad()
        loss.backward()
        opt.step_and_update()
        total += loss.item()
    return total
""",
        "self.n += 1",
        "belongs before each launch",
        "behind the launch",
    ),
    "a line of a log in the method that trains": (
        """
class Layer:
    def __init__(self):
        self.linear = nn.Linear(3, 3).to(device)
        self.opt = torch.optim.Adagrad(self.linear.parameters(), lr=0.1)
    def fit(self, x):
        loss = self.linear(x).square().mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return self.linear(x).detach()
class Net:
    def __init__(self):
        self.layers = [Layer(), Layer()]
    def train(self, x):
        for n, layer in enumerate(self.layers):
            print("layer", n)
            x = layer.fit(x)
net = Net()
args = (torch.randn(4, 3, device=device),)
def f(x):
    net.train(x)
""",
        'print("layer", n)',
        "belongs behind the launch: move it there yourself",
        "net.train(x)",
    ),
    "a running mean of the host's that the next line brings to the device": (
        """
class Running:
    def __init__(self):
        self.mean, self.count = np.zeros(3), 1e-4
    def update(self, x):
        delta = x.mean(0) - self.mean
        total = self.count + len(x)
        self.mean = self.mean + delta * len(x) / total
        self.count = total
running, net = Running(), nn.Linear(3, 2).to(device)
args = (torch.randn(4, 3, device=device),)
def f(x):
    rows = x.reshape(-1, 3)
    running.update(rows.cpu().numpy())
    scaled = (rows - torch.from_numpy(running.mean).to(device)).float()
    return net(scaled).sum()
""",
        "running.update(rows.cpu().numpy())",
        "brings what it writes to the device",
        "leave it, it moves there",
    ),
}


@pytest.mark.parametrize("name", HOST)
def test_what_the_host_keeps_is_told_with_where_it_belongs(name: str, tmp_path: Path) -> None:
    # GIVEN something that the host keeps, or fills WHEN it is rewritten, or told
    text, line, wanted, wrong = HOST[name]
    names = run(text, tmp_path)
    found: Any = pgk.diagnose(names["f"], *names["args"], fix=True)
    told = [each for each in found.fix.instead if f" {line}" in each]
    # THEN its line says what it is, and nothing else
    assert found.fix.complete or found.fix.alone or (told and wanted in told[0]), found.fix
    assert not any(wrong in each for each in told), told
    # AND no number of the host's is given to the device that the device does not read
    assert not any("_in.fill_(" in each and "delta" in each for each in found.fix.instead), found.fix


def test_a_file_that_is_rewritten_again_is_called_rewritten_once(tmp_path: Path) -> None:
    # GIVEN lines of which one is mended once another is, and one that stays WHEN its capture fails
    text = """
table = torch.linspace(0, 1, 10, device=device)
args = (torch.randn(4, device=device), torch.tensor(5, device=device))
def f(x, step):
    t = step.item()
    scaled = x * table[t]
    kept = scaled[scaled > 0]
    return kept.sort()[0] + torch.unique(kept).numel()
"""
    names = run(text, tmp_path)
    found: Any = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN the file has one mark behind its name
    assert "(rewritten) (rewritten)" not in str(found.fix)


def test_numbers_in_a_list_that_become_tensors_are_told_with_their_warm_up(tmp_path: Path) -> None:
    # GIVEN a place in a list, moved by what the step has found, and listed WHEN it is rewritten
    text = """
net = nn.Linear(4, 9).to(device)
args = (torch.randn(4, device=device),)
class Tracker:
    def __init__(self):
        self.center, self.boxes = [3, 4], []
    @torch.no_grad()
    def update(self, x):
        score = net(x)
        at = score.argmax().item()
        dy, dx = at // 3, at % 3
        self.center[0] += dy
        self.center[1] += dx
        self.boxes.append([self.center[1] - 4, self.center[0] - 4, 8, 8])
        return score
tracker = Tracker()
def f(x):
    return tracker.update(x)
"""
    names = run(text, tmp_path)
    found: Any = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN it is said that the first call makes tensors of the numbers, where they do not stay behind the launch
    assert found.fix.complete, found.fix
    assert "`center[0]`, `center[1]` are tensors from now on where they were numbers" in str(found.fix), found.fix


def test_rows_by_which_a_generator_picks_are_told_to_be_found_before_the_launch(tmp_path: Path) -> None:
    # GIVEN a generator that picks rows by lists of a sampler WHEN it is rewritten, or told
    text = """
from torch.utils.data.sampler import BatchSampler, SubsetRandomSampler
net, store = nn.Linear(3, 1).to(device), torch.randn(8, 3, device=device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
args = (torch.randn(8, 1, device=device),)
def parts(gains):
    for rows in BatchSampler(SubsetRandomSampler(range(8)), 4, drop_last=True):
        yield store[rows], gains[rows]
def f(gains):
    for x, y in parts(gains):
        loss = F.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.detach()
"""
    names = run(text, tmp_path)
    found: Any = pgk.diagnose(names["f"], *names["args"], fix=True)
    told = [each for each in found.fix.instead if " yield store[rows]" in each]
    # THEN no round of the generator is told to be what is captured
    assert found.fix.complete or (told and "Once `rows_in`, a list with a tensor of whole numbers" in told[0]), (
        found.fix
    )
    assert not any("make one round the function" in each for each in found.fix.instead), found.fix


@pytest.mark.parametrize("asked", ["x, y = next(batches)\n    out = net(x) - y", "out = net(next(batches)[0])"])
def test_what_a_generator_brings_is_asked_for_before_each_launch(asked: str, tmp_path: Path) -> None:
    # GIVEN a generator whose own lines copy to the device
    text = f"""
net = nn.Linear(3, 2).to(device)
rows = [(torch.full((4, 3), float(k)), torch.zeros(4, 2)) for k in range(5)]
def loader():
    while True:
        for x, y in rows:
            yield x.to(device), y.to(device)
batches = loader()
args = ()
def f():
    {asked}
    return out.detach()
"""
    names = run(text, tmp_path)
    # WHEN
    found: Any = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN its loop is not told to be what is captured: the step asks it before the launch
    told = "\n".join(map(str, found.fix.instead))
    assert "make one round the function" not in told, told
    assert found.fix.complete or "ask it before each launch" in told, found.fix
