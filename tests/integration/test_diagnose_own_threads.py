"""Programs whose own thread replays their graph: what streams wait for around that, and what it keeps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAM = """
import queue, threading
from concurrent.futures import ThreadPoolExecutor
import torch
from torch import nn
import paramgraph_kit as pgk
cuda, device = pgk.cuda, pgk.device()

class Server:
    def __init__(self):
        torch.manual_seed(0)
        self.net = nn.Linear(4, 4).to(device)
        self.x = torch.zeros(2, 4, device=device)
        with torch.no_grad():
            self.net(self.x)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.y = self.net(self.x)
        self.jobs, self.done, self.out = queue.Queue(), [], cuda.Stream()
        self.event = cuda.Event()

    def loop(self):
        while (x := self.jobs.get()) is not None:
            self.handle(x)

    def handle(self, x):
        self.x.copy_(x)
        self.graph.replay()
        KEEP

    def sent(self, y):
        host = torch.empty(2, 4).pin_memory()
        self.out.wait_stream(cuda.current_stream())
        with cuda.stream(self.out):
            host.copy_(y, non_blocking=True)
            self.event.record(self.out)
        return host

def main():
    server = Server()
    thread = threading.Thread(target=server.loop)
    thread.start()
    for i in range(4):
        server.jobs.put(torch.full((2, 4), float(i), device=device))
    server.jobs.put(None)
    thread.join()
    cuda.synchronize()
    return [each.sum() for each in server.done]

def by_pool():
    server = Server()
    with ThreadPoolExecutor(1) as pool:
        for i in range(4):
            pool.submit(server.handle, torch.full((2, 4), float(i), device=device)).result()
    cuda.synchronize()
    return [each.sum() for each in server.done]
"""
FORMS = {
    "nothing waits": ("self.done.append(self.sent(self.y))", ("work-elsewhere", "self.graph.replay()")),
    "it is waited for": (
        "self.done.append(self.sent(self.y)); cuda.current_stream().wait_stream(self.out)",
        None,
    ),
    "its event is waited for": ("self.done.append(self.sent(self.y)); self.event.synchronize()", None),
    "it is kept": ("self.done.append(self.y)", ("output-alias", "self.done.append(self.y)")),
    "a copy is kept": ("self.done.append(self.y.clone())", None),
}


@pytest.mark.parametrize("program", ["main", "by_pool"])
@pytest.mark.parametrize("form", FORMS)
def test_what_goes_wrong_around_the_replays_of_a_thread_is_told(form: str, program: str, tmp_path: Path) -> None:
    # GIVEN a server whose thread replays
    keep, wrong = FORMS[form]
    names = load(PROGRAM.replace("KEEP", keep), tmp_path / "program.py")
    # WHEN it is diagnosed
    found = pgk.diagnose(names[program])
    # THEN what is wrong around these replays is told, and nothing else
    assert [(f.code, f.frame.text) for f in found.failures if f.frame is not None] == [wrong] * bool(wrong), found
