"""What lines around a capture do that no replay reads: counters of what is called behind it, gradients of warm-ups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
ENVIRONMENT = """
class Env:
    def __init__(self):
        self.state, self.t = torch.zeros(4, device=device), 0
        self.rate = torch.ones(4, device=device)
        self.hooks = [HOOKS]
    def step(self):
        self.state.add_(self.rate)
        for hook in self.hooks:
            hook(self)
        return self.state * 2
    def after_step(self, out):
        self.t += 1
        if self.t % 3 == 0:
            self.state.zero_()
        return out
def f():
    env = Env()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        out = env.step()
    env.state.zero_()
    env.t = 0
    log = []
    for _ in range(7):
        graph.replay()
        log.append(env.after_step(out).clone())
    return log
"""


SCALED = """
def scaled(env):
    env.state.mul_(1 + env.t)
"""


def lines(function: object, *args: object) -> list[tuple[str, str]]:
    """What is told of a function: the class and the line."""
    found = pgk.diagnose(function, *args).failures
    return [(f.code, f.frame.text if f.frame else "") for f in found]


def test_a_counter_that_is_read_behind_replays_alone_is_no_number_of_the_graph(tmp_path: Path) -> None:
    # GIVEN an environment whose counter is reset behind the capture, and read by what is called behind each replay
    names = load(PRELUDE + ENVIRONMENT.replace("HOOKS", ""), tmp_path / "program.py")
    # WHEN diagnosed THEN it is no number that the graph has
    assert lines(names["f"]) == []


@pytest.mark.sweep
def test_a_counter_that_a_hook_may_read_is_told(tmp_path: Path) -> None:
    # GIVEN the same with a function in a list that the captured step calls, which reads the counter
    names = load(PRELUDE + SCALED + ENVIRONMENT.replace("HOOKS", "scaled"), tmp_path / "program.py")
    # WHEN diagnosed THEN the line that sets it is told
    assert ("scalar-frozen", "env.t = 0") in lines(names["f"])


TRAINING = """
model = nn.Linear(4, 2).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
def step(x):
    loss = model(x).square().mean()
    loss.backward()
    return loss
def main():
    x = torch.randn(8, 4, device=device)
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(3):
            opt.zero_grad(set_to_none=True)
            step(x)
    cuda.current_stream().wait_stream(side)
    graph = cuda.CUDAGraph()
    opt.zero_grad(set_to_none=True)
    CAPTURE
    for _ in range(5):
        AHEAD
        graph.replay()
        opt.step()
args = (torch.randn(8, 4, device=device),)
"""
CAPTURED = "with cuda.graph(graph):\n        loss = step(x)"
NULLS = "opt.zero_grad(set_to_none=True)"


@pytest.mark.parametrize(
    ("capture", "ahead", "count"),
    [(CAPTURED, "x.normal_()", 0), (CAPTURED, NULLS, 1), ("pass", "step(x)", 2)],
    ids=["warm-up", "replays", "eager"],
)
def test_gradients_that_a_warm_up_sets_to_none_are_those_of_before(
    capture: str, ahead: str, count: int, tmp_path: Path
) -> None:
    # GIVEN a step, and a program that sets gradients to None in the warm-up ahead of its capture, or around replays
    names = load(PRELUDE + TRAINING.replace("CAPTURE", capture).replace("AHEAD", ahead), tmp_path / "program.py")
    # WHEN the step alone is diagnosed THEN only what no capture comes behind, or what a replay does, is told
    told = [line for code, line in lines(names["step"], *names["args"]) if code == "gradients-rebound"]
    assert told == [NULLS] * count


PRETRAINER = """
class Trainer:
    def __init__(self):
        self.model, self.micro = nn.Linear(4, 2).to(device), 0
        self.x = torch.zeros(8, 4, device=device)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=0.1, capturable=True)
    def step(self):
        loss = self.model(self.x).square().mean()
        loss.backward()
        self.micro += 1
        if self.micro % 3 == 0:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, error_if_nonfinite=CHECKS)
            self.opt.step()
            self.opt.zero_grad(set_to_none=False)
        return loss.detach()
    def set_lr(self, rate):
        for group in self.opt.param_groups:
            group["lr"] = rate
def f():
    trainer = Trainer()
    for n in range(3):
        trainer.set_lr(0.1)
        trainer.step()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        loss = trainer.step()
    out = []
    for n in range(6):
        trainer.x.normal_()
        BETWEEN
        graph.replay()
        out.append(loss.item())
    return out
"""


def pretrainer(checks: str, between: str, tmp_path: Path) -> dict[str, Any]:
    """The names of a program with a trainer that steps its optimizer each third time."""
    return load(PRELUDE + PRETRAINER.replace("CHECKS", checks).replace("BETWEEN", between), tmp_path / "program.py")


METER = """
class Meter:
    def __init__(self):
        self.y, self.n, self.total = torch.zeros(4, device=device), 0, 0.0
    def step(self):
        self.y.add_(1)
        self.n += 1
        if self.n % 3 == 0:
            self.y.mul_(0.5)
            self.total = self.y.sum().item()
def f():
    meter = Meter()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        meter.step()
    for _ in range(6):
        graph.replay()
    return meter.y.cpu()
"""


def test_a_wait_in_a_branch_that_the_capture_did_not_take_is_told(tmp_path: Path) -> None:
    # GIVEN a meter whose capture does not come to the line that waits WHEN diagnosed THEN that line is told as well
    names = load(PRELUDE + METER, tmp_path / "program.py")
    assert ("sync-item", "self.total = self.y.sum().item()") in lines(names["f"])


@pytest.mark.sweep
@pytest.mark.parametrize("checks", ["True", "False"])
def test_what_waits_in_a_branch_that_the_capture_did_not_take_is_told(checks: str, tmp_path: Path) -> None:
    # GIVEN a trainer whose capture does not come to its clipping, with a check of the host's, and without
    names = pretrainer(checks, "pass", tmp_path)
    # WHEN the program that captures is diagnosed THEN the check is told, beside what its branch is told
    codes = {code for code, _ in lines(names["f"])}
    assert "branch-frozen" in codes
    assert ("clip-check" in codes) == (checks == "True")


def test_a_rate_that_another_method_sets_between_replays_is_told_of_the_step_alone(tmp_path: Path) -> None:
    # GIVEN a trainer whose rate its loop of replays sets by a method WHEN the step alone is diagnosed
    names = pretrainer("False", "trainer.set_lr(0.1 / (n + 1))", tmp_path)
    # THEN the line of that method is told
    assert ("learning-rate-frozen", 'group["lr"] = rate') in lines(names["Trainer"]().step)


@pytest.mark.sweep
def test_a_rate_that_only_the_warm_up_sets_is_a_note(tmp_path: Path) -> None:
    # GIVEN the same where only the loop ahead of the capture sets it WHEN the step alone is diagnosed
    found = pgk.diagnose(pretrainer("False", "pass", tmp_path)["Trainer"]().step)
    # THEN it is no problem, and a note says what is one
    assert all(f.code != "learning-rate-frozen" for f in found.failures)
    assert any('`group["lr"].fill_(rate)`' in note.replace("'", '"') for note in found.notes)
