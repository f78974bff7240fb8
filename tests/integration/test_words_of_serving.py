"""Words for steps that serve requests: batches of the host, rules that write to what they are given, picked experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run
from tests.programs.running import quiet

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")
BATCH = """
rows, lin = [[1.0, 2.0], [3.0]], nn.Linear(4, 2).to(device)
def f(x):
    rows.append([rows[-1][0] + 1, 2.0])
    ids = torch.zeros(2, 4)
    for i, row in enumerate(rows[-2:]):
        ids[i, : len(row)] = torch.tensor(row)
    return lin(ids.to(device))
args = (None,)
"""
CORNERS = """
lin = nn.Linear(4, 2).to(device)
def f(x):
    ids = torch.zeros(2, 4)
    ids[0, :2] = 1
    return lin(ids.to(device))
args = (None,)
"""
RULES = """
class Suppress:
    def __init__(self):
        self.ids = [1, 2]
    def apply(self, logits, tokens):
        logits[:, self.ids] = -math.inf
class Rules:
    def apply(self, logits, tokens):
        for k in range(tokens.shape[0]):
            last = tokens[k].tolist()
            if last[-1] > 3:
                logits[k, 4:] = -math.inf
rules, lin = [Suppress(), Rules()], nn.Linear(3, 6).to(device)
@torch.no_grad()
def f(tokens):
    logits = lin(tokens.float())
    for rule in rules:
        rule.apply(logits, tokens)
    return logits.argmax(-1)
args = (torch.tensor([[1, 2, 5], [3, 4, 2]]).to(device),)
"""
EXPERTS = """
experts = nn.ModuleList(nn.Linear(3, 3) for _ in range(2)).to(device)
@torch.no_grad()
def f(x):
    at = x.sum().long().abs() % 2
    expert = experts[at]
    return expert(x)
args = (torch.ones(2, 3, device=device),)
"""
HIT = """
class Moe(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))
    def forward(self, x):
        out = torch.zeros_like(x)
        for e in (x.sum(0) > 0).nonzero():
            expert = self.experts[e % 2]
            rows = torch.where(x[:, 0] > e)[0]
            out.index_add_(0, rows, expert(x[rows]))
        return out
net = Moe().to(device)
def f(x):
    return net(x)
args = (torch.ones(2, 3, device=device),)
"""
ADAPTERS = """
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.adapters = nn.ModuleDict({name: nn.Linear(3, 3) for name in ("fr", "de")})
        self.active = "fr"
    def forward(self, x):
        return x + self.adapters[self.active](x)
net, names = Layer().to(device), ["de", "fr"]
def f(x):
    names.append(names.pop(0))
    net.active = names[0]
    return net(x)
args = (torch.ones(2, 3, device=device),)
"""
MEMORY = """
class Core:
    def __init__(self):
        self.n, self.most = 0, 3
        self.mem = torch.ones(2, 2, device=device)
    def f(self, x):
        self.n += 1
        y = self.mem.sum(1) + x[:, 0]
        if self.n % 3 == 0:
            self.mem = torch.cat([self.mem, x], -1)[..., -self.most * x.shape[1] :]
        return y
f, args = Core().f, (torch.ones(2, 2, device=device),)
"""
HIDDEN = """
class Stream:
    def __init__(self):
        self.cell = nn.LSTMCell(2, 2).to(device)
        self.hidden = (torch.zeros(1, 2, device=device), torch.zeros(1, 2, device=device))
    @torch.no_grad()
    def f(self, x):
        h, c = self.cell(x, self.hidden)
        self.hidden = (h, c)
        return h * 2
f, args = Stream().f, (torch.ones(1, 2, device=device),)
"""
SCHEDULE = """
class Sampler:
    def __init__(self):
        self.i = 0
    def f(self, x):
        t = self.i / 12
        if 0.2 < t < 0.8:
            w = 1 + math.sin(math.pi * t)
            x = w * x
        self.i = (self.i + 1) % 12
        return x
f, args = Sampler().f, (torch.ones(2, 2, device=device),)
"""
INDEX = """
class Index:
    def __init__(self):
        self.rows, self.docs = torch.ones(3, 2, device=device), []
    def add(self, x):
        self.rows = torch.cat([self.rows, x])
        self.docs.append(len(self.docs))
    def f(self, x):
        best = (x @ self.rows.T).amax()
        if best < 0.5:
            self.add(x)
        return best
f, args = Index().f, (torch.ones(1, 2, device=device),)
"""


def told(text: str, folder: Path) -> Any:
    """What is said of a program's ``f``."""
    names = run(text, folder)
    with quiet():
        return pgk.diagnose(names["f"], *names["args"])


def test_a_batch_that_the_host_fills_is_copied_before_each_launch(tmp_path: Path) -> None:
    # GIVEN a batch that a step fills with what each request has WHEN it is diagnosed
    found = told(BATCH, tmp_path)
    # THEN it comes before each launch, and is not made on the device, where it would be filled by copies
    fix = next(f.fix for f in found.failures if f.code == "copy-to-gpu")
    assert "`ids_in.copy_(ids)`; here `ids_in` for `ids.to(device)`" in fix, fix
    # AND one that is the same in each step is made there
    fix = next(f.fix for f in told(CORNERS, tmp_path).failures if f.code == "copy-to-gpu")
    assert "ids_in" not in fix, fix


def test_a_rule_that_writes_to_what_it_is_given_stays_in_the_step(tmp_path: Path) -> None:
    # GIVEN rules that write to the logits of a step, by a list and by what they read WHEN it is diagnosed
    found = told(RULES, tmp_path)
    # THEN none of them goes behind the launch alone, as the step picks of these logits
    words = {f.frame.line: f.fix.rpartition("after   ")[2] for f in found.failures if f.frame is not None}
    assert not any("take it out of the step" in each for each in words.values()), words
    assert any("decides what is written to `logits` below" in each for each in words.values()), words
    # AND the list has to come to the device: a number there is not enough
    fix = next(f.fix for f in found.failures if f.code == "cpu-index")
    assert "marked_in" in fix or "_there" in fix, fix


def test_a_module_that_is_picked_by_what_is_read_is_run_with_all(tmp_path: Path) -> None:
    # GIVEN an expert that a tensor of the device picks, and that the step calls WHEN it is diagnosed
    found = told(EXPERTS, tmp_path)
    # THEN the list of modules is no table that an index of the device picks of
    assert found.failures
    assert not any("reshape(1)][0]" in f.fix for f in found.failures), [f.fix for f in found.failures]
    # AND, where a loop goes on with it, its line does not go behind the launch alone
    assert any("picks what runs, `expert`" in f.fix for f in told(HIT, tmp_path).failures)


def test_a_module_that_a_name_picks_has_a_graph_for_each(tmp_path: Path) -> None:
    # GIVEN an adapter that each request names WHEN it is diagnosed
    found = told(ADAPTERS, tmp_path)
    # THEN there is a graph for each name, once the line that sets it is done
    fix = next(f.fix for f in found.failures if f.code == "stale-input")
    assert "`graphs[self.active]`" in fix, fix
    assert "which sets it, done before that" in fix, fix


def test_a_window_in_a_branch_is_told_as_one_that_fills(tmp_path: Path) -> None:
    # GIVEN a memory that grows in each third step, and is cut to so many times a width WHEN it is diagnosed
    found = told(MEMORY, tmp_path)
    # THEN its branch has a graph for each way once it is full, and no room that it would run out of
    words = [f.fix for f in found.failures]
    assert any("is a window" in each and "`graphs[bool(self.n % 3 == 0)]`" in each for each in words), words
    assert not any("self.filled" in each for each in words), words


def test_a_tuple_of_states_is_written_one_by_one(tmp_path: Path) -> None:
    # GIVEN a tuple of tensors that each step exchanges WHEN it is diagnosed
    fix = next(f.fix for f in told(HIDDEN, tmp_path).failures if f.code == "stale-input")
    # THEN each of them is written, as a tuple has no copy_
    assert "`for old, new in zip(self.hidden, (h, c)): old.copy_(new)`" in fix, fix


def test_a_number_of_the_hosts_keeps_its_function_in_a_branch(tmp_path: Path) -> None:
    # GIVEN a weight that the host computes in a branch of its own WHEN it is diagnosed
    found = told(SCHEDULE, tmp_path)
    # THEN it is no torch.sin, which takes no number
    assert found.failures
    assert not any("torch.sin(math.pi * t)" in f.fix for f in found.failures), [f.fix for f in found.failures]


def test_a_method_that_lets_an_index_grow_is_not_called_always(tmp_path: Path) -> None:
    # GIVEN an index to which a step adds what it does not find WHEN it is diagnosed
    found = told(INDEX, tmp_path)
    # THEN the method is not called in each step, by which rows and documents would grow
    fix = next(f.fix for f in found.failures if f.code in ("data-dependent-branch", "sync-item"))
    assert "call it always" not in fix, fix
    assert "behind" in fix, fix
