"""Buffers that a step exchanges with one another."""

from __future__ import annotations

import ast

import pytest

from paramgraph_kit.rewrite.expressions.state.swapped import are_swapped


@pytest.mark.parametrize(
    ("text", "swapped"),
    [
        ("a, b = self.a, self.b\nb[1:] = a[:-1]\nself.a, self.b = b, a", True),
        ("self.a, self.b = self.b, self.a", True),
        ("tmp = self.a\nself.a = self.b\nself.b = tmp", True),
        ("old = self.a.detach()\nself.a = self.a + 1\nself.b = old", True),
        ("self.a, self.b = self.a + self.b, self.b - self.a", False),
        ("self.a, self.b = cell(x, (self.a, self.b))", False),
    ],
)
def test_a_swap_of_two_buffers_is_seen(text: str, swapped: bool) -> None:
    """Copies one after the other would give both the same numbers."""
    # GIVEN / WHEN / THEN
    assert are_swapped(["self.a", "self.b"], list(ast.walk(ast.parse(text)))) is swapped
