"""Layers of several lines that the host draws whether to run: told where it draws, and not within the layer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.own_launches import is_wrong_there, replayed_as_it_is
from tests.programs.reading import PRELUDE
from tests.programs.running import load, quiet

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAM = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(4), nn.Linear(4, 4)
    def forward(self, x):
        x = x + self.mix(self.norm(x)).tanh()
        return x + self.mix(x)
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(4))
        self.p = 0.4
    def forward(self, x):
        for layer in self.layers:
            LINES
        return x
encoder, x = Encoder().to(device).requires_grad_(False), torch.randn(2, 4).to(device)
"""
LEFT = """if self.training and random.random() < self.p:
                continue
            x = layer(x)"""
TAKEN = """if random.random() > self.p:
                x = layer(x)"""
NAMED = """skips = random.random() < self.p
            if skips:
                continue
            x = layer(x)"""


def told(lines: str, tmp_path: Path, *, training: bool = True) -> list[tuple[str, str]]:
    """What is told of such an encoder, and at which lines."""
    names = load(PRELUDE + PROGRAM.replace("LINES", lines), tmp_path / "program.py")
    with quiet():
        found = pgk.diagnose(names["encoder"].train(training), names["x"]).failures
    return [(f.code, f.frame.text if f.frame else "") for f in found]


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        (LEFT, "if self.training and random.random() < self.p:"),
        pytest.param(TAKEN, "if random.random() > self.p:", marks=pytest.mark.sweep),
        pytest.param(NAMED, "if skips:", marks=pytest.mark.sweep),
    ],
)
def test_a_layer_that_is_left_out_by_chance_is_told_where_that_is_drawn(lines: str, line: str, tmp_path: Path) -> None:
    # GIVEN an encoder that leaves out layers as the host draws it, each of several lines without a choice
    # WHEN it is diagnosed
    # THEN the branch that asks for the draw is told, and no line within a layer
    assert told(lines, tmp_path) == [("branch-frozen", line)]


def test_layers_that_all_run_are_no_problem(tmp_path: Path) -> None:
    # GIVEN the same in evaluation, where nothing is drawn WHEN THEN nothing is told
    assert told(LEFT, tmp_path, training=False) == []


TASK = """
class Task:
    def __init__(self):
        self.encoder = Encoder().to(device)
        self.opt = torch.optim.AdamW(self.encoder.parameters(), lr=0.05, weight_decay=0.1)
        self.run = cuda.make_graphed_callables(self.encoder, (x,), allow_unused_input=True)
    def step(self):
        self.opt.zero_grad(set_to_none=True)
        loss = self.run(x).square().mean()
        loss.backward()
        self.opt.step()
        return loss.detach()
def main():
    task = Task()
    return torch.stack([task.step() for _ in range(4)])
"""


@pytest.mark.sweep
def test_a_layer_that_is_computed_and_left_out_is_no_whole_diff_where_an_optimizer_is_elsewhere(tmp_path: Path) -> None:
    # GIVEN such an encoder that `make_graphed_callables` graphs, and whose optimizer, with a decay, stays outside
    names = load(PRELUDE + PROGRAM.replace("LINES", LEFT) + TASK, tmp_path / "program.py")
    # WHEN it is diagnosed with a diff
    with quiet():
        found = pgk.diagnose(names["main"], fix=True)
    # THEN the draw is told, with what a layer has that is left out: gradients of zeros, which such an optimizer minds
    assert [f.frame.text for f in found.failures if f.frame] == ["if self.training and random.random() < self.p:"]
    assert "gradients of what is left out are 0 then" in found.failures[0].fix
    # AND no diff is said to be whole that computes all layers and chooses
    assert found.fix is None or not found.fix.complete


BEFORE = "def forward(self, x):\n    for layer in self.layers:\n        if DRAWN: continue\n        x = layer(x)\n"
CHOSEN = BEFORE.replace("if DRAWN: continue", "skipped = next(given)").replace(
    "layer(x)", "torch.where(skipped, x, layer(x))"
)
SCALED = BEFORE.replace("if DRAWN: continue", "skipped = next(given)").replace(
    "layer(x)", "torch.where(skipped, x, x * 2)"
)


@pytest.mark.parametrize(
    ("after", "apart", "wrong"), [(CHOSEN, True, True), (CHOSEN, False, False), (SCALED, True, False)]
)
def test_what_chooses_between_layers_is_wrong_where_gradients_are_taken_elsewhere(
    after: str, apart: bool, wrong: bool, tmp_path: Path
) -> None:
    # GIVEN a rewriting that takes a layer's result or not, or plain numbers, WHEN an optimizer is, or is not, elsewhere
    file = tmp_path / "program.py"
    file.write_text(BEFORE.replace("DRAWN", "random.random() < 0.4"))
    made: Any = SimpleNamespace(texts={str(file): after.splitlines()}, worth=SimpleNamespace(inside=1, behind=0))
    with replayed_as_it_is(learns_apart=apart):
        # THEN it is none where a layer is computed that was left out
        assert is_wrong_there(made, []) is wrong


LEARNS = """
def step():
    optimizer.zero_grad(set_to_none=True)
    loss = encoder(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss
encoder.requires_grad_(True)
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
"""


def test_an_optimizer_that_finds_fewer_gradients_because_of_that_draws_nothing(tmp_path: Path) -> None:
    # GIVEN a step of the same, whose layers that are left out have no gradients
    names = load(PRELUDE + PROGRAM.replace("LINES", LEFT) + LEARNS, tmp_path / "program.py")
    # WHEN it is diagnosed
    found = pgk.diagnose(names["step"]).failures
    # THEN the branch is told, and no draw at the optimizer's line, which reads what is left
    assert ("branch-frozen", "if self.training and random.random() < self.p:") in {
        (f.code, f.frame.text) for f in found if f.frame
    }
    assert "host-random" not in {f.code for f in found}
