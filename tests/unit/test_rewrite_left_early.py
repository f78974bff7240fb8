"""Loops that a function leaves with a result: which go on, with what the device keeps, and which stay."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from paramgraph_kit.rewrite.loops.left_early import keep_what_it_left_with
from paramgraph_kit.rewrite.source.edits import Source
from paramgraph_kit.rewrite.source.place import Form, Place
from paramgraph_kit.trace.model import Failure

STEP = """\
def forward(x, n):
    for i in range(3):
        x = torch.relu(x)
        y = torch.exp(x)
        if y.max().item() > 0.5:
            return {left}
    {between}return {last}
"""


def kept(path: Path, left: str, last: str, between: str = "", **space: object) -> str:
    """The lines that are made of it, or ""."""
    file = path / f"step{len([*path.iterdir()])}.py"
    file.write_text(STEP.format(left=left, last=last, between=between))
    source = Source.of(str(file))
    assert source is not None
    branch = next(n for n in ast.walk(source.tree) if isinstance(n, ast.If))
    form = Form.of(torch.zeros(4))
    failure = Failure("sync-item", "", "_local_scalar_dense of float32[]")
    place = Place(source, branch, failure, "device", {"torch": torch, **space}, {"x": form, "y": form})
    return "".join(source.apply(edits)) if (edits := keep_what_it_left_with(place)) else ""


@pytest.mark.parametrize(
    ("left", "last", "line"),
    [
        ("y", "x", "return torch.where(done, early_y, x)"),
        ("x * 2", "y", "return torch.where(done, early, y)"),
        ("y, n", "y, n", "return torch.where(done, early_y, y), n"),
        ("{'y': y, 'x': x}", "{'y': x, 'x': y}", "'x': torch.where(done, early_x, y)}"),
    ],
)
def test_a_result_that_a_loop_left_with_is_kept_on_the_device(left: str, last: str, line: str, tmp_path: Path) -> None:
    # GIVEN a loop that a function leaves with tensors WHEN rewritten
    text = kept(tmp_path, left, last)
    # THEN all rounds run, and what it left with is chosen at the end
    assert line in text
    assert "done = done | " in text
    assert ".item()" not in text


def test_what_no_tensor_stands_for_stays(tmp_path: Path) -> None:
    # GIVEN numbers of rounds, lists, results of other forms, and work behind the loop WHEN rewritten THEN it stays
    assert not kept(tmp_path, "y, i", "y, 3")
    assert not kept(tmp_path, "y.tolist()", "x.tolist()")
    assert not kept(tmp_path, "y", "x, y")
    assert not kept(tmp_path, "{'y': y}", "{'x': x}")
    assert not kept(tmp_path, "None", "x")
    assert not kept(tmp_path, "y", "x", between="print(x)\n    ")
    # AND so it does where an optimizer would take gradients of zeros for some
    adam, sgd = (torch.optim.Optimizer.__new__(each) for each in (torch.optim.Adam, torch.optim.SGD))
    sgd.param_groups = [{"weight_decay": 0}]
    assert not kept(tmp_path, "y", "x", optimizer=adam)
    assert kept(tmp_path, "y", "x", optimizer=sgd)
