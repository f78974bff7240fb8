"""Several statements of one line: the one in which something was found is the one that is rewritten or moved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import lines_of, rewritten

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
HEAD = """
net = nn.Linear(4, 4).to(device)
log, skipped, correct, total = [], 0, 0, 0
args = (torch.randn(5, 4, device=device), torch.arange(5, device=device) % 4)
"""
ONE_LINE = """
class Keeper:
    def __init__(self): self.m = nn.Linear(4, 3).to(device); self.log = []
    def step(self, x, y): z = self.m(x).sum(); self.log.append(z.item()); return z
f = Keeper().step
"""
STEPS = {
    "method": (ONE_LINE, ["def step(self, x, y): z = self.m(x).sum(); return z", "self.log.append(z.item())"]),
    "body": (
        "def f(x, y):\n    z = net(x).sum(); log.append(z.item()); return z * 2",
        ["z = net(x).sum(); return z * 2, z.detach()", "log.append(z.item())"],
    ),
    "branch": (
        "def f(x, y):\n    z = net(x)\n    if z.sum() > 0: z = z * 2\n    return z",
        ["z = torch.where(z.sum() > 0, z * 2, z)"],
    ),
    "with": (
        "def f(x, y):\n    with torch.no_grad(): z = net(x); log.append(z.mean().item()); w = z * 2\n    return w",
        ["with torch.no_grad(): z = net(x); w = z * 2", "log.append(z.mean().item())"],
    ),
    "middle": (
        "def f(x, y):\n    z = net(x); s = z.abs().max().item(); z = z / s; log.append(s)\n    return z",
        ["z = net(x); s = z.abs().max().detach(); z = z / s", "log.append(s)"],
    ),
    "global": (
        "def f(x, y):\n    global total; z = net(x).sum(); total += 1; log.append(z.item())",
        ["z = net(x).sum()", "return z.detach()", "total += 1", "log.append(z.item())"],
    ),
    "before": (
        "def f(x, y): w = torch.tensor([1., 2., 3., 4.]).to(x.device); return net(x) * w",
        ["w = torch.tensor([1., 2., 3., 4.]).to(device)", "def f(x, y): return net(x) * w"],
    ),
}
WHOLE = {
    "append": ("def f(x, y): log.append(net(x).sum().item())", ["log.append(value.item())"]),
    "float": ("def f(x, y): log.append(float(F.cross_entropy(net(x), y)))", ["log.append(float(value))"]),
    "count": (
        "def f(x, y):\n    global total\n    total += (net(x).argmax(-1) == y).sum().item()",
        ["return (net(x).argmax(-1) == y).sum().detach()", "total += value.item()"],
    ),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_statement_that_has_others_in_its_line_is_rewritten(step: str, tmp_path: Path) -> None:
    # GIVEN a line of several statements, of which one waits, asks or makes something of the host's
    text, expected = STEPS[step]
    # WHEN it is rewritten
    fix = rewritten(HEAD + text + "\n", tmp_path)
    # THEN that statement is moved or mended, the others stay in their line, and no pass stands for it
    assert fix.complete
    assert set(expected) <= set(lines_of(fix))
    assert "pass" not in fix.diff


@pytest.mark.parametrize("step", WHOLE)
def test_what_a_step_reads_and_keeps_in_one_statement_is_handed_over(step: str, tmp_path: Path) -> None:
    # GIVEN a step that is one statement, which computes on the device and keeps a number of it
    text, expected = WHOLE[step]
    # WHEN it is rewritten THEN the device's part is in the graph, and its result is handed to the line behind it
    fix = rewritten(HEAD + text + "\n", tmp_path)
    assert fix.complete
    assert set(expected) <= set(lines_of(fix))


def test_a_line_that_could_not_be_moved_is_not_told_to_become_an_argument() -> None:
    # GIVEN a function of one line that keeps a number of the device's
    x = torch.ones(3, device=pgk.device())
    log: list[float] = []

    def f(x: torch.Tensor) -> torch.Tensor: z = x.sum(); log.append(z.item()); return z  # fmt: skip  # noqa: E702

    # WHEN it is diagnosed THEN what is said of it is said of the statement that waits
    found = pgk.diagnose(f, x)
    assert found.codes == ("sync-item", "host-counter")
    assert "among its arguments" not in str(found)
