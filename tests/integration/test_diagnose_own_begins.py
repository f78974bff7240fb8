"""Numbers that were given to what captures by hand, or by a context manager of the user's own."""

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
MANAGER = """
from contextlib import contextmanager
@contextmanager
def recording(graph):
    with cuda.graph(graph):
        yield
"""
DENOISER = """
class Denoiser:
    def __init__(self):
        self.x, self.graph = torch.ones(4, device=device), None
    def capture(self, sigma):
        self.graph = cuda.CUDAGraph()
        with cuda.stream(cuda.Stream()):
            BEGIN
                self.y = self.x - sigma * self.x.cos()
            END
    def __call__(self, x, sigma):
        if self.graph is None:
            self.capture(sigma)
        self.x.copy_(x)
        self.graph.replay()
        return self.y.clone()
def main():
    denoiser, x = Denoiser(), torch.ones(4, device=device)
    for sigma in SIGMAS:
        x = denoiser(x, sigma)
    return x
"""
BY_HAND = ("if True:\n                self.graph.capture_begin()", "    self.graph.capture_end()")
BY_MANAGER = ("with recording(self.graph):", "")


@pytest.mark.parametrize(("sigmas", "told"), [("(1.0, 0.5, 0.25)", 1), ("(1.0, 1.0, 1.0)", 0)])
@pytest.mark.parametrize("ways", [BY_HAND, BY_MANAGER])
def test_a_number_that_a_capture_was_given_is_told_however_it_begins(
    ways: tuple[str, str], sigmas: str, told: int, tmp_path: Path
) -> None:
    # GIVEN a method that captures with a number, by capture_begin() or a context manager of the file's own
    begin, end = ways
    program = DENOISER.replace("BEGIN", begin).replace("END", end).replace("SIGMAS", sigmas)
    # WHEN
    names = load(PRELUDE + MANAGER + program, tmp_path / "program.py")
    found = [f for f in pgk.diagnose(names["main"]).failures if f.code == "scalar-frozen"]
    # THEN it is told at the captured line, if it is another one at a replay
    assert len(found) == told
    assert all(f.frame is not None and f.frame.text == "self.y = self.x - sigma * self.x.cos()" for f in found)


GRAPHED = """
class Graphed:
    def __init__(self, fn, *static):
        self.static, self.stream = static, cuda.Stream()
        with cuda.stream(self.stream):
            self.graph = cuda.CUDAGraph()
            self.graph.capture_begin()
            self.out = fn(*static)
            self.graph.capture_end()
    def __call__(self, *args):
        for held, new in zip(self.static, args):
            if isinstance(held, torch.Tensor):
                held.copy_(new)
        self.graph.replay()
        return self.out.clone()
def main():
    f = Graphed(lambda x, scale: x + scale * x.cos(), torch.zeros(4, device=device), GIVEN)
    return [f(torch.ones(4, device=device), LATER) for i in range(3)]
"""


@pytest.mark.parametrize(
    ("given", "later", "told"),
    [
        ("1.0", "1.0 + i", 1),
        ("1.0", "1.0", 0),
        ("torch.full((), float(1.0), device='sim')", "torch.full((), float(1.0 + i), device='sim')", 0),
    ],
)
def test_a_number_among_arguments_that_a_call_pairs_with_those_of_the_capture_is_told(
    given: str, later: str, told: int, tmp_path: Path
) -> None:
    # GIVEN a class that copies the tensors among its arguments, and no numbers; and the same as the words have it
    program = GRAPHED.replace("GIVEN", given).replace("LATER", later)
    # WHEN
    found = pgk.diagnose(load(PRELUDE + program, tmp_path / "program.py")["main"]).failures
    # THEN
    assert [f.code for f in found] == ["scalar-frozen"] * told
    assert all("`torch.full((), float(1.0), device='sim')` for `1.0` here" in f.fix for f in found)
