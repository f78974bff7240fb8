"""216 programs that an H200 ran before the simulator had seen them: the same there, and the doctor knows what fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from paramgraph_kit.doctor import explain
from paramgraph_kit.driver.sim.libraries import forget
from tests.integration.h200_cases import on_simulator, seen_and_recorded
from tests.integration.h200_doctor import names_of, raised_in

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")

DATA = Path(__file__).parents[1] / "data" / "h200_more_cases.json"
CASES: dict[str, dict[str, Any]] = json.loads(DATA.read_text(encoding="utf-8"))["cases"]
FAILING = {name: case for name, case in CASES.items() if "class" in case}


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_simulator_does_what_an_h200_did_at_first_sight(name: str, cuda: Any) -> None:
    # GIVEN a program whose outcome on an H200 is known WHEN it runs on the simulator, where no library was used yet
    forget()
    seen, recorded = seen_and_recorded(CASES[name], cuda)
    if "cholesky" in name:  # which sign a zero beside the diagonal has is a matter of the CPU
        seen["printed"] = seen["printed"].replace("-0.0", "0.0")
    # THEN chain of errors, outcome and output are the same
    assert seen == recorded


@pytest.mark.parametrize("name", sorted(FAILING))
def test_the_doctor_knows_what_fails_and_where(name: str, cuda: Any, tmp_path: Path) -> None:
    # GIVEN one that fails WHEN the doctor explains what it raised THEN class and line are right
    forget()
    file = tmp_path / "program.py"
    error = raised_in(on_simulator(CASES[name]["program"]), file, names_of(cuda))
    assert error is not None
    failure = explain(error)
    assert (failure.code, failure.frame and failure.frame.line) == (CASES[name]["class"], CASES[name]["line"])
