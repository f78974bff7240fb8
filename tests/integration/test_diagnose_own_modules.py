"""Modules that torch has graphed in place, several at once: what Python did at their captures is looked at, too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
BLOCK = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.calls = nn.Linear(6, 6), 0
    def forward(self, x):
        self.calls += 1
        return x + min(1.0, self.calls / 20) * self.fc(x)
"""
SAMPLE = "torch.randn(3, 6, device=device)"
AT_ONCE = f"blocks = cuda.make_graphed_callables(tuple(blocks), tuple(({SAMPLE},) for _ in blocks))"
IN_A_LOOP = f"for i, block in enumerate(blocks):\n    blocks[i] = cuda.make_graphed_callables(block, ({SAMPLE},))"
STEP = """
blocks = [Block().to(device) for _ in range(COUNT)]
GRAPHED
@torch.no_grad()
def f(x):
    for block in blocks:
        x = block(x)
    return x.clone()
args = (torch.randn(3, 6, device=device),)
"""
PROGRAM = f"""
def main():
    blocks = [Block().to(device) for _ in range(2)]
    {AT_ONCE}
    x, out = torch.randn(3, 6, device=device), []
    with torch.no_grad():
        for _ in range(3):
            h = x
            for block in blocks:
                h = block(h)
            out.append(h.clone())
    return torch.stack(out)
"""


@pytest.mark.parametrize("graphed", [AT_ONCE, IN_A_LOOP])
def test_a_counter_in_modules_that_torch_has_graphed_is_told_in_the_first_answer(graphed: str, tmp_path: Path) -> None:
    # GIVEN two blocks, graphed by a line that names neither
    names = run(BLOCK + STEP.replace("COUNT", "2").replace("GRAPHED", graphed), tmp_path)
    # WHEN
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN their lines are told, with tensors of each one's own
    told = {f.frame.text: f for f in found if f.frame is not None}
    assert told["self.calls += 1"].code == "host-counter"
    assert told["return x + min(1.0, self.calls / 20) * self.fc(x)"].code == "scalar-frozen"
    assert all("several of `Block` are graphed, so each has its own: `self." in f.fix for f in found)
    assert all("`def before_forward(self): self.calls += 1; " in f.fix for f in found)
    assert not any("was not run again" in note for note in found.notes)
    assert found.fix_inside is None


def test_a_module_that_is_graphed_alone_keeps_the_diff_of_its_lines(tmp_path: Path) -> None:
    # GIVEN the same with one block
    names = run(BLOCK + STEP.replace("COUNT", "1").replace("GRAPHED", AT_ONCE), tmp_path)
    # WHEN
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN
    assert found.fix_inside is not None
    assert "before_forward" in found.fix_inside.diff


def test_a_program_that_has_torch_graph_several_modules_is_told_what_is_in_them(tmp_path: Path) -> None:
    # GIVEN a program that graphs, and calls
    names = run(BLOCK + PROGRAM, tmp_path)
    # WHEN
    found = pgk.diagnose(names["main"])
    # THEN
    assert {(f.code, f.frame.text) for f in found if f.frame is not None} == {
        ("host-counter", "self.calls += 1"),
        ("scalar-frozen", "return x + min(1.0, self.calls / 20) * self.fc(x)"),
    }


def test_modules_without_state_that_torch_has_graphed_are_told_nothing(tmp_path: Path) -> None:
    # GIVEN blocks that only compute
    block = BLOCK.replace("        self.calls += 1\n", "").replace("min(1.0, self.calls / 20) * ", "")
    names = run(block + STEP.replace("COUNT", "2").replace("GRAPHED", AT_ONCE), tmp_path)
    # WHEN
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN
    assert not found.failures
    assert not any("was not run again" in note for note in found.notes)
