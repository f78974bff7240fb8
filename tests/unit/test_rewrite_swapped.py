"""Buffers that a step exchanges with one another."""

from __future__ import annotations

import ast

import pytest

from paramgraph_kit.rewrite.expressions.state.swapped import swapped

BOTH = {"self.a", "self.b"}


@pytest.mark.parametrize(
    ("text", "exchanged"),
    [
        ("a, b = self.a, self.b\nb[1:] = a[:-1]\nself.a, self.b = b, a", BOTH),
        ("self.a, self.b = self.b, self.a", BOTH),
        ("tmp = self.a\nself.a = self.b\nself.b = tmp", BOTH),
        ("old = self.a.detach()\nself.a = self.a + 1\nself.b = old", {"self.a"}),
        ("self.a, self.b = self.a + self.b, self.b - self.a", set()),
        ("self.a, self.b = cell(x, (self.a, self.b))", set()),
        ("self.b = self.a\nself.a = new", {"self.a"}),
        ("self.a, self.b = zeros, zeros\nself.a, self.b = cell(x, (self.a, self.b))", set()),
        ("old = self.a\nself.a = self.a + 1\nreturn old[:2]", {"self.a"}),
        ("old = self.a\nself.a = old + 1\nreturn self.a", set()),
        ("self.a, self.b, self.c = self.b, self.a, self.c + 1", BOTH),
    ],
)
def test_a_swap_of_two_buffers_is_seen(text: str, exchanged: set[str]) -> None:
    """Copies one after the other would give both the same numbers."""
    # GIVEN / WHEN / THEN
    assert swapped(["self.a", "self.b", "self.c"], list(ast.walk(ast.parse(text)))) == exchanged
