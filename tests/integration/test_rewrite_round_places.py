"""Rounds of loops that stand elsewhere than in a function of a module: in closures, and in what a function calls."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.proving.launches import Launches
from paramgraph_kit.rewrite.source.borrow import borrowed, compiled
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
            opt.zero_grad()
            loss.backward()
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
