"""Inputs of graphs that are given another tensor of another size, as with a smaller bucket, ahead of a replay."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = pytest.mark.usefixtures("recovered")
RUNNER = """
class Runner:
    def __init__(self):
        n, self.out, self.graphs = torch.ones(4, device=device), torch.zeros(4, device=device), {}
        for b in (4, 2):
            g = cuda.CUDAGraph()
            with cuda.graph(g):
                self.out[:b] = n[:b] * 2
            self.graphs[b] = KEPT
        HELD
    def run(self, n):
        b = 2 if len(n) <= 2 else 4
        GIVEN
        self.graphs[b].replay()
        return self.out[: len(n)].clone()
def step(runner, n):
    return runner.run(n)
def main():
    runner = Runner()
    return torch.stack([runner.run(torch.full((2,), 3.0 + i, device=device)) for i in range(5)])
"""
ATTRIBUTE, ENTRY = ("self.n = n", "self.n = n + 0"), ("self.s = dict(n=n)", 'self.s["n"] = n + 0')
PADDED = "self.s = dict(n=n)", 'self.s["n"] = F.pad(n, (0, b - len(n)))'
READS = "g; g.reads = (b, n)"


def _text(held: str, given: str, kept: str = READS) -> str:
    return PRELUDE + RUNNER.replace("HELD", held).replace("GIVEN", given).replace("KEPT", kept)


def _mended(text: str, given: str, fix: str, file: Path) -> dict[str, object]:
    file.parent.mkdir()
    return load(text.replace(given, fix.partition("\nafter   ")[2]), file)


@pytest.mark.parametrize(
    ("held", "given"),
    [
        pytest.param(*ATTRIBUTE, id="attribute", marks=pytest.mark.sweep),
        pytest.param(*ENTRY, id="entry"),
        pytest.param(*PADDED, id="padded", marks=pytest.mark.sweep),
    ],
)
def test_a_smaller_tensor_in_place_of_what_a_graph_reads_is_told(held: str, given: str, tmp_path: Path) -> None:
    # GIVEN graphs for four and two rows of one tensor, whose place is given another of as many rows as there are
    text = _text(held, given)
    names = load(text, tmp_path / "program.py")
    x = torch.full((2,), 3.0, device=names["device"])
    # WHEN the step is asked with the smaller bucket
    found = pgk.diagnose(names["step"], names["Runner"](), x).failures
    # THEN the line that gives it is told, and its words, when followed, give eager's numbers in both buckets
    assert [(f.code, f.frame and f.frame.text) for f in found] == [("stale-input", given)]
    mended = _mended(text, given, found[0].fix, tmp_path / "mended" / "program.py")
    runner = mended["Runner"]()  # type: ignore[operator]
    for size in (2, 4, 1, 2):
        x = torch.full((size,), 3.0 + size, device=names["device"])
        assert torch.equal(runner.run(x), x * 2), found[0].fix
    assert not pgk.diagnose(mended["step"], runner, x).failures


def test_words_of_the_larger_bucket_are_right_for_the_smaller_one(tmp_path: Path) -> None:
    # GIVEN the same, WHEN it is asked with as many rows as the tensor of the capture has
    text = _text(*PADDED)
    names = load(text, tmp_path / "program.py")
    x = torch.full((4,), 3.0, device=names["device"])
    found = pgk.diagnose(names["step"], names["Runner"](), x).failures
    # THEN the words write as many rows as are given, since another graph reads fewer of them
    assert [f.code for f in found] == ["stale-input"]
    runner = _mended(text, PADDED[1], found[0].fix, tmp_path / "mended" / "program.py")["Runner"]()  # type: ignore[operator]
    assert torch.equal(runner.run(x[:2]), x[:2] * 2)


@pytest.mark.parametrize(
    "kept", [pytest.param("g", id="gone", marks=pytest.mark.sweep), pytest.param(READS, id="kept")]
)
def test_a_whole_program_is_told_where_it_gives_the_tensor(kept: str, tmp_path: Path) -> None:
    # GIVEN a program that captures and replays; the tensor of its capture is gone, or is kept with its graphs
    text = _text(*PADDED, kept)
    names = load(text, tmp_path / "program.py")
    # WHEN it is asked
    found = pgk.diagnose(names["main"]).failures
    # THEN it is the line that gives another that is told, and no words keep the old one
    assert [(f.code, f.frame and f.frame.text) for f in found] == [("stale-input", PADDED[1])]
    main = _mended(text, PADDED[1], found[0].fix, tmp_path / "mended" / "program.py")["main"]
    eager = torch.arange(3.0, 8.0).mul(2)[:, None].expand(5, 2)
    assert torch.equal(main().cpu(), eager)  # type: ignore[operator]


def test_what_is_too_large_for_its_place_is_made_as_large_ahead(tmp_path: Path) -> None:
    # GIVEN rows that are added to what graphs read
    names = load(_text("self.n = n", "self.n = torch.cat([self.n, n])"), tmp_path / "program.py")
    # WHEN the step is asked
    found = pgk.diagnose(names["step"], names["Runner"](), torch.ones(2, device=names["device"])).failures
    # THEN it is told, with words that write no more rows than there are
    assert [f.code for f in found] == ["stale-input"]
    assert "as large as it gets" in found[0].fix


SOUND = {
    "in place": ("self.n = n", "self.n[: len(n)].copy_(n)"),
    "another name": ("self.n = n; self.last = self.out.clone()", "self.last = n + 0; self.n[: len(n)].copy_(n)"),
    "a second name": ("self.n = self.last = n", "self.n[: len(n)].copy_(n); self.last = n + 0"),
}


@pytest.mark.parametrize(
    ("held", "given"),
    [pytest.param(*v, id=k, marks=[] if k == "a second name" else pytest.mark.sweep) for k, v in SOUND.items()],
)
def test_what_is_written_in_place_is_no_problem(held: str, given: str, tmp_path: Path) -> None:
    # GIVEN inputs that are written in place, and other tensors of other sizes that no graph reads
    names = load(_text(held, given), tmp_path / "program.py")
    # WHEN the step is asked with the smaller bucket, THEN nothing is told
    x = torch.full((2,), 3.0, device=names["device"])
    assert not pgk.diagnose(names["step"], names["Runner"](), x).failures


@pytest.mark.sweep
@pytest.mark.parametrize(("held", "given"), SOUND.values(), ids=SOUND)
def test_a_whole_program_that_writes_in_place_has_no_problem(held: str, given: str, tmp_path: Path) -> None:
    # GIVEN the same, WHEN a program with it is asked, THEN nothing is told
    assert not pgk.diagnose(load(_text(held, given), tmp_path / "program.py")["main"]).failures


AGAIN = """
class Runner:
    def __init__(self):
        self.n, self.out, self.graph = torch.ones(4, device=device), torch.zeros(4, device=device), None
    def run(self, n):
        if self.graph is None or len(self.n) != len(n):
            self.n = n.clone()
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out[: len(n)] = self.n * 2
        self.n.copy_(n)
        self.graph.replay()
        return self.out[: len(n)].clone()
def main():
    runner = Runner()
    return torch.cat([runner.run(torch.full((2 + i % 2,), 3.0 + i, device=device)) for i in range(4)])
"""


@pytest.mark.sweep
def test_a_graph_that_is_captured_again_for_a_size_is_no_problem(tmp_path: Path) -> None:
    # GIVEN a graph that is captured again where the input has another size
    names = load(PRELUDE + AGAIN, tmp_path / "program.py")
    # WHEN a program with two sizes in turn is asked, THEN nothing is told
    assert not pgk.diagnose(names["main"]).failures


TWO = """
class Runner:
    def __init__(self):
        n, self.out, self.graphs = torch.ones(4, 6, device=device), torch.zeros(4, device=device), {}
        for shape in ((4, 6), (4, 3), (2, 3)):
            g = cuda.CUDAGraph()
            with cuda.graph(g):
                self.out[: shape[0]] = n[: shape[0], : shape[1]].sum(1)
            self.graphs[shape] = g
        self.n = n
    def run(self, n):
        GIVEN
        self.graphs[tuple(n.shape)].replay()
        return self.out[: len(n)].clone()
def step(runner, n):
    return runner.run(n)
"""


@pytest.mark.sweep
@pytest.mark.parametrize("given", ["self.n = n + 0", "self.n = n.double()"], ids=["size", "dtype"])
@pytest.mark.parametrize("shape", [(4, 6), (2, 3)], ids=["all", "part"])
def test_words_write_each_dimension_as_far_as_it_is_given(shape: tuple[int, int], given: str, tmp_path: Path) -> None:
    # GIVEN graphs for buckets of rows and of columns, whose input is given another tensor, or one of another dtype
    text = PRELUDE + TWO.replace("GIVEN", given)
    names = load(text, tmp_path / "program.py")
    # WHEN the step is asked with one of these
    found = pgk.diagnose(names["step"], names["Runner"](), torch.ones(*shape, device=names["device"])).failures
    # THEN the line is told, and its words are right for all of them
    assert [(f.code, f.frame and f.frame.text) for f in found] == [("stale-input", given)]
    runner = _mended(text, given, found[0].fix, tmp_path / "mended" / "program.py")["Runner"]()  # type: ignore[operator]
    for number, each in enumerate(((2, 3), (4, 6), (4, 3))):
        x = torch.full(each, 2.0 + number, device=names["device"])
        assert torch.equal(runner.run(x), x.sum(1)), found[0].fix
