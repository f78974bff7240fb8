"""A step puts another tensor where one was: the words are the line that writes into it, with its own names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device")

TABLE = """
class Means:
    def __init__(self):
        self.means = dict.fromkeys(["a", "b"], None)
    def __call__(self, losses):
        total = 0.0
        for name, loss in losses.items():
            old = self.means[name]
            self.means[name] = loss if old is None else 0.9 * old + 0.1 * loss
            total = total + loss / self.means[name]READ
        return total
means = Means()
def f(x):
    return means({"a": x.mean(), "b": x.abs().sum()})
args = (torch.randn(4, device=device),)
"""


@pytest.mark.parametrize(("read", "more"), [("", False), (" + (0 if old is None else old)", True)])
def test_an_entry_that_begins_as_none_is_told_to_be_written_into(tmp_path: Path, read: str, more: bool) -> None:
    # GIVEN entries of a table that a first step makes, and others put anew WHEN diagnosed
    names = run(TABLE.replace("READ", read), tmp_path)
    said = " ".join(str(pgk.diagnose(names["f"], *names["args"])).split())
    # THEN both ways of the line are told, and what is read behind it stays what it was
    lines = (
        "`if old is None: self.means[name] = loss.clone()` and `else: self.means[name].copy_(0.9 * old + 0.1 * loss)`"
    )
    assert lines in said, said
    assert ("`old = self.means[name].clone()`" in said) is more, said


def test_the_same_lines_give_what_the_step_gave(tmp_path: Path) -> None:
    # GIVEN the program with these lines, as they were told
    line = "self.means[name] = loss if old is None else 0.9 * old + 0.1 * loss"
    into = "else: self.means[name].copy_(0.9 * old + 0.1 * loss)"
    text = TABLE.replace("READ", "").replace(
        line, f"if old is None: self.means[name] = loss.clone()\n            {into}"
    )
    # WHEN it is diagnosed after a first call THEN nothing is said of it
    names = run(text, tmp_path)
    names["f"](*names["args"])
    assert not pgk.diagnose(names["f"], *names["args"]).failures
