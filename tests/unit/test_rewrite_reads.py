"""What a graph keeps of the host's that is given another value behind its launch, by the text of a file."""

from __future__ import annotations

import pytest

from paramgraph_kit.rewrite.reads import frozen


@pytest.mark.parametrize(
    ("begins", "moves", "told"),
    [
        ("self.pos = torch.tensor(0)", "self.pos += 1", ""),
        ("self.pos, self.n = torch.tensor(0), 0", "self.pos += 1", ""),
        ("self.pos = 0", "self.pos += 1", "pos"),
        ("self.pos = torch.tensor(0)", "self.pos = self.pos + 1", "pos"),
        ("self.pos = torch.tensor(0)\n        self.pos = 0", "self.pos += 1", "pos"),
    ],
)
def test_what_is_always_a_tensor_may_be_added_to_behind_a_launch(begins: str, moves: str, told: str) -> None:
    # GIVEN a place that a launch reads and a function behind it moves WHEN it is asked for what a graph keeps
    text = f"""\
class Engine:
    def __init__(self):
        {begins}
    def decode(self, x):
        return x[self.pos]
    def after_decode(self):
        {moves}
"""
    name = frozen(text.splitlines(keepends=True), ["after_decode"], ["Engine.decode"], [])
    # THEN it is that only where it is no tensor that is written where it lies
    assert name.lstrip(".") == told
