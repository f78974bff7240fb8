"""What is written in the place of an ``elif``: it runs where none of those before it was taken, and only there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from paramgraph_kit.rewrite.source.edits import Source

LADDER = """
def f(n, out):
    if n == 0:  # first
        out.append("none")
        for i in range(2):
            if i:
                out.append(i)
{second}
    return out
"""
SECOND = {
    "alone": "    elif n % 2 == 0:\n        out.append('even')",
    "with an else": "    elif n % 2 == 0:\n        out.append('even')\n    else:\n        out.append('odd')",
    "with comments": (
        "    # an even one\n    elif n % 2 == 0:  # by two\n        # told\n        out.append('even')  # so"
    ),
    "with a body of its own branches": (
        "    elif n % 2 == 0:\n        for i in range(n):\n            if i > 1:\n                out.append(i)\n"
        "            else:\n                out.append(-i)"
    ),
    "of several": "    elif n % 2 == 0:\n        out.append('even')\n    elif n == 3:\n        out.append(3)\n"
    "    else:\n        out.append('odd')",
}
NEW = {
    "one line": "out.append('new')",
    "a branch": "if n > 1:\n        out.append('new')\n    else:\n        out.append('small')",
}


@pytest.mark.parametrize("new", NEW)
@pytest.mark.parametrize("second", SECOND)
def test_what_stands_for_an_elif_runs_only_where_its_if_was_not_taken(second: str, new: str, tmp_path: Path) -> None:
    # GIVEN a ladder of branches
    file = tmp_path / "ladder.py"
    file.write_text(LADDER.format(second=SECOND[second]))
    source = Source.of(str(file))
    assert source is not None
    first = next(n for n in ast.walk(source.tree) if isinstance(n, ast.If) and isinstance(n.orelse[0], ast.If))
    # WHEN its second one is written anew
    text = "".join(source.apply([source.replace(first.orelse[0], NEW[new])]))
    # THEN the first is as it was, and the new lines run in all other cases
    names: dict[str, ast.AST] = {}
    exec(text, names)
    old: dict[str, ast.AST] = {}
    exec("def new(n, out):\n    " + NEW[new] + "\n    return out\n" + file.read_text(), old)
    for n in range(4):
        assert names["f"](n, []) == (old["f"](0, []) if n == 0 else old["new"](n, [])), text  # type: ignore[operator]
