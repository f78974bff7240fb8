"""What keeps a result of a graph, which the next replay overwrites: builtins that set an attribute, or give it on."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from paramgraph_kit.rewrite.source.edits import Source
from paramgraph_kit.rewrite.source.moving import cloned


@pytest.mark.parametrize(
    ("line", "copied"),
    [
        ("setattr(self, 'h', y.detach())", True),
        ("object.__setattr__(self, 'h', y)", True),
        ("self.best = max(self.best, y)", True),
        ("self.rows = list(y)", True),
        ("self.queue.put(y)", True),
        ("print(len(y))", False),
        ("total = float(y)", False),
        ("self.norm = y.add(other).norm()", False),
    ],
)
def test_what_a_builtin_keeps_is_cloned(line: str, copied: bool, tmp_path: Path) -> None:
    # GIVEN a line behind a launch, in a branch perhaps that no trial takes
    file = tmp_path / "program.py"
    file.write_text(f"def after_step(self, y):\n    {line}\n")
    source = Source.of(str(file))
    assert source is not None
    function = source.tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    # WHEN it is asked what it keeps THEN that is cloned, and what only computes is not
    assert bool([*cloned(source, function.body[0], ["y"])]) is copied
