"""Tensors in keywords that a wrapper copies nowhere: the words name a copy that both of its functions can reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
REPLAY = "                g.replay()\n"
GRAPHED = """
def captured(step):
    made = []
    def record(held, options):
        step(*held, **options)
        g = cuda.CUDAGraph()
        # ahead
        with cuda.graph(g):
            out = step(*held, **options)
        return g, held, out
    def call(*given, GIVEN):
        BEGIN
        with torch.no_grad():
            if not made:
                made.append(record([t.clone() for t in given], options))
            for g, held, out in made:
                for s, t in zip(held, given):
                    s.copy_(t)
                g.replay()
                return out.clone()
    return call
def step(x, offset):
    return (x + offset).sin() * 2
def main(is_graphed=True):
    torch.manual_seed(0)
    f = captured(step) if is_graphed else step
    kept = []
    for _ in range(5):
        x, offset = torch.randn(2, 4).to(device), torch.randn(4).to(device)
        kept.append(f(x, offset=offset))
    return kept
"""
WAYS = {"by stars": ("**options", "pass"), "by name": ("offset", "options = {'offset': offset}")}


def is_right(names: dict[str, Any]) -> bool:
    return all(map(torch.equal, names["main"](), names["main"](False)))


@pytest.mark.parametrize("way", WAYS)
def test_a_keyword_of_another_function_than_the_captures_is_copied_to_what_the_graph_keeps(
    way: str, tmp_path: Path
) -> None:
    # GIVEN a wrapper that captures in one function and replays in another, and copies none of its keywords
    given, begin = WAYS[way]
    text = GRAPHED.replace("GIVEN", given).replace("BEGIN", begin)
    found = pgk.diagnose(run(text, tmp_path)["main"])
    # WHEN what is said of them is followed to the letter
    told = next(f for f in found.failures if f.code == "stale-input")
    filled, _, ahead = told.fix.partition("after   ")[2].partition(", and ahead of the capture")
    (made,) = ahead.split("`")[1::2]
    text = text.replace(REPLAY, f"                {filled}\n").replace("# ahead", made)
    # THEN it gives what eager code does, and nothing more is told
    names = run(text, tmp_path)
    assert is_right(names)
    assert not pgk.diagnose(names["main"]).failures


STARRED = """
def graphed(step):
    made = {}
    def call(*given, **options):
        if not made:
            held = [t.clone() for t in given]
            step(*held, **options)
            g = cuda.CUDAGraph()
            # ahead
            with cuda.graph(g):
                out = step(*held, **options)
            made[0] = g, held, out
        g, held, out = made[0]
        for s, t in zip(held, given):
            s.copy_(t)
        g.replay()
        return out.clone()
    return call
@torch.no_grad()
def shifted(x, offset):
    return (x + offset).sin() * 2
fast = graphed(shifted)
def run(x, offset, f):
    return f(x, offset=offset)
def main(is_graphed=True):
    torch.manual_seed(0)
    global fast
    fast = graphed(shifted)
    kept = []
    for _ in range(5):
        x, offset = torch.randn(2, 4).to(device), torch.randn(4).to(device)
        kept.append(run(x, offset, fast if is_graphed else shifted))
    return kept
"""


def test_a_keyword_has_the_name_that_the_function_of_the_replay_gives_it(tmp_path: Path) -> None:
    # GIVEN a wrapper with stars, whose caller has a variable for a keyword that nothing copies
    found = pgk.diagnose(run(STARRED, tmp_path)["main"])
    # WHEN what is said of it is followed to the letter
    told = next(f for f in found.failures if f.code == "stale-input")
    filled, _, ahead = told.fix.partition("after   ")[2].partition(", and ahead of the capture")
    (made,) = ahead.split("`")[1::2]
    text = STARRED.replace("        g.replay()\n", f"        {filled}\n").replace("# ahead", made)
    # THEN it gives what eager code does, and nothing more is told
    names = run(text, tmp_path)
    assert is_right(names)
    assert not pgk.diagnose(names["main"]).failures
