"""What is done for a library whose call failed in a capture, asked without a GPU."""

from __future__ import annotations

import pytest
import torch

from paramgraph_kit.doctor.restore import repair as restore
from paramgraph_kit.driver.cuda import recover
from paramgraph_kit.driver.select import driver

SOLVER = "cusolver error: CUSOLVER_STATUS_EXECUTION_FAILED, when calling `cusolverDnXsyevd(...)`"


@pytest.mark.parametrize(("failing", "expected"), [(0, 1), (1, 2), (9, 3)])
def test_a_solver_is_called_until_it_works(monkeypatch: pytest.MonkeyPatch, failing: int, expected: int) -> None:
    # GIVEN a solver that fails so many times
    calls: list[str] = []

    def eigh(device: str) -> None:
        calls.append(device)
        if len(calls) <= failing:
            raise RuntimeError(SOLVER)

    monkeypatch.setattr(torch, "eye", lambda _, device: device)
    monkeypatch.setattr(torch.linalg, "eigh", eigh)
    # WHEN its error, behind another one, is put right THEN it is called until it works, three times at most
    error = ValueError("user's own")
    error.__cause__ = RuntimeError(SOLVER)
    recover.wake_solver(1, error)
    assert calls == ["cuda:1"] * expected
    # AND not at all after other errors
    for other in (None, RuntimeError("operation not permitted when stream is capturing")):
        recover.wake_solver(1, other)
    assert len(calls) == expected


def test_who_repairs_says_what_the_capture_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a driver that notes what it is told WHEN a process is put right after an error
    told: list[BaseException | None] = []
    monkeypatch.setattr(type(driver()), "repair", staticmethod(lambda _, error=None: told.append(error)))
    error = RuntimeError(SOLVER)
    restore.repair(error)
    # THEN it is told of that
    assert told == [error]
