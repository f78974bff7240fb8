"""What a diff prints of a part that a graph holds: its caller takes what the part returns, as it was tried."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite import round_shown
from paramgraph_kit.rewrite.round_calls import unpacks_otherwise
from tests.integration.rewritten import lines_of, run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

# The rest of the step is behind the part, what it writes at a place needs a second round of rewriting.
TABLE = """
class Meter:
    def __init__(self):
        self.reset()
    def reset(self):
        self.total = self.n = 0
    def note(self, value, n):
        self.total += value * n
        self.n += n
        self.mean = self.total / self.n
class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.slow = nn.Linear(10, 4), nn.Linear(10, 4).requires_grad_(False)
        self.register_buffer("rows", torch.zeros(4, 48))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))
    @torch.no_grad()
    def keep(self, y):
        at = int(self.at)
        self.rows[:, at:at + 16] = y.T
        self.at[0] = (at + 16) % 48
    def forward(self, x, keep):
        with torch.no_grad():
            for a, b in zip(self.net.parameters(), self.slow.parameters()):
                b.data = b.data * keep + a.data * (1 - keep)
            old = self.slow(x)
        out = self.net(x) - old + self.rows.sum(1)
        KEEP
        return out
class Trainer:
    def __init__(self):
        self.model = Two().to(device)
        self.optimizer = torch.optim.SGD(self.model.net.parameters(), lr=0.05)
        self.errors, self.hits = Meter(), Meter()
    def f(self, x, y, keep):
        out = self.model(x, keep)
        loss = F.cross_entropy(out, y)
        hit = (out.argmax(1) == y).float().mean(0, keepdim=True)
        self.errors.note(loss.item(), x.size(0))
        self.hits.note(hit[0], x.size(0))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
trainer = Trainer()
f = trainer.f
args = (torch.randn(16, 10).to(device), torch.randint(0, 4, (16,)).to(device), 0.9)
"""


def _takes(lines: list[str]) -> list[str]:
    return [line for line in lines if "= f_part(" in line]


@pytest.mark.parametrize("kept", ["self.keep(old)", "pass"])
def test_the_caller_in_a_diff_takes_what_the_part_returns(kept: str, tmp_path: Path) -> None:
    # GIVEN a step with results that are noted behind its part, also of a part rewritten in several rounds WHEN fixed
    names = run(TABLE.replace("KEEP", kept), tmp_path)
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN its caller takes both results, and calls what notes the other one
    lines = lines_of(fix)
    assert _takes(lines), fix
    assert all("," in line.partition("=")[0] for line in _takes(lines)), fix
    assert any(line.startswith("after_f_part(") for line in lines), fix
    # AND what meters count behind the launch is not said to be read by its graph, although the caller has one, too
    assert "which a graph reads where it is" not in str(fix), fix


def test_a_caller_that_was_not_tried_is_not_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN the same, where the function with these calls is not what it was
    monkeypatch.setattr(round_shown, "calls_itself", lambda *_: [])
    names = run(TABLE.replace("KEEP", "pass"), tmp_path)
    # WHEN it is fixed
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN no caller is printed that takes another number of values than its part returns
    assert not _takes(lines_of(fix)), fix


@pytest.mark.parametrize(
    ("takes", "gives", "wrong"),
    [
        ("loss", "loss, hit", True),
        ("loss, hit", "loss, hit", False),
        ("loss", "loss", False),
        ("loss, hit", "loss", True),
        ("loss, *rest", "loss, hit, h", False),
    ],
)
def test_lines_that_take_other_results_are_seen(takes: str, gives: str, *, wrong: bool) -> None:
    # GIVEN a function and its caller WHEN asked THEN another number of values is told
    text = f"def part(x):\n    return {gives}\n\ndef f(x):\n    {takes} = part(x)\n"
    assert ast.parse(text)
    assert unpacks_otherwise({"f.py": text.splitlines(keepends=True)}, "part") is wrong
