"""Generators that an object makes for itself, in a call that makes the object anew: its own line is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
TEXT = """
class Stacked:
    def __init__(self, seeds):
        MADE
    def randn(self, n):
        return DRAWN
kept = Stacked([3, 4])
def generate(x, seeds):
    rnd = Stacked(seeds)
    return x * 2 + rnd.randn(3)
def holds(x, seeds):
    return x * 2 + kept.randn(3)
"""
LIST = "self.gens = [torch.Generator(device).manual_seed(int(each) % 999) for each in seeds]"
OF_LIST = "torch.stack([torch.randn(n, generator=gen, device=device) for gen in self.gens])"
ONE = "self.gen = torch.Generator(device=device)\n        self.gen.manual_seed(seeds[0])"
OF_ONE = "torch.randn(n, generator=self.gen, device=device)"
SAID = re.compile(r"`([^`]*)`")


@pytest.mark.parametrize(("made", "drawn"), [(LIST, OF_LIST), pytest.param(ONE, OF_ONE, marks=pytest.mark.sweep)])
def test_generators_of_an_object_of_the_call_are_told_where_they_are_made(
    made: str, drawn: str, tmp_path: Path
) -> None:
    # GIVEN a function whose helper object makes, and seeds, its generators
    names = run(TEXT.replace("MADE", made).replace("DRAWN", drawn), tmp_path)
    x = torch.ones(3, device=pgk.device())
    # WHEN it is diagnosed
    told = {f.code: f for f in pgk.diagnose(names["generate"], x, [1, 2]).failures}
    # THEN the line that makes them is told, and with its words each replay draws what each call does
    assert [*told] == ["generator-made", "unregistered-generator"]
    assert told["generator-made"].frame.text == made.splitlines()[0]  # type: ignore[union-attr]
    first, register, _, seeded = SAID.findall(told["generator-made"].fix.partition("\nafter")[2])
    g = pgk.cuda.CUDAGraph()
    there = {**names, "seeds": [1, 2], "x": x, "g": g}
    exec(f"{first}\n{register}", there)
    with pgk.cuda.graph(g):
        exec("y = x * 2 + rnd.randn(3)", there)
    for seeds in ([1, 2], [5, 6], [5, 6]):
        there["seeds"] = seeds
        exec(seeded, there)
        g.replay()
        torch.testing.assert_close(there["y"], names["generate"](x, seeds))


def test_generators_of_an_object_that_is_kept_are_registered_alone(tmp_path: Path) -> None:
    # GIVEN the same object, kept from call to call WHEN what draws from it is diagnosed
    names = run(TEXT.replace("MADE", LIST).replace("DRAWN", OF_LIST), tmp_path)
    (told,) = pgk.diagnose(names["holds"], torch.ones(3, device=pgk.device()), [1, 2]).failures
    # THEN each of them is to be registered, and none is told to be made elsewhere
    assert told.code == "unregistered-generator"
    assert "`for gen in kept.gens: g.register_generator_state(gen)` of the graph `g`" in told.fix
