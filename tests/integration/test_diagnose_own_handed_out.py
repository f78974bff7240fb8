"""A tensor that is filled in place from now on, and that the program gives back or keeps: its copy is told at once."""

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
PROGRAM = """
net = nn.Linear(4, 4).to(device).requires_grad_(False)
class Runner:
    def __init__(self):
        HELD = torch.zeros(2, 4, device=device)
        self.seen = []
        net(HELD)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.out = net(HELD).tanh()
    def step(self):
        self.graph.replay()
        GIVEN
        LAST
    @property
    def state(self):
        return HELD
def main():
    runner, seen = Runner(), []
    for _ in range(4):
        MAIN
    return torch.stack(seen).cpu()
"""
GIVEN, FILLED = "HELD = self.out * 0.5 + 0.1", "HELD.copy_(self.out * 0.5 + 0.1)"
KEPT = "seen.append(runner.step())"


def _text(given: str, last: str, main: str = KEPT, held: str = "self.h") -> str:
    return PRELUDE + PROGRAM.replace("GIVEN", given).replace("LAST", last).replace("MAIN", main).replace("HELD", held)


LASTS = {
    "return HELD": (KEPT, "`return self.h.clone()` in line"),
    "return {'h': HELD, 'n': 1}": ("seen.append(runner.step()['h'])", "`return {'h': self.h.clone(), 'n': 1}` in line"),
    "return HELD, 1": ("seen.append(runner.step()[0])", "`return (self.h.clone(), 1)` in line"),
    "self.seen.append(HELD)": ("runner.step(); seen = runner.seen", "`self.seen.append(self.h.clone())` in line"),
    "pass": ("runner.step(); seen.append(runner.state)", "`return self.h.clone()` in line"),
}


@pytest.mark.parametrize(
    "last", [each if each == "return HELD" else pytest.param(each, marks=pytest.mark.sweep) for each in LASTS]
)
def test_the_copy_of_what_is_filled_in_place_is_told_with_it(last: str, tmp_path: Path) -> None:
    # GIVEN a step that gives its input another tensor, which main keeps WHEN diagnosed
    main, words = LASTS[last]
    (told,) = pgk.diagnose(load(_text(GIVEN, last, main), tmp_path / "program.py")["main"]).failures
    # THEN the lines that hand it out are told with it
    assert told.code == "stale-input"
    assert "after   self.h.copy_(self.out * 0.5 + 0.1); and `" in told.fix
    assert words in told.fix, told.fix


@pytest.mark.sweep
@pytest.mark.parametrize("held", ["self.h", "self.s"])
def test_words_that_are_followed_leave_no_problem(held: str, tmp_path: Path) -> None:
    # GIVEN the words followed to the letter WHEN diagnosed THEN nothing is told, and the numbers are eager's
    names = load(_text(FILLED, "return HELD.clone()", KEPT, held), tmp_path / "program.py")
    assert not pgk.diagnose(names["main"]).failures
    h, eager = torch.zeros(2, 4), []
    for _ in range(4):
        h = names["net"].cpu()(h).tanh() * 0.5 + 0.1
        eager.append(h)
    names["net"].to(names["device"])
    assert torch.allclose(names["main"](), torch.stack(eager), atol=1e-6)


@pytest.mark.sweep
def test_what_lines_write_to_is_given_back_as_it_is(tmp_path: Path) -> None:
    # GIVEN a property by which main clears the tensor WHEN diagnosed
    text = _text(GIVEN, "return HELD.clone()", f"{KEPT}; runner.state.zero_()")
    (told,) = pgk.diagnose(load(text, tmp_path / "program.py")["main"]).failures
    # THEN no copy of it is told, which would clear nothing
    assert told.fix.endswith("self.h.copy_(self.out * 0.5 + 0.1)")


PAIR = """
class Filter:
    def __init__(self):
        self.m, self.v, self.z = (torch.full((2,), float(n), device=device) for n in (0, 1, 0))
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            k = self.v / (self.v + 1)
            self.m_out, self.v_out = self.m + k * (self.z - self.m), self.v * (1 - k)
    def step(self, z):
        self.z.copy_(z)
        self.graph.replay()
        self.m, self.v = self.m_out.clone(), self.v_out.clone()
        GIVES
def main():
    f = Filter()
    return [f.step(torch.full((2,), float(n), device=device)) for n in range(4)]
"""


@pytest.mark.parametrize(
    ("gives", "copied"),
    [
        ("return self.m", "return self.m.clone()"),
        pytest.param("return self.m, self.v", "return (self.m.clone(), self.v.clone())", marks=pytest.mark.sweep),
    ],
)
def test_each_tensor_that_one_line_fills_has_its_copy(gives: str, copied: str, tmp_path: Path) -> None:
    # GIVEN a line that gives two inputs other tensors, and one that hands them out WHEN diagnosed
    (told,) = pgk.diagnose(load(PRELUDE + PAIR.replace("GIVES", gives), tmp_path / "program.py")["main"]).failures
    # THEN that line is told with them, once
    assert f"self.m.copy_(self.m_out.clone()); and `{copied}` in line" in told.fix
    assert told.fix.count("` in line") == 1
