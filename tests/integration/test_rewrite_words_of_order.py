"""What the host draws, shuffles, goes through or counts is another one each time: words keep that, and its order."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.source.edits import Source
from paramgraph_kit.rewrite.source.place import Place
from paramgraph_kit.rewrite.source.unchanging import deciders
from paramgraph_kit.trace.model import Failure

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

DEVICE = pgk.device()
ROWS = torch.randn(40, 4).to(DEVICE)

BODIES = {
    "shuffled": ("np.random.shuffle(at)", "at[:4]", None),
    "in place": ("np.put(at, 0, 3)", "at[:4]", None),
    "gone through": ("", "at[start : start + 4]", None),
    "counted": ("k += 1", "at[k]", None),
    "drawn": ("", "np.random.choice(at)", None),
    "by a generator": ("", "rng.integers(4)", None),
    "anew in each round": ("k = 2", "at[k]", ()),
    "fixed": ("", "at[:4]", ()),
}


@pytest.mark.parametrize(("line", "value", "expected"), BODIES.values(), ids=BODIES.keys())
def test_what_moves_in_a_loop_is_not_made_once(
    line: str, value: str, expected: tuple[str, ...] | None, tmp_path: Path
) -> None:
    # GIVEN a loop in which an order is shuffled, gone through, counted or drawn of, or one that stays
    file = tmp_path / "program.py"
    file.write_text(
        "def f(x):\n    at, k = np.arange(16), 0\n    for start in range(0, 16, 4):\n"
        f"        {line or 'pass'}\n        out = {value}\n    return out\n"
    )
    source = Source.of(str(file))
    assert source is not None
    statement = source.statement(5)
    assert isinstance(statement, ast.Assign)
    space = {"np": np, "rng": np.random.default_rng(0)}
    place = Place(source, statement, Failure("cpu-index", "", ""), "device", space, entry="f")
    # WHEN it is asked what decides the value THEN nothing does where it may be another one in the next round
    assert deciders(place, statement.value) == expected


def _batch() -> torch.Tensor:
    at = torch.from_numpy(np.random.choice(np.arange(40), 8, replace=False)).to(DEVICE)
    return ROWS[at]


def _whole() -> torch.Tensor:
    at = torch.from_numpy(np.arange(0, 40, 2)).to(DEVICE)
    return ROWS[at]


def _drawn(w: torch.Tensor) -> torch.Tensor:
    return (_batch() * w).sum()


def _fixed(w: torch.Tensor) -> torch.Tensor:
    return (_whole() * w).sum()


def test_a_batch_that_the_host_draws_is_not_told_to_be_made_once() -> None:
    # GIVEN a helper that draws a batch by numpy, and one that takes the same rows
    w = torch.randn(4).to(DEVICE)

    # WHEN both are diagnosed
    drawn, fixed = str(pgk.diagnose(_drawn, w)), str(pgk.diagnose(_fixed, w))

    # THEN what is drawn goes before each launch, and the same rows are made once
    assert "before each launch `at_in.copy_(torch.from_numpy(np.random.choice(" in drawn
    assert "# once" not in drawn
    assert "# once, before `_whole`" in fixed


ORDER = list(range(40))


def _shuffled(x: torch.Tensor) -> torch.Tensor:
    np.random.shuffle(ORDER)
    return x[torch.tensor(ORDER[:8], device=DEVICE)].sum()


def test_an_order_that_is_shuffled_for_the_step_goes_before_its_launch() -> None:
    # GIVEN a list that the step shuffles, and of which it takes the first WHEN diagnosed
    found = str(pgk.diagnose(_shuffled, torch.randn(40).to(DEVICE)))

    # THEN that is not put behind the launch, and a part of the list is no number
    assert "belongs before each launch: line 91 reads the order that it leaves" in found
    assert "torch.full((), ORDER" not in found


class _Warm:
    def __init__(self) -> None:
        self.w, self.slow = torch.ones(4).to(DEVICE), torch.ones(4).to(DEVICE)
        self.updates, self.seen = 0, 0

    def fit(self, x: torch.Tensor) -> torch.Tensor:
        scale = min(1.0, 0.1 + self.updates / 1000)
        self.w.add_(scale * x)
        return self.w.sum()

    def step(self, x: torch.Tensor) -> torch.Tensor:
        if self.updates % 5 == 0:
            self.slow.lerp_(self.w, 0.02)
        self.updates += 1
        return self.fit(x)

    def noted(self, x: torch.Tensor) -> torch.Tensor:
        self.w.add_(x)
        if self.seen % 5 == 0:
            print(self.seen)
        self.seen += 1
        return self.w.sum()


def test_a_count_between_what_reads_it_keeps_its_place() -> None:
    # GIVEN a step that asks for a count, moves it, and calls what computes with the new one; and one that notes it
    x, warm = torch.randn(4).to(DEVICE), _Warm()

    # WHEN both are diagnosed
    found, noted = str(pgk.diagnose(warm.step, x)), str(pgk.diagnose(warm.noted, x))

    # THEN the count stays between what reads the old and the new, and so does what writes what the step writes later
    assert "what line 114 asks for comes ahead of it, with the old count, and what line 109 asks for behind it" in found
    assert "line 117 writes what it reads: do it before each launch, ahead of that and of line 116" in found
    assert "the same behind each launch" not in found
    assert "after each launch do `self.seen += 1`" in noted
