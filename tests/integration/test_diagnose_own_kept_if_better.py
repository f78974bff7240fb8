"""Results of a graph that some rounds of a loop keep, and others leave: the best loss, or that of one step."""

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
LOOP = """
class Step:
    def __init__(self, net):
        self.net, self.x = net, torch.zeros(4, 3, device=device)
        self.net(self.x)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.loss = self.net(self.x).pow(2).mean()
    def __call__(self, x):
        self.x.copy_(x)
        self.graph.replay()
        return self.loss
def batches():
    torch.manual_seed(0)
    return [torch.randn(4, 3).to(device) for _ in range(6)]
class Meter:
    def __init__(self):
        self.best, self.last, self.low = None, None, 0.0
    def update(self, loss):
        METER
class Loop:
    def __init__(self):
        self.step, self.best, self.low = Step(nn.Linear(3, 1).to(device)), None, 1e9
        self.log, self.meter = {}, Meter()
    @torch.no_grad()
    def fit(self):
        best, low = None, 1e9
        for i, x in enumerate(batches()):
            loss = self.step(x)
            KEEP
            self.meter.update(loss)
        return END
def main():
    torch.manual_seed(1)
    return Loop().fit()
"""
KEPT = {
    "best = loss if best is None or loss < best else best": (
        "best = loss.clone() if best is None or loss < best else best"
    ),
    "best = loss if best is None else min(best, loss, key=float)": (
        "best = loss.clone() if best is None else min(best, loss.clone(), key=float)"
    ),
    "self.best = loss if self.best is None or loss < self.best else self.best": (
        "self.best = loss.clone() if self.best is None or loss < self.best else self.best"
    ),
    "if float(loss) < low:\n                low, best = float(loss), loss": "low, best = (float(loss), loss.clone())",
    "if float(loss) < self.low:\n                self.low = float(loss)\n                self.best = loss": (
        "self.best = loss.clone()"
    ),
    "if float(loss) < low:\n                low = float(loss)\n                self.best = {'loss': loss, 'at': i}": (
        "self.best = {'loss': loss.clone(), 'at': i}"
    ),
    "self.best = loss if self.best is None else self.best + loss": (
        "self.best = loss.clone() if self.best is None else self.best + loss"
    ),
    "if best is None:\n                best = loss\n            else:\n                best += loss": (
        "best = loss.clone()"
    ),
    "self.log = {**self.log, i: loss}\n            best = sum(self.log.values())": (
        "self.log = {**self.log, i: loss.clone()}"
    ),
    "if i == 2:\n                self.best = loss": "self.best = loss.clone()",
}
METERS = {
    "if float(loss) > self.low:\n            self.low, self.best = (float(loss), loss)": "loss.clone())",
    "self.best = loss if self.best is None or loss < self.best else self.best": "loss.clone() if ",
    "self.low += float(loss - self.last) if self.last is not None else 0\n        self.last = loss": "loss.clone()",
    "if self.best is None:\n            self.best = loss\n        else:\n            self.best += loss": "loss.clone()",
}
RIGHT_METERS = (
    "pass",
    "self.last = loss\n        self.low += float(self.last)",
    "if float(loss) > 0:\n            self.last = loss\n            self.low += float(self.last)",
    "if self.last is not loss:\n            self.last = loss",
)
RIGHT = {
    "best = loss if i % 2 else None\n            if best is not None:\n                low += float(best)": "low",
    "if i % 2:\n                self.shown = loss\n                low += float(self.shown)": "low",
    "best = loss.clone() if best is None or loss < best else best": "float(best)",
    "if float(loss) < low:\n                low, best = float(loss), loss.clone()": "float(best)",
    "self.best = loss": "float(self.best)",
    "if self.low is not None:\n                self.best = loss": "float(self.best)",
}


def told(keep: str, end: str, file: Path, meter: str = "pass") -> list[tuple[str, str]]:
    """What is told of the loop that keeps so, and the line that is to come there."""
    names = load(PRELUDE + LOOP.replace("KEEP", keep).replace("END", end).replace("METER", meter), file)
    return [(f.code, f.fix.partition("\nafter   ")[2]) for f in pgk.diagnose(names["main"]).failures]


@pytest.mark.parametrize("keep", KEPT)
def test_a_result_that_some_rounds_keep_is_told_with_its_copy(keep: str, tmp_path: Path) -> None:
    # GIVEN a loop that keeps a graph's result in some rounds WHEN it is asked THEN the line is told, with a copy
    name = "self.best" if "self.best" in keep else "best"
    end = f"float({name}['loss'])" if "{'loss'" in keep else f"float({name})"
    assert told(keep, end, tmp_path / "program.py") == [("output-alias", KEPT[keep])]
    # AND with that nothing is
    line = (
        KEPT[keep].replace(".clone()", "").replace("low, best = (float(loss), loss)", "low, best = float(loss), loss")
    )
    assert told(keep.replace(line, KEPT[keep]), end, tmp_path / "mended.py") == []


@pytest.mark.parametrize("keep", RIGHT)
def test_what_each_round_gives_or_copies_or_reads_there_alone_is_right(keep: str, tmp_path: Path) -> None:
    # GIVEN a loop that keeps no result over a replay WHEN it is asked THEN nothing is told
    assert told(keep, RIGHT[keep], tmp_path / "program.py") == []


@pytest.mark.parametrize("meter", METERS)
def test_so_is_a_result_that_a_method_of_another_object_keeps(meter: str, tmp_path: Path) -> None:
    # GIVEN an object that is told each result, and keeps one over further replays
    end = "float(self.meter.best or 0)"
    # WHEN it is asked THEN the line of its method is told
    ((code, line),) = told("pass", end, tmp_path / "program.py", meter)
    assert code == "output-alias"
    assert METERS[meter] in line
    # AND with the line that is told nothing is
    mended = meter.replace(line.replace(".clone()", ""), line)
    assert mended != meter
    assert told("pass", end, tmp_path / "mended.py", mended) == []


@pytest.mark.parametrize("meter", RIGHT_METERS)
def test_an_object_that_reads_what_it_was_told_last_is_right(meter: str, tmp_path: Path) -> None:
    # GIVEN an object that keeps the latest result, and reads that WHEN it is asked THEN nothing is told
    assert told("pass", "self.meter.low", tmp_path / "program.py", meter) == []
