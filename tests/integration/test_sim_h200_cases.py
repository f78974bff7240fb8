"""The simulator against what a real H200 did: the same error with the same cause, or success and the same output."""

from __future__ import annotations

import io
import json
import re
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from paramgraph_kit.driver.select import device, twin

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")

CASES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "data" / "h200_capture_cases.json").read_text()
)["cases"]

# Where the simulator cannot know, or torch gives a device in Python no way to do it.
LEFT_OUT = {
    "cold.mm": "lazily created library handles",
    "cold.conv": "lazily created library handles",
    "to_sparse": "dense tensors only",
    "gen.reg": "torch makes generators of a device in C++",
    "gen.unreg": "torch makes generators of a device in C++",
    "pin_big": "torch makes pinned memory in factories in C++",
    "self.thread_local.pin_big": "torch makes pinned memory in factories in C++",
    "thr.thread_local.pin": "torch makes pinned memory in factories in C++",
    "thr.relaxed.pin": "torch makes pinned memory in factories in C++",
    "self.relaxed.cudaMalloc": "calls the CUDA runtime itself",
}


@pytest.fixture
def cuda() -> Iterator[Any]:
    device()
    yield twin()
    twin().recover()


def on_simulator(text: str) -> str:
    """The program for the simulated device, or the message as it would name that."""
    return text.replace("'cuda'", "'sim'").replace(".cuda()", ".to('sim')").replace("cuda:0", "sim:0")


def run_case(case: dict[str, Any], cuda: Any, names: dict[str, Any]) -> str:
    """Run a case as it was run on the H200; returns the phase in which it is, in the words of the data."""
    if case.get("program") is not None:
        exec(on_simulator(case["program"]), names)
        return "ran"
    graph = names["g"] = cuda.CUDAGraph()
    exec(on_simulator(case["setup"]), names)
    body = compile(on_simulator(case["body"]), "body", "exec")
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(case["warmups"]):
            exec(body, names)
    cuda.current_stream().wait_stream(side)
    names["phase"] = "fails in capture"
    with cuda.graph(graph, **case["capture_kwargs"]):
        exec(body, names)
    names["phase"] = "fails after capture"
    graph.replay()
    cuda.synchronize()
    exec(on_simulator(case["post"]), names)
    return "captured and replayed"


def without_numbers(text: str) -> str:
    """Text with random values blanked."""
    return re.sub(r"\s*-?\d+\.\d+", "#", text).strip()


@pytest.mark.parametrize("name", sorted(set(CASES) - set(LEFT_OUT)))
def test_the_simulator_does_what_an_h200_did(name: str, cuda: Any) -> None:
    # GIVEN a program whose outcome on an H200 is known
    case = CASES[name]
    expected = case["h200"]
    torch.manual_seed(0)
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "C": cuda, "threading": threading, "io": io}
    names |= {"time": time, "phase": "fails"}
    printed = io.StringIO()
    raised: BaseException | None = None
    # WHEN it runs on the simulator
    with redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            outcome = run_case(case, cuda, names)
        except Exception as error:
            raised = error
            outcome = names["phase"]
    # THEN outcome, chain of errors and output are the same
    chain = []
    while raised is not None:
        chain.append((type(raised).__name__, str(raised).splitlines()[0]))
        raised = raised.__context__
    assert chain == [(e["type"], on_simulator(e["message"]).splitlines()[0]) for e in expected["exceptions"]]
    assert outcome == expected["outcome"]
    assert without_numbers(printed.getvalue()) == without_numbers(on_simulator(expected["printed"]))


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


def test_nothing_is_left_out_without_need() -> None:
    # GIVEN the cases that are left out THEN each is one of the data's, and they are few
    assert set(LEFT_OUT) <= set(CASES)
    assert len(LEFT_OUT) <= 10
