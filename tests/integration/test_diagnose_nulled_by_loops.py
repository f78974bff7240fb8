"""Gradients that a loop around a trainer's step sets to None: no line of the step mends that."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.integration.learners import HERE, PLACES, program
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
NULLED = [
    "one.opt.zero_grad()\none.step(rows())",
    "one.step(rows())\none.net.zero_grad(set_to_none=True)",
    "one.step(rows())\nfor p in one.net.parameters(): p.grad = None",
]
ZEROED = [
    "one.opt.zero_grad(set_to_none=False)\none.step(rows())",
    "one.step(rows())\nfor p in one.net.parameters(): p.grad.zero_()",
    "one.step(rows())\nBAG.zero_grad()",
]


@pytest.mark.parametrize(("around", "made"), PLACES)
@pytest.mark.parametrize("lines", NULLED)
def test_gradients_that_a_loop_sets_to_none_are_told(lines: str, around: str, made: str, tmp_path: Path) -> None:
    # GIVEN a loop that sets the gradients of its trainer to None between two steps WHEN the method is diagnosed
    names = load(program(lines, around=around, made=made, zeroed=False), tmp_path / "program.py")
    names["learner"].step(names["rows"]())
    diagnosis = pgk.diagnose(names["learner"].step, names["rows"]())
    # THEN that line is told
    (failure,) = diagnosis
    line = next(each for each in lines.splitlines() if "zero_grad" in each or "grad = None" in each)
    assert failure.code == "gradients-rebound", str(diagnosis)
    assert failure.frame is not None
    assert failure.frame.text == line


@pytest.mark.parametrize("lines", ZEROED)
def test_gradients_that_stay_where_they_are_are_not_told(lines: str, tmp_path: Path) -> None:
    # GIVEN a loop that sets them to zero in place, or those of another optimizer WHEN diagnosed THEN nothing is told
    bag = "BAG = torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=0.1)\n"
    names = load(program(lines, around=bag + HERE, zeroed=False), tmp_path / "program.py")
    names["learner"].step(names["rows"]())
    diagnosis = pgk.diagnose(names["learner"].step, names["rows"]())
    assert not diagnosis, str(diagnosis)


@pytest.mark.parametrize("lines", NULLED)
def test_what_is_said_keeps_the_gradients_where_they_are(lines: str, tmp_path: Path) -> None:
    # GIVEN such a loop WHEN a fix is asked for THEN no diff of the step says that it is mended, and its line is told
    names = load(program(lines, zeroed=False), tmp_path / "program.py")
    names["learner"].step(names["rows"]())
    diagnosis = pgk.diagnose(names["learner"].step, names["rows"](), fix=True)
    assert diagnosis.fix is None
    (failure,) = diagnosis
    assert "zero_grad(set_to_none=False): in place" in failure.fix or "p.grad.zero_(): in place" in failure.fix
    assert "beside the part" not in str(diagnosis)


@pytest.mark.parametrize("zeroed", [True, False])
def test_a_step_that_has_no_gradients_yet_is_told_what_to_capture_it_with(zeroed: bool, tmp_path: Path) -> None:
    # GIVEN a loop that sets gradients to None ahead of each step, none of which has been taken
    names = load(program(NULLED[0], zeroed=zeroed), tmp_path / "program.py")
    # WHEN the step is diagnosed
    diagnosis = pgk.diagnose(names["learner"].step, names["rows"]())
    # THEN a note names that line, and what a warm-up would leave, where the step zeroes none itself
    assert not diagnosis, str(diagnosis)
    said = [each for each in diagnosis.notes if "zeroes none itself" in each]
    assert len(said) == (not zeroed), diagnosis.notes
    assert all("one.opt.zero_grad() does that between calls" in each for each in said)
