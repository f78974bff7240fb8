"""What a capture asks for in vain, and lines around its function set between two replays, as it is asked cold."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load, quiet

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAM = """
class Runner:
    def __init__(self):
        self.held, self.graph = {}, None
        self.x = torch.zeros(4, device=device)
    def once(self):
        return self.x * SCALE
    def step(self, x):
        self.x.copy_(x)
        if self.graph is None:
            self.once()
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.once()
        self.graph.replay()
        return self.out.clone()
r = Runner()
def main(r):
    total = 0.0
    for i in range(4):
        total += float(r.step(torch.ones(4, device=device)).sum())
        SET
    return total
step, args = r.step, (torch.randn(4).to(device),)
"""


def told(tmp_path: Path, scale: str, line: str) -> list[tuple[str, str, str]]:
    """What is told of such a program: what, at which line, and the key of a graph for each value."""
    names = load(PRELUDE + PROGRAM.replace("SCALE", scale).replace("SET", line), tmp_path / "program.py")
    with quiet():
        found = pgk.diagnose(names["step"], *names["args"])
    texts = [(f.code, f.frame.text if f.frame is not None else "", f.fix) for f in found.failures]
    return [(code, at, fix.partition("`graphs[")[2].partition("]`")[0]) for code, at, fix in texts]


@pytest.mark.parametrize(
    ("scale", "line", "code", "key"),
    [
        ("self.held.get('a', 1.0)", "r.held['a'] = 1.0 + i", "scalar-frozen", "self.held.get('a', 1.0)"),
        pytest.param(
            "(self.gain if hasattr(self, 'gain') else 1.0)",
            "r.gain = 1.0 + i",
            "branch-frozen",
            "getattr(self, 'gain', None)",
            marks=pytest.mark.sweep,
        ),
        pytest.param(
            "(self.held['a'] if 'a' in self.held else 1.0)",
            "r.held['a'] = float(i)",
            "branch-frozen",
            "self.held.get('a')",
            marks=pytest.mark.sweep,
        ),
        pytest.param(
            "(2.0 if 'a' in self.held else 1.0)",
            "r.held['a'] = i",
            "branch-frozen",
            "('a' in self.held)",
            marks=pytest.mark.sweep,
        ),
    ],
)
def test_what_only_a_loop_outside_sets_is_told_where_a_capture_asks_for_it(
    tmp_path: Path, scale: str, line: str, code: str, key: str
) -> None:
    # GIVEN a capture that asks for what is not there, and a loop around the step that sets it between two calls
    # WHEN the step is diagnosed before it was ever called
    # THEN the line of the loop is told, and by what a graph is chosen
    assert told(tmp_path, scale, line) == [(code, line, key)]


@pytest.mark.parametrize(
    ("scale", "line"),
    [
        ("self.held.get('a', 1.0)", "r.held['b'] = 1.0 + i"),
        pytest.param("(2.0 if hasattr(self, 'gain') else 1.0)", "r.total = 1.0 + i", marks=pytest.mark.sweep),
        pytest.param("2.0", "r.held['a'] = r.gain = 1.0 + i", marks=pytest.mark.sweep),
    ],
)
def test_what_no_capture_asks_for_may_be_set(tmp_path: Path, scale: str, line: str) -> None:
    # GIVEN a loop that sets what the capture does not ask for
    # WHEN the step is diagnosed
    # THEN nothing is told
    assert told(tmp_path, scale, line) == []
