"""A program that asks for its fix in a line of its own file has no other fix than one that another file asks for."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PROGRAM = """
import torch
import paramgraph_kit as pgk
device = pgk.device()

class Filter:
    def __init__(self):
        self.state, self.gain, self.cycle = torch.ones(8, 4, device=device), 1.05, 0

    def spread(self, y):
        mean = self.state.mean(0)
        self.state.copy_(mean + (self.state - mean) * self.gain + y)
        return y - mean

    def step(self, y):
        left = self.spread(y)
        ratio = (left.pow(2).mean().sqrt() / self.state.std(0).mean()).item()
        self.gain = min(max(self.gain * (1.02 if ratio > 1.2 else 0.99), 1.0), 1.3)
        self.cycle += 1
        return self.state.mean(0)

def main():
    return pgk.diagnose(Filter().step, torch.ones(4, device=device), fix=True)
"""


def test_a_counter_that_nothing_of_the_step_reads_stays_a_number(tmp_path: Path) -> None:
    # GIVEN a step whose number comes of what it reads from the device, with a counter that is moved behind the launch
    file = tmp_path / "own_file.py"
    file.write_text(PROGRAM)
    spec = importlib.util.spec_from_file_location("own_file", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # WHEN a line of the same file asks for a fix
    fix = module.main().fix
    # THEN the number is fed, and the counter is no tensor: that line's own operations are none of the step's
    assert "self.gain)" in fix.diff.partition("def before_step")[2]
    assert "cycle" not in "".join(line for line in fix.diff.splitlines() if line.startswith("+") and "tensor" in line)
    assert "cycle" not in " ".join(fix.verified)
