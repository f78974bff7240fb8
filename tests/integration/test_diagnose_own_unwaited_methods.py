"""Pinned memory of a step asked alone, which a method or a function reads that its loop calls: no wait by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
TRAINER = """
class Trainer:
    def __init__(self):
        self.x, self.host = torch.zeros(3, device=device), torch.zeros(2).pin_memory()
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.l = self.x[:2] * 2
    def step(self, x):
        self.x.copy_(x)
        self.graph.replay()
        self.host.copy_(self.l, non_blocking=True)
    def loss(self):
        READS
def read(host):
    return host[0].item()
MADE
def main():
    INSIDE
    for n in range(3):
        STEP(torch.full((3,), float(n), device=device))
        got.append(LINE)
    return got
"""
PLAIN = ("trainer = Trainer()\ndef step(x):\n    trainer.step(x)", "got = []", "step")
BOUND = ("step = Trainer().step", "got, trainer = [], Trainer()", "trainer.step")
READ = {
    "an entry": ("return self.host[0].item()", "trainer.loss()", "return self.host[0].item()"),
    "a sum": ("return self.host.sum().item()", "trainer.loss()", "return self.host.sum().item()"),
    "a list": ("return self.host.tolist()", "trainer.loss()", "return self.host.tolist()"),
    "a function's": ("pass", "read(trainer.host)", "got.append(read(trainer.host))"),
}
WAITED = {
    "a wait of its own": ("cuda.current_stream().synchronize(); return self.host[0].item()", "trainer.loss()"),
    "what the device has": ("return self.l[0].item() + self.host[0].item()", "trainer.loss()"),
    "another tensor": ("return self.l.sum().item()", "trainer.loss()"),
}


def _asked(tmp_path: Path, reads: str, line: str, made: tuple[str, str, str]) -> Any:
    text = TRAINER.replace("READS", reads).replace("LINE", line)
    for name, value in zip(("MADE", "INSIDE", "STEP"), made, strict=True):
        text = text.replace(name, value)
    names = load(PRELUDE + text, tmp_path / "program.py")
    return pgk.diagnose(names["step"], torch.ones(3, device=names["device"]))


def _marked(each: str, first: str) -> object:
    return each if each == first else pytest.param(each, marks=pytest.mark.sweep)


@pytest.mark.parametrize("made", [PLAIN, pytest.param(BOUND, marks=pytest.mark.sweep)], ids=["a function", "a method"])
@pytest.mark.parametrize("how", [_marked(each, "an entry") for each in READ])
def test_a_read_of_the_host_s_memory_in_what_the_loop_calls_is_no_wait(
    how: str, made: tuple[str, str, str], tmp_path: Path
) -> None:
    # GIVEN a method that reads what a copy may still write WHEN the step is diagnosed
    reads, line, told = READ[how]
    found = _asked(tmp_path, reads, line, made).failures
    # THEN the line that reads it is told, with a wait
    assert [(f.code, f.frame.text) for f in found if f.frame] == [("work-elsewhere", told)]
    assert "torch.cuda.synchronize()" in found[0].fix


@pytest.mark.parametrize("made", [PLAIN, pytest.param(BOUND, marks=pytest.mark.sweep)], ids=["a function", "a method"])
@pytest.mark.parametrize("how", [_marked(each, "a wait of its own") for each in WAITED])
def test_a_method_that_waits_for_the_device_is_none(how: str, made: tuple[str, str, str], tmp_path: Path) -> None:
    # GIVEN a method that waits, or asks the device WHEN diagnosed THEN nothing is told
    assert not _asked(tmp_path, *WAITED[how], made).failures
