"""A step alone whose streams take memory again that another one may still use: the card gives other numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PIPELINE = """
stages = [nn.Linear(2, 2, bias=False).to(device) for _ in range(3)]
streams = [cuda.Stream() for _ in stages]
@torch.no_grad()
def step(xs):
    main = cuda.current_stream()
    for s in streams:
        s.wait_stream(main)
    done, out, held = {}, [], []
    for n, h in enumerate(xs):
        for i, (stage, s) in enumerate(zip(stages, streams)):
            with cuda.stream(s):
                if i:
                    s.wait_event(done[n, i - 1])
                AHEAD
                h = stage(h)
                done[n, i] = s.record_event()
            BEHIND
        out.append(h)
    for s in streams:
        main.wait_stream(s)
    return torch.cat(out)
args = (torch.ones(3, 1, 2, device=device),)
"""
RIGHT = {
    "the allocator is told": ("h.record_stream(s)", "pass"),
    "the tensors are kept": ("pass", "held.append(h)"),
    "the streams wait for one another": ("pass", "[a.wait_stream(s) for a in streams if a is not s]"),
}


def told(ahead: str, behind: str, file: Path) -> list[tuple[str, str, str]]:
    """What is told of the step: the class, its line, and what to write."""
    names = load(PRELUDE + PIPELINE.replace("AHEAD", ahead).replace("BEHIND", behind), file)
    found = pgk.diagnose(names["step"], *names["args"]).failures
    return [(f.code, f.frame.text if f.frame is not None else "", f.fix.partition("after   ")[2]) for f in found]


def test_memory_that_is_taken_again_is_told_of_the_step_alone(tmp_path: Path) -> None:
    # GIVEN a pipeline of streams, each of which makes what the next one reads, and lets it go
    # WHEN it is diagnosed
    ((code, line, words),) = told("pass", "pass", tmp_path / "program.py")
    # THEN the line that may take the memory of one that is still read is told, with what tells the allocator
    assert (code, line) == ("work-elsewhere", "h = stage(h)")
    assert "`t.record_stream(s)` of each `t` of another stream's" in words


@pytest.mark.parametrize("way", RIGHT)
def test_memory_that_stays_or_is_waited_for_is_right(way: str, tmp_path: Path) -> None:
    # GIVEN the same where nothing can be taken early WHEN it is diagnosed THEN nothing is told
    assert told(*RIGHT[way], tmp_path / "program.py") == []
