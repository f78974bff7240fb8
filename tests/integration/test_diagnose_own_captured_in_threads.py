"""Programs of which a thread of their own captures: what its capture holds is looked at as in any other."""

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
import queue, threading
from concurrent.futures import ThreadPoolExecutor
lock = threading.Lock()
class Worker(threading.Thread):
    def __init__(self, net):
        super().__init__(daemon=True)
        self.net, self.jobs, self.done, self.scale = net, queue.Queue(), [], 1.0
    def capture(self):
        self.x = torch.zeros(4, 8, device=device)
        self.bias = torch.zeros(3, device=device)
        with torch.no_grad():
            self.net(self.x)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.out = self.net(self.x) * self.scale + self.bias
    def run(self):
        with lock:
            self.capture()
        while (x := self.jobs.get()) is not None:
            self.answer(x)
    def answer(self, x):
        LINES
        self.graph.replay()
        self.done.append(self.out.clone())
def net():
    torch.manual_seed(0)
    return nn.Linear(8, 3).to(device)
rows = [torch.full((4, 8), float(i), device=device) for i in range(4)]
def one():
    worker = Worker(net())
    worker.start()
    for x in rows:
        worker.jobs.put(x)
    worker.jobs.put(None)
    worker.join()
    return worker.done
def two():
    workers = [Worker(net()), Worker(net())]
    for worker in workers:
        worker.start()
    for i, x in enumerate(rows):
        workers[i % 2].jobs.put(x)
    for worker in workers:
        worker.jobs.put(None)
        worker.join()
    return [w.done for w in workers]
def pool():
    worker = Worker(net())
    with ThreadPoolExecutor(1) as threads:
        threads.submit(worker.capture).result()
        for x in rows:
            threads.submit(worker.answer, x).result()
    return worker.done
"""
WRONG = {
    "a number moves": ("self.x.copy_(x); self.scale = float(len(self.done))", "scalar-frozen", 1),
    "an input is exchanged": ("self.x = x", "stale-input", 0),
    "what it adds is exchanged": ("self.x.copy_(x); self.bias = self.bias + 1", "stale-input", 1),
}


def told(lines: str, program: str, tmp_path: Path) -> list[tuple[str, str]]:
    """What is told of such a program."""
    names = load(PRELUDE + PROGRAM.replace("LINES", lines.replace("; ", "\n        ")), tmp_path / "program.py")
    return [(f.code, f.frame.text if f.frame else "") for f in pgk.diagnose(names[program]).failures]


@pytest.mark.parametrize("program", ["one", "two", "pool"])
@pytest.mark.parametrize("title", WRONG)
def test_what_the_capture_of_a_thread_does_not_see_is_told(title: str, program: str, tmp_path: Path) -> None:
    # GIVEN a worker that captures in its thread WHEN its job moves what the graph has THEN that line is told
    lines, code, at = WRONG[title]
    assert (code, lines.split("; ")[at]) in told(lines, program, tmp_path)


@pytest.mark.parametrize("program", ["one", "two", "pool"])
def test_a_thread_that_captures_and_feeds_its_graph_is_right(program: str, tmp_path: Path) -> None:
    # GIVEN a worker whose jobs copy what they are given WHEN THEN nothing is told
    assert told("self.x.copy_(x)", program, tmp_path) == []
    assert told("self.x.copy_(x); self.bias.add_(1)", program, tmp_path) == []


RESULTS = """
from concurrent.futures import ThreadPoolExecutor
class Runner:
    def __init__(self):
        self.x, self.w = torch.zeros(4, 8, device=device), torch.randn(8, 3, device=device)
        self.x @ self.w
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.out = self.x @ self.w
    def answer(self, x):
        self.x.copy_(x)
        self.graph.replay()
        return RESULT
def main():
    runner, found = Runner(), []
    with ThreadPoolExecutor(1) as threads:
        for i in range(4):
            found.append(threads.submit(runner.answer, torch.full((4, 8), float(i), device=device)).result())
    return [each.sum() for each in found]
"""


def test_results_that_the_waiting_thread_keeps_are_told(tmp_path: Path) -> None:
    # GIVEN a program whose pool of threads replays, and whose own thread keeps what comes back as it is
    names = load(PRELUDE + RESULTS.replace("RESULT", "self.out"), tmp_path / "program.py")
    # WHEN THEN the line that keeps it is told
    (found,) = pgk.diagnose(names["main"]).failures
    assert found.frame is not None
    assert found.code == "output-alias"
    assert found.frame.text.startswith("found.append(threads.submit(")
    # GIVEN copies WHEN THEN nothing is
    names = load(PRELUDE + RESULTS.replace("RESULT", "self.out.clone()"), tmp_path / "right.py")
    assert not pgk.diagnose(names["main"]).failures
