"""Numbers that a caller sets around the function whose round, or part, a graph holds: it reads them from a tensor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import launched

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

HEAD = """\
class Head(nn.Module):
    heat = 1.0
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(12, 8)
        self.net = nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8), nn.SiLU())
        self.out = nn.Linear(8, 12)
    def forward(self, t, c):
        return self.out(self.net(self.emb(t) + c))
class Decoder:
    def __init__(self):
        torch.manual_seed(0)
        self.net, self.heat, self.calls, self.shown = Head().to(device).eval(), 1.0, 0, 0.0
"""
ROUND = """\
    def propose(self, t, c):
        rows = []
        for _ in range(4):
            p = (self.net(t, c) / self.heat).softmax(-1)
            t = p.argmax(-1)
            rows.append(p)
        return torch.stack(rows)
"""
PART = """\
    def propose(self, t, c):
        a = self.net(t, c)
        p = (a / self.heat).softmax(-1)
        q = (self.net(p.argmax(-1), c) / self.heat).softmax(-1)
        return torch.stack([p, q])
"""
STEP = """\
    @torch.no_grad()
    def step(self, t, c):
        rows = self.propose(t, c)
        n = int((rows[0] > 0.05).sum())
        self.calls += 1
        if self.calls % 8 == 0:
            {sets}
        return rows[:, :n]
f = Decoder().step
args = (torch.tensor(3, device=device), torch.randn(8, device=device))
"""
HEATED = "self.heat = self.heat * 0.5"
TEXT = {"round": HEAD + ROUND + STEP.format(sets=HEATED), "part": HEAD + PART + STEP.format(sets=HEATED)}
GLOBAL = TEXT["round"].replace("class Decoder", "heat = 1.0\nclass Decoder").replace("/ self.heat", "/ heat")
GLOBAL = GLOBAL.replace("        rows = self.propose", "        global heat\n        rows = self.propose")
TEXT["global"] = GLOBAL.replace(HEATED, "heat = heat * 0.5")
TEXT["argument"] = (
    TEXT["round"]
    .replace("(self, t, c):\n        rows = []", "(self, t, c, heat):\n        rows = []")
    # of the method alone, as its caller reads it
    .replace("/ self.heat", "/ heat")
    .replace("self.propose(t, c)", "self.propose(t, c, self.heat)")
)
IN_A_MODULE = (
    TEXT["round"]
    .replace("/ self.heat", "/ 1.0")
    .replace("return self.out(self.net(self.emb(t) + c))", "return self.out(self.net(self.emb(t) + c)) / self.heat")
    .replace(HEATED, "self.net.heat = self.net.heat * 0.5")
)
LEVEL = """\
import bisect
EDGES = [0.5, 1.3, 9.7]
def level(heat):
    for n, edge in enumerate(EDGES):
        if heat < edge:
            return n + 1.0
    return 4.0
"""
STAYS = HEAD + ROUND + STEP.format(sets="self.shown = float(self.calls)")


@pytest.mark.parametrize("kind", ["round", "part", "global", "argument"])
def test_a_number_that_a_caller_sets_is_given_to_a_round_in_a_tensor(kind: str, tmp_path: Path) -> None:
    # GIVEN a helper whose round, or part, reads a number that its caller sets behind it, in each eighth call
    # WHEN it is launched for more calls than any trial has THEN it gives what the program gives
    fix = launched(TEXT[kind], tmp_path)
    # AND what a graph holds reads a tensor that is made, or filled, of the number
    assert "heat_in" in fix.diff, fix
    assert fix.alone or fix.complete, fix


def test_a_round_whose_module_reads_such_a_number_is_not_called_verified(tmp_path: Path) -> None:
    # GIVEN a number that no line of the round itself reads, but a module that it calls WHEN THEN it is launched right
    fix = launched(IN_A_MODULE, tmp_path)
    # AND no graph of a round that keeps the number is shown
    assert not fix.alone, fix


def test_a_number_that_nobody_sets_stays_as_it_is(tmp_path: Path) -> None:
    # GIVEN a caller that sets another number, which no round reads WHEN
    fix = launched(STAYS, tmp_path)
    # THEN the round reads its own as it did
    assert "heat_in" not in fix.diff, fix
    assert fix.alone or fix.complete, fix


@pytest.mark.parametrize(
    ("sets", "kept"), [("self.bias, _ = (self.bias - 0.5).sort()", False), ("self.bias -= 0.5", True)]
)
def test_a_tensor_that_a_caller_exchanges_is_none_that_a_round_reads(sets: str, kept: bool, tmp_path: Path) -> None:
    # GIVEN a helper whose round reads a tensor that its caller exchanges, or writes in place, in each eighth call
    text = TEXT["round"].replace(HEATED, sets).replace("/ self.heat", "+ self.bias")
    text = text.replace("self.heat, self.calls", "self.bias, self.calls").replace(
        ".eval(), 1.0, 0,", ".eval(), torch.zeros(12, device=device), 0,"
    )
    # WHEN it is launched for more calls than any trial has THEN it gives what the program gives
    fix = launched(text, tmp_path)
    # AND a graph of the round is shown only where the tensor stays
    assert bool(fix.alone or fix.complete) == kept, fix


COMPARED = (
    LEVEL
    + """\
class Runner:
    def __init__(self):
        torch.manual_seed(0)
        self.net, self.heat = nn.Linear(8, 8).to(device), 5.2
    @torch.no_grad()
    def step(self, x):
        self.heat += 0.1
        y = self.net(x).relu() + 1.0
        y = (y * READS).tanh()
        n = int((y > 0.5).sum())
        if n > 9 and self.heat > 8.0:
            self.heat -= 2.0
        return y.flatten()[:n]
f = Runner().step
args = (torch.randn(4, 8, device=device),)
"""
)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("reads", "gives"),
    [
        ("level(self.heat)", "heat_in = torch.full((), self.heat, dtype=torch.float64, device=device)"),
        ("(1 + bisect.bisect(EDGES, self.heat))", "torch.full((), 1 + bisect.bisect(EDGES, self.heat), device=device)"),
    ],
)
def test_a_number_that_others_compare_keeps_its_digits(reads: str, gives: str, tmp_path: Path) -> None:
    # GIVEN a part that reads what a function of the program's, or of Python's, finds of a number by comparing it
    # WHEN it is launched THEN it gives what the program gives
    fix = launched(COMPARED.replace("READS", reads), tmp_path)
    # AND what is given to that has all digits: a tensor of float32 comes to an edge a step sooner, or later
    assert gives in fix.diff, fix
