"""Entries of a dictionary that a step exchanges are written in place, also by what a helper gives back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.rewritten import rewritten

HEAD = """
bufs = {"a": torch.randn(8).to(device), "b": torch.zeros(8).to(device)}
args = (torch.randn(8).to(device),)
def flip(src, dst):
    dst.copy_(src * 0.9 + 0.1)
    return dst, src
"""
BY_NAMES = """
def f(x):
    src, dst = bufs["a"], bufs["b"]
    src.add_(x)
    bufs["a"], bufs["b"] = flip(src, dst)
    return bufs["a"].sum()
"""
OF_AN_OBJECT = """
class Sim:
    def __init__(self):
        self.bufs = {"a": torch.randn(8).to(device), "b": torch.zeros(8).to(device)}
    def flip(self, src, dst):
        dst.copy_(src.roll(1) * 0.5 + src)
        return dst, src
    def step(self, x):
        self.bufs["a"], self.bufs["b"] = self.flip(self.bufs["a"], self.bufs["b"])
        self.bufs["a"].add_(x)
        return self.bufs["a"].clone()
f = Sim().step
"""
BY_THE_LINE = """
def f(x):
    torch.add(bufs["a"], x, out=bufs["b"])
    bufs["a"], bufs["b"] = bufs["b"], bufs["a"]
    return bufs["a"] * 1
"""
STILL_READ = """
def f(x):
    src, dst = bufs["a"], bufs["b"]
    bufs["a"], bufs["b"] = flip(src, dst)
    bufs["a"].add_(x)
    return src.sum()
"""


@pytest.mark.sweep
@pytest.mark.parametrize("program", [BY_NAMES, OF_AN_OBJECT, BY_THE_LINE], ids=["names", "an object", "the line"])
def test_exchanged_entries_are_written_in_place(program: str, tmp_path: Path) -> None:
    # GIVEN a step that exchanges two entries, itself or by what a helper returns WHEN fixed
    fix = rewritten(HEAD + program, tmp_path)
    # THEN one graph has all of it, and writes what each entry is to hold once all is read
    assert fix.complete, fix
    assert "held.copy_(new.view_as(held))" in fix.diff


@pytest.mark.sweep
def test_entries_that_are_read_by_a_name_of_before_are_not(tmp_path: Path) -> None:
    # GIVEN such a step that goes on to read what an entry was, by its name WHEN fixed
    fix = rewritten(HEAD + STILL_READ, tmp_path)
    # THEN no diff writes over that
    assert "held.copy_" not in fix.diff
