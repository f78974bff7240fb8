"""A place of a table at a number that the host has moves on as a place: of int64, in a form that nothing asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.proving.around import Around
from tests.integration.rewritten import run
from tests.programs.running import captured, differences, eager

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

SAMPLER = """
class Sampler:
    def __init__(self):
        self.alphas = torch.linspace(0.99, 0.01, 100, device=device)TABLE
        self.times = list(range(99, -1, -4))
        self.i = 0
    def step(self, x):
        LINE
        a = PICK
        self.i += 1
        return a.sqrt() * x + (1 - a).sqrt() * torch.tanh(x)
sampler = Sampler()
args = (torch.randn(4, 6, device=device),)
def f(x):
    return sampler.step(x)
"""
ONE, TWO = "t = self.times[self.i]", "t, last = self.times[self.i], self.times[-1]"
PICKS = {
    "the first dimension": ("", ONE, "self.alphas[t]", "self.alphas[t_in.reshape(1)].squeeze(0)"),
    "another one": (".expand(6, 100)", ONE, "self.alphas[:, t]", "self.alphas[:, t_in.reshape(1)].squeeze(1)"),
    "the one before": ("", ONE, "self.alphas[t - 4]", "self.alphas[(t_in - 4).reshape(1)].squeeze(0)"),
    "one of two": ("", TWO, "self.alphas[t]", "self.alphas[t_in.reshape(1)].squeeze(0)"),
}


def told(text: str, folder: Path) -> list[Any]:
    names = run(text, folder)
    return list(pgk.diagnose(names["f"], *names["args"]).failures)


@pytest.mark.parametrize("name", PICKS)
def test_a_place_of_a_table_is_given_as_one(name: str, tmp_path: Path) -> None:
    # GIVEN a sampler that reads its table at today's time, which a list has at a count
    table, line, pick, mended = PICKS[name]
    text = SAMPLER.replace("TABLE", table).replace("LINE", line).replace("PICK", pick)
    # WHEN it is looked at
    found = {each.code: each.fix for each in told(text, tmp_path)}
    # THEN the words have a place of int64, and the count stays the host's
    flat = " ".join(found["size-frozen"].split())
    made = "t_in = torch.zeros((), dtype=torch.long, device=device)"
    assert f"`{made}`" in flat
    assert "`t_in.fill_(self.times[self.i])`" in flat
    assert f"`{mended}` for `{pick}`" in flat
    assert "is a tensor, to which it adds" not in found["host-counter"]
    # AND followed to the letter ten steps are eager's, and nothing is told of it
    letter = text.replace(line, "pass").replace(pick, mended).replace("        self.i += 1\n", "")
    truth = eager(run(text, tmp_path), "f")
    names = run(letter.replace("sampler = ", f"{made}\nsampler = "), tmp_path)
    sampler, place = names["sampler"], names["t_in"]

    def after(_: Any, out: Any) -> Any:
        sampler.i += 1
        return out

    around = Around(lambda _: place.fill_(sampler.times[sampler.i]), after)
    assert not differences(truth, captured(names, "f", around), set())
    assert not pgk.diagnose(names["f"], *names["args"]).failures


def test_a_place_that_stays_is_none(tmp_path: Path) -> None:
    # GIVEN a sampler whose place in the table is always the same
    text = SAMPLER.replace("TABLE", "").replace("LINE", "t = self.times[3]").replace("PICK", "self.alphas[t]")
    # WHEN it is looked at THEN nothing is told of it
    assert not told(text.replace("        self.i += 1\n", ""), tmp_path)
