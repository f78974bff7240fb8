"""What the doctor says to captures that a GPU refused before the simulator or the doctor had seen them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from paramgraph_kit.doctor import explain
from paramgraph_kit.driver.sim.libraries import forget
from paramgraph_kit.trace.model import Failure
from tests.integration.h200_doctor import names_of, raised_in
from tests.integration.single_operations import CAPTURES, CAPTURES_H100, PRELUDES, on_simulator

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")
ALL = CAPTURES | CAPTURES_H100
FAILING = {name: case for name, case in ALL.items() if "class" in case}


@pytest.mark.parametrize("name", sorted(FAILING))
def test_the_doctor_knows_what_fails_and_where(name: str, cuda: Any, tmp_path: Path) -> None:
    # GIVEN a program that failed on a GPU, in a process of its own
    case, found = FAILING[name], list[Failure]()

    def run() -> None:
        error = raised_in(on_simulator(case["program"]), tmp_path / "program.py", names_of(cuda))
        found.extend([explain(error)] if error is not None else [])

    # WHEN it fails here and the doctor explains what it raised
    forget()
    torch.distributions.Distribution.set_default_validate_args(True)  # torch.compile turns it off for good
    alone = threading.Thread(target=run)
    alone.start()
    alone.join()
    cuda.recover()
    cuda.set_sync_debug_mode(0)
    torch.use_deterministic_algorithms(False)
    # THEN class and line are right
    (failure,) = found
    line = failure.frame.line - PRELUDES["h200_captures.json"].count("\n") if failure.frame else None
    assert (failure.code, line) == (case["class"], case["line"])


def test_they_are_those_that_the_gpu_refused() -> None:
    # GIVEN the record THEN there is an answer for every failure that the simulator knows
    refused = {name for name, case in ALL.items() if case["h200"]["outcome"] == "fails"}
    assert set(FAILING) < refused
    # and the others are no failures of captures: wrong calls, errors of the program's own, what is not simulated
    assert len(refused - set(FAILING)) == 25
