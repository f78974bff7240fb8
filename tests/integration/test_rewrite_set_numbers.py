"""Numbers that a loop sets between the calls of a step: all that reads them is given them, or the diff is not whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

SAMPLER = """
import paramgraph_kit as pgk
class Sampler:
    def __init__(self):
        self.table = torch.linspace(1, 0, 50)
        self.times = list(range(49, -1, -5))
        self.t = self.times[0]
        self.x = torch.ones(4, device=device)

    def denoise(self):
        t = torch.full((4,), self.t, device=device)
        a = self.table[self.t].to(device)
        self.x.copy_(self.x * 0.5 + t.float() * 0.01 + a)

    def capture(self):
        self.denoise()
        self.graph = pgk.cuda.CUDAGraph()
        with pgk.cuda.graph(self.graph):
            self.denoise()

    def step(self, t):
        self.t = t
        self.graph.replay()
        return self.x.clone()

SAMPLE
sampler = Sampler()
def main():
    sampler = Sampler()
    sampler.capture()
    return torch.stack([sampler.step(t) for t in range(49, -1, -10)])
"""
LOOPS = {
    "a loop": """
    def sample(self):
        kept = []
        for t in self.times:
            kept.append(self.step(t))
        return kept
""",
    "a comprehension": """
    def sample(self):
        return [self.step(t) for t in self.times]
""",
}


@pytest.mark.parametrize("loop", LOOPS)
def test_all_that_reads_a_number_which_a_loop_sets_is_given_it(tmp_path: Path, loop: str) -> None:
    # GIVEN a sampler whose loop sets a time that two of its lines read, a table of the CPU among them
    sampler = run(SAMPLER.replace("SAMPLE\n", LOOPS[loop]), tmp_path)["sampler"]
    # WHEN it is rewritten
    found = pgk.diagnose(sampler.denoise, fix=True).fix
    # THEN the diff is whole, and neither line reads what the graph would keep
    assert found is not None
    assert found.complete, found
    out = {line[1:].strip() for line in found.diff.splitlines() if line[:1] == "-"}
    assert {"t = torch.full((4,), self.t, device=device)", "a = self.table[self.t].to(device)"} <= out, found


def test_a_diff_of_what_is_captured_brings_what_the_program_sets_around_it(tmp_path: Path) -> None:
    # GIVEN a program that captures that, and sets the time between its replays WHEN it is rewritten
    names = run(SAMPLER.replace("SAMPLE\n", ""), tmp_path)
    found = pgk.diagnose(names["main"], fix=True)
    # THEN the number is told once, with the line that sets it, and both lines that read it read tensors
    said = [f.message for f in found.failures if f.code == "scalar-frozen"]
    assert len(said) == 1
    assert "self.t is set between calls" in said[0]
    assert found.fix is not None
    assert found.fix.complete, found.fix
    assert "call self.before_denoise() before each launch" in str(found.fix)
    # AND with that call the program gives the numbers of eager code
    text = SAMPLER.replace("SAMPLE\n", "").replace(
        "        self.t = t\n", "        self.t = t\n        self.before_denoise()\n"
    )
    text = text.replace(
        "self.denoise()\n        self.graph = ", "self.before_denoise()\n        self.denoise()\n        self.graph = "
    )
    added = [line[1:] for line in found.fix.diff.splitlines() if line[:1] == "+" and line[:3] != "+++"]
    made = "\n".join(line for line in added if not line.startswith(" "))
    before = "\n".join(added[added.index("    def before_denoise(self):  # before each launch") :][:6])
    body = "        t = torch.full((4,), self.t, device=device)\n        a = self.table[self.t].to(device)\n"
    text = text.replace(body, "        t = t_in\n        a = a_in\n").replace(
        "    def denoise", f"{before}\n\n    def denoise"
    )
    mended = run(text.replace("class Sampler", f"{made}\nclass Sampler"), tmp_path)["main"]()
    sampler = names["Sampler"]()
    sampler.denoise()
    assert torch.allclose(mended, torch.stack([_stepped(sampler, t) for t in range(49, -1, -10)]))


def _stepped(sampler: Any, t: int) -> torch.Tensor:
    sampler.t = t
    sampler.denoise()
    return sampler.x.clone()  # type: ignore[no-any-return]
