"""Words for rows that are zeros where a mask leaves them out say that none of them may be the least of all."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any, cast

import pytest

from paramgraph_kit.rewrite.advised.sizes.picked_rows import beside

_HELPERS = "\ndef nearest(self, d):\n    return d.min(1)\ndef weighed(self, d):\n    return d.mean(1) * max(0, 1)\n"


@pytest.mark.parametrize(
    ("line", "ranks"),
    [("self.nearest(x)", "min"), ("x.softmax(0)", "softmax"), ("x.sum()", ""), ("self.weighed(x)", "")],
)
def test_what_ranks_picked_rows_is_told(line: str, ranks: str) -> None:
    # GIVEN a line that picks rows, and one below it, which ranks what comes of them or not
    tree = ast.parse(f"def step(self, x, keep):\n    x = x[keep]\n    return {line}\n{_HELPERS}")
    function = cast("ast.FunctionDef", tree.body[0])
    source = SimpleNamespace(tree=tree, function_of=lambda _: function)

    # WHEN the words for the mask beside them are asked
    told = beside(cast("Any", SimpleNamespace(source=source, statement=function.body[0])), "keep")

    # THEN they name what must leave the zeros out, if anything does
    assert (f"`{ranks}`" in told) if ranks else not told
