"""A test of a number has one answer, or several, for all that the lines of a file give it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from paramgraph_kit.doctor.explain.syntax import nodes_of
from paramgraph_kit.doctor.observe.alike_answers import answers_alike
from paramgraph_kit.doctor.observe.captured_values import Names, Use
from tests.programs.running import load

CASES = {
    "never zero": (
        "0.2 * (1 - epoch / epochs)",
        "self.p > 0",
        "for epoch in range(epochs): t.begin(epoch, epochs)",
        True,
    ),
    "zero at last": (
        "0.2 * (1 - epoch / epochs)",
        "self.p > 0",
        "for epoch in range(epochs): t.begin(epoch + 1, epochs)",
        False,
    ),
    "zero at first": ("epoch / epochs", "self.p", "for epoch in range(epochs): t.begin(epoch, epochs)", False),
    "crosses": ("epoch / epochs", "self.p > 0.5", "for epoch in range(epochs): t.begin(epoch, epochs)", False),
    "two constants": ("epoch", "self.p > 1", "t.begin(2, 0); t.begin(3, 0)", True),
    "another one": ("epoch", "self.p > 1", "t.begin(2, 0); t.begin(1, 0)", False),
    "nobody knows": ("epoch", "self.p > 1", "t.begin(2, 0); t.begin(epochs, 0)", False),
    "of another": ("0.2 + self.q", "self.p > 0", "t.begin(2, 0)", False),
}


@pytest.mark.parametrize(("value", "test", "loop", "expected"), CASES.values(), ids=CASES.keys())
def test_answers_of_a_test_are_found(value: str, test: str, loop: str, expected: bool, tmp_path: Path) -> None:
    # GIVEN a class whose step asks a number, and a loop that sets it
    file = tmp_path / "program.py"
    text = (
        "class T:\n    def __init__(self): self.p, self.q = 2, 1\n    def step(self, x):\n"
        f"        if {test}: x = x * 2\n        return x\n"
        f"    def begin(self, epoch, epochs):\n        self.p = {value}\n"
        f"t = T()\ndef main(epochs):\n    {loop}\n"
    ).replace("self.p, self.q = 2, 1", "self.p = 2; self.q = 1")
    code = load(text, file)["T"].step.__code__
    node = next(n for n in nodes_of(code) if isinstance(n, ast.Attribute) and n.attr == "p")

    # WHEN it is looked at THEN the test is said to have one answer where all numbers of the loop have it
    assert answers_alike(Use(code, node, True, Names({}, {}))) is expected
