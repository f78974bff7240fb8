"""What is the same in each call is made in the first one and kept: masks, labels, indexes and tables of a helper."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from paramgraph_kit.rewrite.advised.host.made_on_host import index_made
from paramgraph_kit.rewrite.provisos import FIRST as FIRST_MADE
from paramgraph_kit.rewrite.provisos import provisos
from paramgraph_kit.rewrite.source.edits import Source
from paramgraph_kit.rewrite.source.place import Place
from paramgraph_kit.rewrite.source.unchanging import deciders
from paramgraph_kit.trace.model import Failure
from tests.integration.rewritten import Fixed

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

CONTRAST = """
class Loss:
    def __init__(self, n, views): self.n, self.views, self.t = n, views, 0.5
    def targets(self):
        labels = torch.cat([torch.arange(self.n) for _ in range(self.views)], dim=0)
        same = (labels[None] == labels[:, None])
        same.fill_diagonal_(False)
        return same
    def __call__(self, z):
        same = self.targets().to(z.device)
        sim = z @ z.T
        near = sim[same].view(len(sim), -1)
        far = sim[~same & ~torch.eye(len(sim), dtype=torch.bool, device=z.device)].view(len(sim), -1)
        labels = torch.zeros(len(sim), dtype=torch.long).to(z.device)
        return F.cross_entropy(torch.cat([near, far], dim=1) / self.t, labels)
net = nn.Linear(5, 4).to(device)
loss = Loss(3, 2)
def f(x):
    net.zero_grad()
    found = loss(F.normalize(net(x), dim=1))
    found.backward()
    return found.detach()
args = (torch.randn(6, 5, device=device),)
"""
TABLES = """
def pick(table, t, shape):
    found = torch.from_numpy(table).to(device=t.device)[t].float()
    while len(found.shape) < len(shape):
        found = found[..., None]
    return found.expand(shape)
class Process:
    weights = [0.5, 2.0, 1.0, 4.0]
    def __init__(self, betas):
        self.betas = betas
        self.alphas = np.cumprod(1 - betas)
        self.map = [i * 10 for i in range(len(betas))]
    def noised(self, x, t, noise):
        late = np.append(self.betas[1], self.betas[1:])
        late = pick(np.log(late), t, x.shape)
        return pick(np.sqrt(self.alphas), t, x.shape) * x + pick(np.sqrt(1 - self.alphas), t, x.shape) * noise + late
    def times(self, t):
        t = t + torch.tensor(self.weights, device=t.device).argmin()
        return torch.tensor(self.map, device=t.device)[t]
process = Process(np.linspace(1e-3, 0.1, 8))
def f(x, noise, t):
    return process.noised(x, t, noise) * process.times(t)[:, None]
args = (torch.randn(3, 4, device=device), torch.randn(3, 4, device=device), torch.tensor([1, 5, 7], device=device))
"""
WINDOWS = """
class Bias(nn.Module):
    def __init__(self, side):
        super().__init__()
        self.side, self.table = side, nn.Parameter(torch.randn((2 * side - 1) ** 2, 2))
    def index(self):
        at = np.stack(np.meshgrid(np.arange(self.side), np.arange(self.side), indexing="ij")).reshape(2, -1)
        apart = (at[:, :, None] - at[:, None, :]).transpose(1, 2, 0) + self.side - 1
        apart[:, :, 0] *= 2 * self.side - 1
        return torch.from_numpy(apart.sum(-1))
    def forward(self, x):
        index = self.index().view(-1)
        upper, lower = torch.triu_indices(4, 4, 1)
        return x + self.table[index].view(4, 4, 2).sum() + x[:, upper, lower].mean() * 2
bias = nn.ModuleList([Bias(2), Bias(2)]).to(device)
def f(x):
    for each in bias: x = each(x)
    return x
args = (torch.randn(3, 4, 4, device=device),)
"""


CLOSED = """
class Levels:
    def __init__(self, n): self.roots = torch.linspace(0.1, 2.0, n).sqrt()
def make(levels, n):
    sigmas = torch.flip(levels.roots, dims=(0,))
    def loss(x, t, sizes):
        box = torch.tensor(sizes, device=x.device).sum()
        return (x * sigmas.to(x.device)[t][:, None]).sum() + levels.roots.to(x.device)[t].sum() + box
    return loss
loss = make(Levels(8), 8)
def f(x, t):
    return loss(x, t, [0, 2, 5]) + loss(x * 2, t, [1, 2, 3])
args = (torch.randn(3, 4, device=device), torch.tensor([1, 5, 7], device=device))
"""


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (CONTRAST, ["made_once[key] = same.nonzero(as_tuple=True)", "near = sim[made_once[key]].view(len(sim), -1)"]),
        (TABLES, ["found = made_once[key][t].float()", "= made_once[key][t]", "t = t + made_once[key]"]),
        (WINDOWS, ["self.table[made_once[key]].view(4, 4, 2).sum()"]),
        (
            CLOSED,
            [
                "        box = made_once[key]\n",
                "made_once[key] = sigmas.to(x.device)",
                "levels.roots.numpy().tobytes()",
            ],
        ),
    ],
    ids=["masks of sizes", "tables of a helper", "an index of numpy", "tables of a closure, lists of calls"],
)
def test_what_is_the_same_in_each_call_is_made_in_the_first(text: str, lines: list[str], fixed: Fixed) -> None:
    # GIVEN masks, tables and indexes that are made of sizes and settings alone, in lines before or in helpers
    # WHEN rewritten
    found = fixed(text)
    # THEN it is whole, what they come to is made once, and it is said that this is the first call
    assert found.complete, str(found)
    assert all(line in found.diff for line in lines), found.diff
    assert "it runs once before it is captured" in str(found)


FIRST = """
n, smooth = 0, None
args = (torch.randn(4, 3, device=device),)
def f(x):
    global n, smooth
    loss = x.square().mean()
    smooth = loss if smooth is None else 0.9 * smooth + 0.1 * loss
    best = None
    for row in x:
        best = row if best is None else torch.maximum(best, row)
    return smooth + best
"""


def test_what_the_first_call_makes_is_said_to_need_one(fixed: Fixed) -> None:
    # GIVEN an average that is None before the first step, and a best row that is None before each step's first
    # WHEN rewritten
    found = fixed(FIRST)
    # THEN it is said beside the diff that a step has to run before the capture, for the average alone
    assert found.complete, str(found)
    assert "the first call makes `smooth`" in str(found), found
    assert "the first call makes `best`" not in str(found), found


@pytest.mark.parametrize(
    ("new", "name"),
    [
        ("if h is None:\n    h = tuple(new.clone() for new in now)", "h"),
        ("if isinstance(logs.get(key), torch.Tensor):\n    logs[key].copy_(new)", "logs[key]"),
        ("self.h = self.h.copy_(new) if self.h is not None else new.clone()", "self.h"),
        ("h = h.clone()", ""),
    ],
)
def test_each_way_to_make_it_in_the_first_call_is_said(new: str, name: str) -> None:
    # GIVEN lines that make a tensor in the first call and write it in the others, or do no such thing
    texts = ["def f():\n", "    global h\n", *(f"    {line}\n" for line in new.split("\n"))]
    # WHEN asked for what goes for them THEN it is that the first call comes before a capture
    assert provisos([f"+{line}" for line in texts], texts) == [FIRST_MADE.format(name)] * bool(name)


CHANGED = {
    "a table that another method writes": "def learn(n): process.alphas[n] = 0.5\n",
    "a table that gets another value": "def longer(): process.betas = np.linspace(1e-4, 0.2, 8)\n",
    "a list that grows": "def grow(): process.map.append(80)\n",
}


@pytest.mark.parametrize("more", CHANGED.values(), ids=CHANGED.keys())
def test_a_table_that_the_file_changes_is_not_kept(more: str, fixed: Fixed) -> None:
    # GIVEN the same tables, and something in the file that changes one WHEN rewritten THEN that is not kept
    assert not fixed(TABLES + more).complete


def test_memory_that_a_draw_writes_is_not_kept(fixed: Fixed) -> None:
    # GIVEN noise of the CPU that helpers make anew WHEN rewritten THEN no line keeps what it is drawn into
    found = fixed("""
class Noisy(nn.Module):
    def noise(self, mu):
        std = mu.exp()
        eps = torch.FloatTensor(std.size()).normal_().to(device)
        return eps.mul(std)
    def forward(self, x): return x + self.noise(x)
model = Noisy()
def f(x):
    y = model(x)
    return y.sum()
args = (torch.randn(3, 4, device=device),)
""")
    assert "made_once" not in found.diff, found


DECIDED = {
    "torch.ones(n, n).tril()": ("n",),
    "torch.arange(x.shape[1]) < self.most": ("x.shape", "self.most"),
    "torch.eye(len(y), device=x.device)": ("y.shape", "x.device"),
    "np.outer(self.weights, LIMITS)": ("self.weights.tobytes()", "self.weights.dtype.str", "self.weights.shape"),
    "filled": ("n",),
    "self.window(n)": ("n", "self.most"),
    "y > 0": None,  # data
    "torch.ones(n) * torch.rand(n)": None,  # drawn
    "torch.full((n,), self.seen)": None,  # counted
    "drawn": None,  # written with what was drawn
    "chosen": None,  # which one is data's choice
    "self.noisy(n)": None,  # it writes something else
    "time.time()": None,
    "torch.full((n,), ROUND)": None,  # the number of a loop around
    "torch.zeros(n).uniform_()": None,
    "later": None,  # nobody knows of it before the line
}


@pytest.mark.parametrize(("text", "expected"), DECIDED.items(), ids=DECIDED.keys())
def test_what_decides_a_value_is_told(text: str, expected: tuple[str, ...] | None, tmp_path: Path) -> None:
    # GIVEN a method with values of sizes and settings, and others
    file = tmp_path / "program.py"
    file.write_text(f"""
class Model:
    def __init__(self): self.most, self.seen, self.weights = 3, 0, np.ones(2)
    def window(self, size):
        made = torch.zeros(size)
        for i in range(size):
            made[i] = self.most * i
        return made
    def noisy(self, size):
        self.log = size
        return torch.zeros(size)
    def f(self, x, n):
        y = x * 2
        self.seen += 1
        filled, drawn = torch.zeros(n), torch.zeros(n)
        filled[0] = 1
        drawn.uniform_(0, 1)
        chosen = torch.ones(n)
        if y.sum() > 0:
            chosen = torch.zeros(n)
        out = {text}
        later = 3
        return out, later
for ROUND in range(3):
    Model()
""")
    source = Source.of(str(file))
    assert source is not None
    statement = source.statement(next(n for n, line in enumerate(source.lines, 1) if "out = " in line))
    assert isinstance(statement, ast.Assign)
    space = {"torch": torch, "np": np, "time": time, "LIMITS": [1.0, 2.0], "ROUND": 2}
    held = {"most": 3, "seen": 1, "weights": np.ones(2)}
    failure = Failure("copy-to-gpu", "", "")
    place = Place(source, statement, failure, "device", space, plain=("n",), attributes=held, entry="f")
    # WHEN an expression is looked at THEN what decides its value is told, or that nobody knows
    assert deciders(place, statement.value) == expected


PICKED = """
net = nn.Linear(5, 4).to(device)
def f(x):
    y = net(x)
    at = y.topk(2)[1]
    rows = {rows}
    y[torch.arange(y.shape[0]).view(-1, 1), at] = 0.0
    return rows + y.sum()
args = (torch.randn(3, 5, device=device),)
"""


def test_places_of_a_range_that_is_shaped_are_made_where_they_pick(fixed: Fixed) -> None:
    # GIVEN ranges of the CPU with more dimensions, beside places that the device has found WHEN rewritten
    found = fixed(PICKED.format(rows="y[torch.arange(len(x))[:, None], at].sum()"))
    # THEN they are made on the device
    assert found.complete, str(found)
    assert "y[torch.arange(len(x), device=device)[:, None], at].sum()" in found.diff


def test_what_is_drawn_beside_such_a_range_is_told_with_it(tmp_path: Path) -> None:
    # GIVEN a range, and places that the CPU draws, in one index
    file = tmp_path / "program.py"
    file.write_text("""
def f(self, y, n):
    some = torch.randint(4, (n, 2))
    return y[:, torch.arange(n).unsqueeze(1), some]
""")
    source = Source.of(str(file))
    assert source is not None
    statement = source.statement(4)
    assert statement is not None
    # WHEN the line is told THEN both are made where they pick
    place = Place(source, statement, Failure("cpu-index", "", ""), "device", {"torch": torch}, plain=("n",))
    told = index_made(place)
    assert told.startswith(
        "make the index where `y` is: `torch.arange(n, device=y.device)`; `some` is drawn on the CPU"
    )
    assert "`some = torch.randint(4, (n, 2), device=y.device)` draws it there" in told
