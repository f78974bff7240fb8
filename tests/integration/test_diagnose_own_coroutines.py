"""Results that coroutines give: their copy stands where a coroutine returns, or behind an await."""

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
import asyncio
net = nn.Linear(4, 4).to(device).requires_grad_(False)
class Runner:
    def __init__(self):
        self.x = torch.zeros(2, 4, device=device)
        net(self.x)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.out = net(self.x).tanh()
    async def run(self, x):
        self.x.copy_(x)
        self.graph.replay()
        await asyncio.sleep(0)
        return RESULT
runner = Runner()
async def one(b):
    y = await runner.run(b)
    return y
async def serve():
    got, batches = [], [torch.randn(2, 4).to(device) for _ in range(3)]
    BODY
    return got
def main():
    loop = asyncio.new_event_loop()
    got = loop.run_until_complete(serve())
    loop.close()
    return torch.stack(got).cpu()
"""
LAST = ("return self.out", "return self.out.clone()")
BODIES = {
    "for b in batches: got.append(await one(b))": ("got.append(await one(b))", "got.append((await one(b)).clone())"),
    "got = await asyncio.gather(*(runner.run(b) for b in batches))": LAST,
    "got = await asyncio.gather(*map(runner.run, batches))": LAST,
    "got = [await one(b) for b in batches]": LAST,
    "tasks = [asyncio.ensure_future(one(b)) for b in batches]; got = [await t for t in tasks]": LAST,
}


@pytest.mark.parametrize(
    "body", [each if number == 1 else pytest.param(each, marks=pytest.mark.sweep) for number, each in enumerate(BODIES)]
)
def test_a_copy_is_made_of_what_a_coroutine_gives_and_not_of_itself(body: str, tmp_path: Path) -> None:
    # GIVEN results of coroutines that are kept WHEN diagnosed
    names = load(PRELUDE + PROGRAM.replace("RESULT", "self.out").replace("BODY", body), tmp_path / "program.py")
    (told,) = pgk.diagnose(names["main"]).failures
    # THEN the copy stands where the coroutine gives it, or behind the await
    assert told.code == "output-alias"
    assert told.fix == "before  {}\nafter   {}".format(*BODIES[body])


FUTURES = """
from concurrent.futures import Future
net = nn.Linear(4, 4).to(device).requires_grad_(False)
x = torch.zeros(2, 4, device=device)
net(x)
class Worker:
    def __init__(self):
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.y = net(x).tanh()
    def serve(self, batches):
        futures = [Future() for _ in batches]
        for batch, future in zip(batches, futures):
            x.copy_(batch)
            self.graph.replay()
            future.set_result(self.y)
        return [future.result() for future in futures]
def main():
    worker, got = Worker(), []
    for _ in range(2):
        ADDED
    return torch.stack(got).cpu()
"""


@pytest.mark.sweep
@pytest.mark.parametrize("added", ["got += {}", "got.extend({})"])
def test_a_copy_is_made_of_each_of_several(added: str, tmp_path: Path) -> None:
    # GIVEN a method that gives a list of results, whose entries are added to another WHEN diagnosed
    served = "worker.serve([torch.randn(2, 4).to(device) for _ in range(2)])"
    names = load(PRELUDE + FUTURES.replace("ADDED", added.format(served)), tmp_path / "program.py")
    fixes = [f.fix for f in pgk.diagnose(names["main"]).failures if f.frame and f.frame.text == added.format(served)]
    # THEN each entry is copied, and no list is asked for a clone()
    assert fixes == [f"before  {added.format(served)}\nafter   {added.format(f'[y.clone() for y in {served}]')}"]


@pytest.mark.sweep
@pytest.mark.parametrize("body", BODIES)
def test_coroutines_that_give_copies_are_no_problem(body: str, tmp_path: Path) -> None:
    # GIVEN the same with the copy WHEN diagnosed THEN nothing is told
    names = load(PRELUDE + PROGRAM.replace("RESULT", "self.out.clone()").replace("BODY", body), tmp_path / "program.py")
    assert not pgk.diagnose(names["main"]).failures
