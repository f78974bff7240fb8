"""Diffs for state that a step has made a tensor by now, and that begins as a number or None in a new process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.integration.test_rewrite_outside import patched
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
HEAD = """import torch, paramgraph_kit as pgk
nn = torch.nn
device = pgk.device()
def batch(n):
    return torch.arange(12.0, device=device).reshape(4, 3) * 0.1 + n
class Step:
    def __init__(self):
        torch.manual_seed(0)
        self.net = nn.Linear(3, 2).to(device)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.01)
        BEGINS
    def learn(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()
    def step(self, x):
        LINES
"""
LOSS = "loss = self.net(x).square().mean()"
CASES = {
    "a mean that begins as a number": (
        ["self.mean = 0.0"],
        [LOSS, "self.mean = 0.9 * self.mean + 0.1 * loss.detach()", "return self.learn(loss * (1 + self.mean))"],
    ),
    "as a whole number, among others": (
        ["self.rate, self.mean = 0.9, 0"],
        [LOSS, "self.mean = self.rate * self.mean + loss.detach()", "return self.learn(loss * (1 + self.mean))"],
    ),
    "a row that begins as a number": (
        ["self.mean = 0.0"],
        [
            "out = self.net(x)",
            "self.mean = 0.9 * self.mean + 0.1 * out.detach().mean(0)",
            "return self.learn((out - self.mean).square().mean())",
        ],
    ),
    "what it was before, which begins as None": (
        ["self.prev = None"],
        [
            "out = self.net(x)",
            "far = 0.0 if self.prev is None else (out - self.prev).square().mean()",
            "self.prev = out.detach()",
            "return self.learn(out.square().mean() + far)",
        ],
    ),
    "a mean behind a flag": (
        ["self.mean, self.ready = None, False"],
        [
            LOSS,
            "if not self.ready:",
            "    self.mean, self.ready = loss.detach(), True",
            "else:",
            "    self.mean = 0.9 * self.mean + 0.1 * loss.detach()",
            "return self.learn(loss * (1 + self.mean))",
        ],
    ),
    "a mean behind a flag, line by line": (
        ["self.mean = None", "self.ready = False"],
        [
            LOSS,
            "if not self.ready:",
            "    self.mean = loss.detach()",
            "    self.ready = True",
            "self.mean = 0.9 * self.mean + 0.1 * loss.detach()",
            "return self.learn(loss * (1 + self.mean))",
        ],
    ),
}


def _losses(names: dict[str, Any], captured: bool) -> list[torch.Tensor]:
    """What a new object gives in eight steps: eagerly, or six of them from a graph."""
    step = names["Step"]().step
    x, found = names["batch"](0), list[torch.Tensor]()
    graph = pgk.cuda.CUDAGraph() if captured else None
    side, out = pgk.cuda.Stream(), None
    for n in range(8):
        x.copy_(names["batch"](n))
        if graph is None:
            found.append(step(x).cpu())
            continue
        if n < 2:
            side.wait_stream(pgk.cuda.current_stream())
            with pgk.cuda.stream(side):
                out = step(x)
            pgk.cuda.current_stream().wait_stream(side)
        else:
            if n == 2:
                with pgk.cuda.graph(graph):
                    out = step(x)
            graph.replay()
        assert out is not None
        found.append(out.cpu())
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_diff_is_right_in_a_new_process(name: str, tmp_path: Path) -> None:
    # GIVEN a step that ran twice and has made its state
    begins, lines = ("\n        ".join(each) for each in CASES[name])
    text = HEAD.replace("BEGINS", begins).replace("LINES", lines)
    names = load(text, tmp_path / "program.py")
    step = names["Step"]().step
    for n in range(2):
        step(names["batch"](n))

    # WHEN it is diagnosed and a diff is shown for one graph
    found = pgk.diagnose(step, names["batch"](2), fix=True)

    # THEN a new object of the new text, whose first step finds the number or None, gives eager's losses
    assert found.fix is not None
    assert found.fix.complete, str(found)
    mended = load(patched(text, found.fix.diff), tmp_path / "mended.py")
    truth, shown = _losses(names, False), _losses(mended, True)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(truth, shown, strict=True)), found.fix.diff
