"""What to do about a value that a graph reads and that gets another one around its launch, told in words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.advised.state.kept_outside import kept_outside
from paramgraph_kit.rewrite.proving.proof import Around, Prover

STEP = "def f(x):\n    return x * n\n"
BEHIND = "def after_f():\n    global n\n    n = {}\n"
WRITTEN = {  # what a number is given, and how that is written into a tensor that stays
    "max(2, n - 1)": "`n.fill_(max(2, n - 1))`",
    "n - 1 if n > 2 else 2": "`n.fill_(n - 1 if n > 2 else 2)`",
    "(n + 1) % 4": "`n.copy_((n + 1) % 4)`",
    "7": "`n.fill_(7)`",
}


def _told(value: str, shapes: list[Any]) -> str:
    lines = (STEP + BEHIND.format(value)).splitlines(keepends=True)
    return kept_outside("n", lines, lines, {"after_f"}, {"f"}, "device", shapes=shapes)


@pytest.mark.parametrize("value", WRITTEN)
def test_what_may_be_a_number_of_pythons_is_filled_in_and_not_copied(value: str) -> None:
    # GIVEN a number that is another one behind each launch WHEN it is told how a tensor has it
    told = _told(value, [[], []])
    # THEN that can be run with what the value is: no number can be copied
    assert WRITTEN[value] in told, told
    n: Any = torch.tensor(2)
    for line in (WRITTEN[value].strip("`"),) * 5:
        eval(line, {"n": n})


def test_of_tensors_no_number_is_kept() -> None:
    # GIVEN pairs that are found anew now and then, and a tensor of one size
    pairs, noise = [[], [(2,), (2,)], [(3,), (3,)]], [(3,), (3,)]
    # WHEN THEN the first need another capture, and the other can stay where it is
    told = _told("found()", pairs)
    assert "launch it only as long as these are there, and capture again once `n` is another object" in told
    assert "torch.tensor(" not in told
    assert "write into the one that is there, `n.copy_(torch.randn(3))`" in _told("torch.randn(3)", noise)
    # AND one that is None at first is made once
    begun = _told("torch.randn(3)", [[], *noise])
    assert "`n = torch.randn(3) if n is None else n.copy_(torch.randn(3))`" in begun
    # AND a number in a tensor is told as ever
    assert "another object" not in _told("7", [(), ()])


def test_what_a_step_needs_of_lines_before_its_launch_is_there_while_it_is_looked_at() -> None:
    # GIVEN a step that reads what lines before its launch make
    box = SimpleNamespace(pairs=None, n=0)

    def step(x: torch.Tensor) -> torch.Tensor:
        box.n += 1
        found: torch.Tensor = x * box.pairs[0]
        return found

    def make(_: object) -> None:
        box.pairs = (2, 3)

    prover = Prover(step, (torch.ones(2, device=pgk.device()),), {})
    # WHEN its steps are watched with these THEN it runs, and all is as it was
    with prover.with_around(Around(before=make)):
        assert any(isinstance(values[-1], dict) and values[-1].get("n") == 6 for _, values in prover.watched())
        with prover.prepared():
            assert box.pairs == (2, 3)
    assert (box.pairs, box.n) == (None, 0)
    # WHEN there is nothing around it THEN it does not run
    with pytest.raises(TypeError):
        prover.watched()
