"""What the host draws in an object that a step calls: words with the host's numbers, and a graph for each way."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device")

STEP = """
import random
class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.p = nn.Linear(4, 4), 0.5
    def forward(self, x, share=0.5):
        y = self.lin(x)
        BRANCH
        return y
class Trainer:
    def __init__(self):
        self.part = Part().to(device)
    def step(self, x):
        return self.part(x).relu()
trainer = Trainer()
args = (torch.randn(3, 4, device=device),)
"""


def told(folder: Path, *lines: str) -> str:
    """What is said of a step whose part has a branch."""
    names = run(STEP.replace("BRANCH", "\n        ".join(lines)), folder)
    return " ".join(str(pgk.diagnose(names["trainer"].step, *names["args"])).split())


def test_a_branch_of_a_part_that_the_host_draws_is_filled_before_each_launch(tmp_path: Path) -> None:
    # GIVEN a part of a step whose branch only computes WHEN its step is diagnosed
    said = told(tmp_path, "if random.random() < self.p:", "    y = y * 2")
    # THEN the words draw the host's numbers, and name what the step has
    assert "before each launch `self.part.chosen_in.fill_(random.random() < self.part.p)`" in said, said
    assert "`y = torch.where(self.chosen_in, y * 2, y)`" in said, said
    assert "torch.rand(" not in said


def test_a_branch_of_a_part_that_draws_on_the_device_has_a_graph_for_each_way(tmp_path: Path) -> None:
    # GIVEN a branch that draws on the device only where it is taken WHEN its step is diagnosed
    said = told(tmp_path, "if random.random() < share:", "    z = torch.randn_like(x)", "    y = y + self.lin(z)")
    # THEN it is not computed in all steps, which would draw more
    assert "before each launch `self.part.chosen = random.random() < 0.5`, here `if self.chosen:`" in said, said
    assert "torch.where" not in said
