"""The simulator against what a real H200 did: the same error with the same cause, or success and the same output."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from paramgraph_kit.driver.select import device
from tests.integration.h200_cases import CASES, LEFT_OUT, PAGE, on_simulator, page, seen_and_recorded
from tests.integration.own_cases import OWN, UNKNOWABLE

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")


@pytest.mark.parametrize("name", sorted(set(CASES) - set(LEFT_OUT)))
def test_the_simulator_does_what_an_h200_did(name: str, cuda: Any) -> None:
    # GIVEN a program whose outcome on an H200 is known WHEN it runs on the simulator
    seen, recorded = seen_and_recorded(CASES[name], cuda)
    # THEN chain of errors, outcome and output are the same
    assert seen == recorded


def test_the_page_about_the_simulator_is_up_to_date(cuda: Any) -> None:
    # GIVEN the page WHEN every case runs again THEN it says what came out, and nothing differs
    fresh = page(cuda)
    assert PAGE.read_text(encoding="utf-8") == fresh, "python -m tests.integration.h200_cases writes it"
    total = next(line for line in fresh.splitlines() if line.startswith("| **all**"))
    cases, same, unknown, differs = (int(cell.strip(" *")) for cell in total.split("|")[2:-1])
    assert (cases, differs) == (len(CASES), 0)
    assert same + unknown == cases
    assert unknown <= 15
    own = next(line for line in fresh.splitlines() if line.startswith("| our own"))
    assert [int(cell) for cell in own.split("|")[2:-1]] == [len(OWN), len(OWN) - len(UNKNOWABLE), len(UNKNOWABLE), 0]


WAITS = {k: c["h200"].get("sync_debug_warnings") for k, c in CASES.items() if k not in LEFT_OUT and "program" not in c}


@pytest.mark.parametrize("name", sorted(k for k, n in WAITS.items() if n is not None))
def test_the_host_waits_as_often_as_on_an_h200(name: str, cuda: Any) -> None:
    # GIVEN the setup of a case, and its body run once
    case = CASES[name]
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "C": cuda, "g": cuda.CUDAGraph()}
    body = compile(on_simulator(case["body"]), "body", "exec")
    exec(on_simulator(case["setup"]), names)
    exec(body, names)
    # WHEN the body runs again and every wait is to be told
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cuda.set_sync_debug_mode("warn")
        try:
            exec(body, names)
        finally:
            cuda.set_sync_debug_mode("default")
    # THEN there are as many as an H200 told
    assert sum("called a synchronizing CUDA operation" in str(w.message) for w in caught) == WAITS[name]


def test_waiting_can_be_made_an_error(cuda: Any) -> None:
    # GIVEN the mode "error" WHEN the host waits THEN torch's words are raised
    x = torch.ones(2, device=device())
    cuda.set_sync_debug_mode("error")
    try:
        assert cuda.get_sync_debug_mode() == 2
        with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
            x.sum().item()
    finally:
        cuda.set_sync_debug_mode(0)
    with pytest.raises(RuntimeError, match="invalid value of debug_mode"):
        cuda.set_sync_debug_mode("loud")


def test_the_mode_is_called_a_prototype_once(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a process that has not asked for the mode yet
    monkeypatch.setattr("paramgraph_kit.driver.sim.under_way._debug.told", False, raising=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # WHEN a name that torch does not know, a number that it does not know, and the mode of always are asked for
        with pytest.raises(RuntimeError, match="one of `default`, `warn`, `error`"):
            cuda.set_sync_debug_mode("loud")
        before = len(caught)
        with pytest.raises(RuntimeError, match="one of 0,1,2"):
            cuda.set_sync_debug_mode(3)
        cuda.set_sync_debug_mode(0)
        cuda.set_sync_debug_mode("default")
    # THEN torch's words are told once, at the first that reaches CUDA
    assert (before, len(caught)) == (0, 1)
    assert "prototype feature" in str(caught[0].message)


def test_nothing_is_left_out_without_need() -> None:
    # GIVEN the cases that are left out THEN each is one of the data's, and they are few
    assert set(LEFT_OUT) <= set(CASES)
    assert len(LEFT_OUT) <= 10
