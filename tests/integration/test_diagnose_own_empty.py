"""Captures of a program's own that hold nothing."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]

TRAINED = """
def main():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.5)
    x, seen, mixing = torch.randn(4, 6, device=device), 0.0, torch.randn(6, 6, device=device)
    def step():
        STEP
    def behind():
        net(x).float().square().mean().backward()
        opt.step()
    with AROUND:
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(2):
                net(x).float().square().mean().backward()
        cuda.current_stream().wait_stream(side)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            out = step()
    for i in range(4):
        x.copy_(torch.full((4, 6), 0.1 * i))
        graph.replay()
        BEHIND
    return seen, [p.detach().clone() for p in net.parameters()]
"""
CLEARS = "opt.zero_grad(set_to_none=True)"


def _program(step: str, around: str, behind: str) -> str:
    lines = "\n        ".join(step.strip().splitlines())
    return "import contextlib\n" + TRAINED.replace("STEP", lines).replace("AROUND", around).replace("BEHIND", behind)


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
@pytest.mark.parametrize(("step", "told"), [(CLEARS, ["empty-graph"]), ("return x.mul(2)", [])])
def test_a_capture_that_holds_nothing_is_told_at_its_line(step: str, told: list[str], tmp_path: Path) -> None:
    # GIVEN a program whose replays do nothing, with training behind each of them
    names = run(_program(step, "contextlib.nullcontext()", "behind()"), tmp_path)
    # WHEN
    found = pgk.diagnose(names["main"])
    # THEN it is told where the capture begins, and not of a capture that holds something
    assert [f.code for f in found] == told, found
    assert all(f.frame is not None and f.frame.text == "with cuda.graph(graph):" for f in found), found
    assert not told or "take this capture and its replays out" in str(found)


def test_what_torch_warns_of_at_the_end_of_an_empty_capture_is_still_heard(tmp_path: Path) -> None:
    # GIVEN the same program
    names = run(_program(CLEARS, "contextlib.nullcontext()", "behind()"), tmp_path)
    # WHEN
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        pgk.diagnose(names["main"])
    # THEN
    assert any("The CUDA Graph is empty" in str(each.message) for each in heard)
