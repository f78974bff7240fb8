"""Rows behind a shorter input, of which only larger numbers show, or which a variable of its own is a part of."""

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
RUNNER = """
class Runner:
    def __init__(self):
        torch.manual_seed(0)
        self.w, self.x = torch.randn(6, 6, device=device), torch.zeros(8, 6, device=device)
        self.run()
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.out = self.run()
    def run(self):
        h = torch.tanh(self.x @ self.w)
        return torch.cat([h, h.REDUCED])
    def execute(self, x):
        n = x.size(0)
        PART
        self.graph.replay()
        return self.out[RESULT].clone()
execute = Runner().execute
args = (torch.randn(5, 6, device=device),)
"""
PARTS = ["rows = self.x.narrow(0, 0, n)\n        rows.copy_(x)", "rows = self.x[:n]\n        rows.copy_(x)"]


@pytest.mark.parametrize("result", ["-1", ":n"])
@pytest.mark.parametrize("reduced", ["amax(0, keepdim=True)", "sum(0, keepdim=True)"])
@pytest.mark.parametrize("part", [*PARTS, "self.x[:n].copy_(x)"])
def test_a_part_that_is_filled_is_told_where_the_result_depends_on_the_others(
    part: str, reduced: str, result: str, tmp_path: Path
) -> None:
    # GIVEN a runner that fills the first rows, by a variable or not, and gives back what goes over all rows, or the
    # first ones
    text = RUNNER.replace("PART", part).replace("REDUCED", reduced).replace("RESULT", result)
    names = load(PRELUDE + text, tmp_path / "program.py")
    # WHEN diagnosed
    found = pgk.diagnose(names["execute"], *names["args"]).failures
    # THEN the line that fills is told, also of a maximum, and only where the other rows are in the result
    line = part.rpartition("\n")[2].strip()
    assert [(f.code, f.frame.text if f.frame else "") for f in found] == [("size-frozen", line)] * (result == "-1")
    assert all("self.x[n:].zero_(), as it was made" in f.fix for f in found)


ROWS = """
class Encoder:
    def __init__(self):
        torch.manual_seed(0)
        self.emb = nn.Embedding(20, 6).to(device)
        self.ids = torch.zeros(4, 8, dtype=torch.long, device=device)
        self.mask = torch.zeros(4, 8, dtype=torch.bool, device=device)
        with torch.no_grad():
            self.run()
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.run()
    def run(self):
        m = self.mask[..., None].float()
        return (self.emb(self.ids) * m).sum(1) / m.sum(1).clamp(min=1)
    def encode(self, texts):
        CLEARS
        for i, text in enumerate(texts):
            self.ids[i, : len(text)] = torch.tensor(text, device=device)
            self.mask[i, : len(text)] = True
        self.graph.replay()
        return self.out[: len(texts)].clone()
def main():
    encoder = Encoder()
    texts = [[1, 2, 3], [4] * 7, [5, 6]], [[1, 2], [3]], [[7] * 5, [1], [2], [3] * 4], [[9], [8]]
    return [encoder.encode(each) for each in texts]
"""


def test_rows_that_a_loop_fills_are_cleared_ahead_of_it(tmp_path: Path) -> None:
    # GIVEN an encoder that fills a row for each text, where a longer one has been
    names = load(PRELUDE + ROWS.replace("CLEARS", "pass"), tmp_path / "program.py")
    # WHEN THEN the rest is cleared ahead of the loop: in it, the rows before would go
    fixes = [f.fix for f in pgk.diagnose(names["main"]).failures]
    mask = next(fix for fix in fixes if "True" in fix)
    assert "`for i, text in enumerate(texts):`, self.mask.zero_(); this line as it is" in mask
    # GIVEN one that is so WHEN THEN nothing is told
    names = load(PRELUDE + ROWS.replace("CLEARS", "self.mask.zero_()"), tmp_path / "right.py")
    assert not pgk.diagnose(names["main"]).failures


BUCKETS = """
class Bucket:
    def __init__(self, n):
        self.x, self.graph = torch.zeros(n, 6, device=device), None
class Service:
    def __init__(self):
        self.net, self.scaled = nn.Linear(6, 3).to(device), True
        self.buckets = {n: Bucket(n) for n in (2, 4)}
        for each in self.buckets.values():
            self.capture(each)
    def run(self, x):
        return self.net(x) * 2 if self.scaled else self.net(x)
    def capture(self, b):
        with torch.no_grad():
            self.run(b.x)
            b.graph = cuda.CUDAGraph()
            with cuda.graph(b.graph):
                b.out = self.run(b.x)
    def step(self, x, scaled):
        self.scaled = scaled
        b = self.buckets[len(x)]
        b.x.copy_(x)
        b.graph.replay()
        return b.out.clone()
def main():
    service = Service()
    return [service.step(torch.ones(n, 6, device=device), n == 4 or i < 3) for i, n in enumerate((2, 4, 2, 2, 4, 2))]
"""


def test_a_graph_for_each_value_is_one_of_each_bucket(tmp_path: Path) -> None:
    # GIVEN buckets that have a graph each, and a setting that decides what is captured WHEN diagnosed
    (found,) = pgk.diagnose(load(PRELUDE + BUCKETS, tmp_path / "program.py")["main"]).failures
    # THEN the graphs for each value are those of a bucket, as one of another would be replayed
    assert "if self.scaled not in b.graphs:` a new capture goes to `b.graphs[self.scaled]`" in found.fix, found.fix


def test_rows_whose_trial_does_not_come_to_its_end_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN an encoder that leaves what a longer text had, and no time to try that WHEN diagnosed
    monkeypatch.setattr("paramgraph_kit.doctor.observe.tried_tails._made_with", lambda *_, **__: None)
    found = pgk.diagnose(load(PRELUDE + ROWS.replace("CLEARS", "pass"), tmp_path / "program.py")["main"])
    # THEN what is not known is said
    assert not found.failures
    assert "whether results depend on what is behind self.mask[i, :len(text)]" in str(found).replace("\n         ", " ")


def test_a_part_is_filled_with_what_the_whole_had_last_ahead_of_inputs(tmp_path: Path) -> None:
    # GIVEN a runner whose buffer is of ones for its warm-up, and of zeros since
    text = RUNNER.replace("PART", PARTS[1]).replace("REDUCED", "sum(0, keepdim=True)").replace("RESULT", "-1")
    text = text.replace("torch.zeros(8, 6, device=device)", "torch.ones(8, 6, device=device)")
    assert "torch.ones(8" in text
    text = text.replace("    def run(self):", "        self.x.zero_()\n    def run(self):", 1)
    names = load(PRELUDE + text, tmp_path / "program.py")
    # WHEN diagnosed
    found = pgk.diagnose(names["execute"], *names["args"]).failures
    # THEN the words have the zeros
    assert ["self.x[n:].zero_()" in f.fix for f in found] == [True]
