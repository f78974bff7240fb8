"""What is said of hooks that a step registers in each of its calls."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu captures on a GPU"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAM = """
from torch import nn
torch.manual_seed(0)
net, handles = nn.Linear(4, 4).to(device), []
def f(x):
    {ahead}
    net(x).square().mean().backward()
    {behind}
    return net.bias.grad * 1
"""
ONCE = "belongs once ahead of the capture, and no more in the step"
FORWARD = "net.register_forward_hook(lambda m, i, o: o * 0.9)"
WEIGHTS = "for p in net.parameters():\n        p.register_hook(lambda g: g * 2)"


@pytest.mark.parametrize("ahead", [FORWARD, f"handles.append({FORWARD})", WEIGHTS])
def test_a_hook_that_each_call_adds_once_more_belongs_ahead_of_the_capture(ahead: str, tmp_path: Path) -> None:
    # GIVEN a step that registers hooks, and removes none
    names = run(PROGRAM.format(ahead=ahead, behind="net.zero_grad"), tmp_path)
    # WHEN diagnosed
    found = pgk.diagnose(names["f"], torch.ones(4, device=pgk.device()))
    # THEN each line that tells of it says that it is done once
    told = [f for f in found.failures if f.frame is not None and "register_" in f.frame.text]
    assert told, str(found)
    assert all(ONCE in f.fix for f in told), str(found)
    assert ("with the loop around it" in told[0].fix) == (ahead is WEIGHTS)


def test_a_hook_that_its_step_removes_is_no_problem(tmp_path: Path) -> None:
    # GIVEN one that is there for this call alone WHEN diagnosed THEN nothing is told of it
    names = run(PROGRAM.format(ahead=f"handle = {FORWARD}", behind="handle.remove()"), tmp_path)
    found = pgk.diagnose(names["f"], torch.ones(4, device=pgk.device()))
    assert not [f for f in found.failures if f.code == "branch-frozen"], str(found)
