"""Words for rows that are zeros where a mask leaves them out say that none of them may be the least of all."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any, cast

import pytest

from paramgraph_kit.rewrite.advised.sizes.picked_rows import beside

_HELPERS = "\ndef nearest(self, d):\n    return d.min(1)\ndef weighed(self, d):\n    return d.mean(1) * max(0, 1)\n"


def _told(line: str) -> str:
    tree = ast.parse(f"def step(self, x, keep):\n    x = x[keep]\n    return {line}\n{_HELPERS}")
    function = cast("ast.FunctionDef", tree.body[0])
    source = SimpleNamespace(tree=tree, function_of=lambda _: function)
    place = SimpleNamespace(source=source, statement=function.body[0], text=ast.unparse)
    return beside(cast("Any", place), "keep")


@pytest.mark.parametrize(
    ("line", "ranks"),
    [("self.nearest(x)", "min"), ("x.softmax(0)", "softmax"), ("x.sum()", ""), ("self.weighed(x)", "")],
)
def test_what_ranks_picked_rows_is_told(line: str, ranks: str) -> None:
    # GIVEN a line that picks rows, and one below it, which ranks what comes of them or not
    # WHEN the words for the mask beside them are asked
    told = _told(line)

    # THEN they name what must leave the zeros out, if anything does
    assert (f"`{ranks}`" in told) if ranks else not told


_MOST, _LEAST = '-float("inf")', 'float("inf")'


@pytest.mark.parametrize(
    ("line", "last"),
    [
        ("x.sort(0)", [_LEAST]),
        ("x.sort(0, descending=True)", [_MOST]),
        ("torch.sort(x, 0, True)", [_MOST]),
        ("x.argsort(-1, descending=falls)", [f"{_MOST} if falls else {_LEAST}"]),
        ("x.topk(3)", [_MOST]),
        ("torch.topk(x, 3, largest=False)", [_LEAST]),
        ("x.topk(3, 0, False)", [_LEAST]),
        ("x.sort(descending=True)[0] + x.min()", [_MOST, _LEAST]),
    ],
)
def test_what_they_are_given_comes_last_in_that_order(line: str, last: list[str]) -> None:
    # GIVEN a line that orders what comes of picked rows, one way or the other WHEN its words are asked
    told = _told(line)
    # THEN what takes the place of the others comes behind all that there is
    given = [part.partition("`")[0] for part in told.split("masked_fill(~keep, ")[1:]]
    assert given == [f"{each})" for each in last]
