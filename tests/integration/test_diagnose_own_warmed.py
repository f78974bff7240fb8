"""Programs whose first call is a step of its own, on a side stream, and whose second one captures."""

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
TRAINER = """
class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Linear(5, 1).to(device)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=RATE)
        self.sched = torch.optim.lr_scheduler.StepLR(self.opt, step_size=2, gamma=0.5)
        self.graph, self.calls, self.losses = None, 0, []
        self.x = torch.zeros(8, 5, device=device)
    def update(self):
        self.opt.zero_grad(set_to_none=True)
        loss = self.model(self.x).square().mean()
        loss.backward()
        self.opt.step()
        INSIDE
        return loss
    def step(self, x):
        self.x.copy_(x)
        self.calls += 1
        if self.calls <= 1:
            s = cuda.Stream()
            s.wait_stream(cuda.current_stream())
            with cuda.stream(s):
                loss = self.update()
            cuda.current_stream().wait_stream(s)
            AHEAD
            self.sched.step()
            return loss.detach().clone()
        if self.graph is None:
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.loss = self.update()
        self.graph.replay()
        self.sched.step()
        return self.loss.detach().clone()
trainer = Trainer()
args = (torch.randn(8, 5, device=device),)
"""
READS = "self.losses.append(loss.item())"
IN_TENSOR = "torch.tensor(0.01, device=device), capturable=True"
COUNTING = """
class Scaled:
    def __init__(self):
        torch.manual_seed(0)
        self.w = torch.zeros(4, device=device)
        self.good, self.updates, self.graph = 0, 0, None
        self.x = torch.zeros(4, device=device)
    def body(self):
        self.w.add_(self.x * (2.0 if self.good % 3 == 0 else 1.0))
        return self.w * 1.0
    def step(self, x):
        self.x.copy_(x)
        if self.graph is None and self.good == 0:
            y = self.body()
            self.good += 1
            return y
        if self.graph is None:
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.y = self.body()
        self.graph.replay()
        self.good += 2
        return self.y.clone()
scaled = Scaled()
args = (torch.randn(4, device=device),)
"""
GRADIENTS = """
class Averaged:
    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Linear(4, 3).to(device)
        self.params = [*self.model.parameters()]
        self.opt = torch.optim.SGD(self.params, lr=0.05)
        self.x, self.graph = torch.zeros(6, 4, device=device), None
    def body(self):
        self.opt.zero_grad(set_to_none=False)
        loss = self.model(self.x).square().mean()
        loss.backward()
        return loss.detach()
    def step(self, x):
        self.x.copy_(x)
        if self.graph is None:
            s = cuda.Stream()
            s.wait_stream(cuda.current_stream())
            with cuda.stream(s):
                self.model(self.x).square().mean().backward()
            cuda.current_stream().wait_stream(s)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.loss = self.body()
        self.graph.replay()
        if all(torch.isfinite(p.grad).all() for p in self.params):
            self.opt.step()
        return self.loss.clone()
averaged = Averaged()
args = (torch.randn(6, 4, device=device),)
"""
BLOCK = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.calls = nn.Linear(6, 6), 0
    def forward(self, x):
        self.calls += 1
        return x * 2.0 if self.calls % 3 == 0 else x + self.up(x)
block, cache = Block().to(device), {}
def step(x):
    if "block" not in cache:
        cache["block"] = cuda.make_graphed_callables(block, (torch.randn_like(x),))
    return cache["block"](x).clone()
args = (torch.randn(5, 6, device=device),)
"""


def _program(text: str, tmp_path: Path, **parts: str) -> dict[str, object]:
    for name, part in parts.items():
        text = text.replace(name, part)
    return load(PRELUDE + text, tmp_path / "program.py")


def test_a_capture_that_fails_in_the_second_call_is_looked_at_by_itself(tmp_path: Path) -> None:
    # GIVEN a trainer whose first call is a step without a graph, and whose capture fails in the second
    names = _program(TRAINER, tmp_path, RATE="0.01", INSIDE=READS, AHEAD="pass")
    # WHEN
    found = pgk.diagnose(names["trainer"].step, *names["args"], fix=True)  # type: ignore[attr-defined, misc]
    # THEN what it was to hold has a fix that was tried, and its rate is told, too
    assert {"optimizer-not-capturable", "sync-item", "learning-rate-frozen"} <= {*found.codes}
    assert found.fix is not None
    assert "def after_update(self, loss):" in found.fix.diff, found
    assert found.fix.usage == (
        "call self.after_update(loss) after each launch; line 33 calls it in a step without a graph: the same there"
    )
    assert "moves there once the other lines are mended" not in str(found)
    # AND nothing of all that has stayed
    trainer = names["trainer"]
    assert (trainer.calls, trainer.graph, trainer.losses) == (0, None, [])  # type: ignore[attr-defined]


def test_what_the_function_that_captures_does_ahead_of_that_is_no_captures(tmp_path: Path) -> None:
    # GIVEN one with the rate in a tensor, that reads its loss in the call which warms up, and in what is captured
    names = _program(TRAINER, tmp_path, RATE=IN_TENSOR, INSIDE=READS, AHEAD="print(loss.item())")
    # WHEN
    found = pgk.diagnose(names["trainer"].step, *names["args"])  # type: ignore[attr-defined, misc]
    # THEN only what is captured is told
    assert {f.frame.text for f in found if f.frame is not None} == {READS}, found
    assert "learning-rate-frozen" not in found.codes


def test_a_number_that_the_call_ahead_of_a_capture_moves_is_told_where_replays_come_behind(tmp_path: Path) -> None:
    # GIVEN a number that is counted in the call which warms up and returns, and behind each replay
    names = _program(COUNTING, tmp_path)
    # WHEN
    found = pgk.diagnose(names["scaled"].step, *names["args"])  # type: ignore[attr-defined, misc]
    # THEN only the second line is told
    assert {f.frame.text for f in found if f.frame is not None} == {"self.good += 2"}, found


def test_gradients_of_before_that_a_capture_writes_are_there_in_the_next_call(tmp_path: Path) -> None:
    # GIVEN gradients that a warm-up makes, that the graph writes over, and that Python asks for behind each replay
    names = _program(GRADIENTS, tmp_path)
    # WHEN
    found = pgk.diagnose(names["averaged"].step, *names["args"])  # type: ignore[attr-defined, misc]
    # THEN nothing is told, and none is left
    assert found.failures == ()
    assert all(p.grad is None for p in names["averaged"].params)  # type: ignore[attr-defined]


def test_the_one_diff_that_is_shown_is_the_fix(tmp_path: Path) -> None:
    # GIVEN a block that torch graphs in the first call
    names = _program(BLOCK, tmp_path)
    # WHEN
    found = pgk.diagnose(names["step"], *names["args"], fix=True)  # type: ignore[misc]
    # THEN its diff is shown once, and can be applied
    assert found.fix is not None
    assert str(found).count(found.fix.diff) == 1
    with found.fix.applied():
        pass
