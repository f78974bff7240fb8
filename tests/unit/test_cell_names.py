"""Which names of a cell live on from one run to the next: those that are read before they are stored."""

from __future__ import annotations

import ast

import pytest

from paramgraph_kit.doctor import cell

CELLS = {
    "n += 1": ["n"],
    "y = 2\ny += 1": [],
    "for x in rows:\n    x = x * 2": [],
    "for x in x:\n    y = x": ["x"],
    "for i in range(3):\n    h = step(h)": ["h"],
    "for i in range(3):\n    h = i\n    h = step(h)": [],
    "while n < 3:\n    n += 1": ["n"],
    "if c:\n    a = 1\nelse:\n    b = a": ["a"],
    "if c:\n    a = 1\nb = a": [],
    "with f(a) as a:\n    b = a": ["a"],
    "try:\n    a = 1\nexcept E:\n    a = b\n    b = a": ["b"],
    "import torch\ntorch.ones(2)": [],
    "f = 1\ndef g():\n    return f2\nf2 = g()": ["f2"],
    "match n:\n    case 1:\n        n = 2": ["n"],
}


@pytest.mark.parametrize("text", CELLS)
def test_what_is_read_before_it_is_stored_is_global(text: str) -> None:
    # GIVEN a cell WHEN it becomes a function THEN that declares what a run of the cell before has left
    function = cell.wrapped(ast.parse(text)).body[-1]
    assert isinstance(function, ast.FunctionDef)
    names = [name for node in function.body if isinstance(node, ast.Global) for name in node.names]
    assert names == CELLS[text]
