"""Tensors that two entries of a dictionary exchange, by what all that hold it held before."""

from __future__ import annotations

import ast
from pathlib import Path

import torch

from paramgraph_kit.rewrite.expressions.state.carried import fill_each_entry
from paramgraph_kit.rewrite.proving.kept_results import moved_among
from paramgraph_kit.rewrite.source.edits import Source
from paramgraph_kit.rewrite.source.place import Place
from paramgraph_kit.trace.model import Failure

STEP = """\
def flip(src, dst):
    dst.copy_(src)
    return dst, src
def step(x):
    a, b = bufs["a"], bufs["b"]
    bufs["a"], bufs["b"] = flip(a, b)
    return {result}
"""


def test_a_dictionary_that_holds_itself_in_an_attribute_tells_of_an_exchange() -> None:
    # GIVEN a dictionary that an object has, and that is known by itself as it was
    one, two = torch.zeros(2), torch.ones(2)
    table = {"a": two, "b": one}
    before = [{"bufs": table, "n": 1}, {"a": one, "b": two}, table]
    now = [{"bufs": table, "n": 1}, table, table]
    # WHEN its entries were exchanged THEN both are
    assert moved_among(before, now) == {id(one), id(two)}
    # AND none is that the same entry holds, or that something else holds still
    assert not moved_among([{"bufs": table}, dict(table)], [{"bufs": table}, table])
    assert moved_among([*before, {"kept": one}], [*now, {"kept": one}]) == {id(two)}


def test_what_a_helper_gives_back_is_written_into_the_entries(tmp_path: Path) -> None:
    # GIVEN a helper that is given two entries by their names, and whose results these get
    def made(result: str) -> str:
        file = tmp_path / f"step{len([*tmp_path.iterdir()])}.py"
        file.write_text(STEP.format(result=result))
        source = Source.of(str(file))
        assert source is not None
        first = source.tree.body[0]
        assert isinstance(first, ast.FunctionDef)
        space = {"bufs": {"a": torch.zeros(2), "b": torch.ones(2)}}
        place = Place(source, first.body[0], Failure("stale-input", "", ""), "device", space, entry="step")
        return "".join(edit.text for edit in fill_each_entry(place))

    # WHEN its line is rewritten
    text = made("x")
    # THEN all is copied before any is written
    assert 'zip((bufs["a"], bufs["b"]), [each.clone() for each in flip(a, b)], strict=True)' in text
    # AND nothing is where a name of before is still read
    assert not made("a")
