"""Pinned memory that a program with a graph of its own reads, or fills, through arrays of NumPy's made long before."""

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
import threading
class Scorer:
    def __init__(self):
        self.host, self.rows = torch.zeros(4, 3).pin_memory(), torch.zeros(4, 6).pin_memory()
        self.scores, self.batch = self.host.numpy(), self.rows.numpy()
        self.x, self.w = torch.zeros(4, 6, device=device), torch.randn(6, 3, device=device)
        self.x @ self.w
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.y = self.x @ self.w
    def read(self, table):
        return table[0].copy()
    def step(self, rows):
        self.batch[:] = rows
        self.x.copy_(self.rows, non_blocking=True)
        self.graph.replay()
        self.host.copy_(self.y, non_blocking=True)
        LINES
scorer, rows = Scorer(), [np.full((4, 6), i, dtype=np.float32) for i in range(3)]
def serve():
    scorer = Scorer()
    for each in rows:
        out = scorer.step(each)
        cuda.synchronize()
def in_thread():
    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()
"""
READS = {
    "a method of it": "return self.scores.argmax(axis=1).tolist()",
    "a function of numpy's": "return np.exp(self.scores)",
    "arithmetic": "return self.scores / 2",
    "a comparison": "return (self.scores > 0.5).all()",
    "an entry": "return float(self.scores[0, 1])",
    "a row's sum": "return [self.scores[i].sum() for i in range(4)]",
    "by another name": "scores = self.scores.T; best = scores.max()",
    "in a helper": "return self.read(self.scores)",
    "copied elsewhere": "kept = np.zeros((4, 3)); kept[:] = self.scores",
    "a number of it in text": "return f'{self.scores[0]}'",
}
RIGHT = {
    "waited for": "cuda.current_stream().synchronize(); return self.scores.argmax(axis=1).tolist()",
    "waited for in its line": "return (cuda.synchronize(), self.scores.argmax(axis=1).tolist())",
    "handed on": "return self.scores",
    "looked at": "return self.scores.reshape(-1)[:2], self.scores.shape, len(self.scores)",
    "kept": "done = []; done.append(self.scores[0])",
    "another array": "return self.batch.sum()",
    "a tensor again": "return torch.from_numpy(self.scores)",
}


def told(lines: str, function: str, tmp_path: Path) -> list[str]:
    """The lines that are told of a program with such lines behind its copy."""
    body = lines.replace("; ", "\n        ")
    names = load(PRELUDE + PROGRAM.replace("LINES", body), tmp_path / "program.py")
    call = (names["scorer"].step, names["rows"][1]) if function == "step" else (names[function],)
    found = pgk.diagnose(*call).failures
    assert {f.code for f in found} <= {"work-elsewhere"}, found
    return [f.frame.text if f.frame else "" for f in found]


@pytest.mark.parametrize("title", READS)
def test_a_line_that_reads_through_an_array_ahead_of_the_wait_is_told(title: str, tmp_path: Path) -> None:
    # GIVEN a step that reads pinned memory through an array of its constructor's WHEN nobody has waited
    found = told(READS[title], "step", tmp_path)
    # THEN the line is told, where it is read
    line = {"by another name": "best = scores.max()", "in a helper": "return table[0].copy()"}
    assert found == [line.get(title, READS[title].rpartition("; ")[2])]


@pytest.mark.parametrize("title", RIGHT)
def test_what_waits_and_what_is_only_handed_on_is_nothing(title: str, tmp_path: Path) -> None:
    # GIVEN a step that waits, or only hands the array on WHEN THEN nothing is told
    assert told(RIGHT[title], "step", tmp_path) == []


@pytest.mark.parametrize("function", ["serve", "in_thread"])
def test_the_same_in_a_loop_and_in_a_thread_of_its_own(function: str, tmp_path: Path) -> None:
    # GIVEN a loop around that step WHEN it reads too early THEN that line is told
    line = "return self.scores.argmax(axis=1)"
    assert told(line, function, tmp_path) == [line]
    # GIVEN one that waits WHEN THEN nothing is
    assert told("cuda.synchronize(); return self.scores.argmax(axis=1)", function, tmp_path) == []


def test_a_buffer_that_an_array_fills_while_it_is_copied_from_is_told(tmp_path: Path) -> None:
    # GIVEN a step that fills its pinned rows for the next call behind their copy WHEN THEN that line is told
    line = "self.batch[:] = 0"
    assert told(line, "step", tmp_path) == [line]
    # GIVEN a loop that waits for nothing, and fills them in the next round WHEN THEN that line is
    names = load(
        PRELUDE + PROGRAM.replace("LINES", "pass").replace("        cuda.synchronize()\n", ""), tmp_path / "loop.py"
    )
    assert [f.frame.text for f in pgk.diagnose(names["serve"]).failures if f.frame] == ["self.batch[:] = rows"]
    # GIVEN the step alone WHEN THEN it is told, too
    found = pgk.diagnose(names["scorer"].step, names["rows"][1])
    assert [f.frame.text for f in found.failures if f.frame] == ["self.batch[:] = rows"]
