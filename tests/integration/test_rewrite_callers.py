"""Callers of what a program captures by itself take what its rewritten lines return now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paramgraph_kit as pgk
from tests.integration.rewritten import run

RUNNER = """
net = nn.Linear(4, 4).to(device)
class Runner:
    def __init__(self):
        self.graph, self.peak = None, 0.0
        self.static = torch.zeros(2, 4, device=device)
    def forward(self, x):
        y = net(x).tanh()
        top = y.abs().max()
        {told}
        return {result}
    def __call__(self, x):
        if self.graph is None:
            self.forward(self.static)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                {call}
        self.static.copy_(x)
        self.graph.replay()
        return self.out{read} + 1
    def plain(self, x):
        return self.forward(x)
f = Runner()
args = (torch.randn(2, 4, device=device),)
"""
PEAK = "self.peak = max(self.peak, top.item())"
CALLS = {
    "one value": (
        "y * 2",
        "self.out = self.forward(self.static)",
        "",
        "`self.out, self.top_out = self.forward(self.static)`",
    ),
    "two values": (
        "y * 2, y",
        "self.out, self.y = self.forward(self.static)",
        "",
        "`self.out, self.y, self.top_out = self.forward(self.static)`",
    ),
    "a tuple": (
        "y * 2, y",
        "self.out = self.forward(self.static)",
        "[0]",
        "`*self.out, self.top_out = self.forward(self.static)`",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_who_calls_what_returns_more_is_told_what_to_write(name: str, tmp_path: Path) -> None:
    # GIVEN a program that captures a method of its own, which reads a number for the host
    result, call, read, wanted = CALLS[name]
    names = run(RUNNER.format(told=PEAK, result=result, call=call, read=read), tmp_path)
    # WHEN it is rewritten, and returns what is read behind each launch
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    told = next((line for line in fix.verified if "whoever calls it" in line), "")
    # THEN each caller that takes a result is told the line with all of them, and a warm-up takes none
    assert wanted in told, fix
    assert told.partition("`results = ")[2].startswith("self.forward(x)`, `self.after_forward(*results)` and "), told
    # AND one that runs without a graph is told to run what goes behind each launch, too
    behind = "`after_forward` is given these behind each replay, and behind the call at line "
    assert behind in told, fix
    assert told.endswith(", too, which runs all of it without a graph"), fix
    assert told.count("self.forward(self.static)") == 1, fix


def test_who_calls_what_returns_the_same_is_told_nothing(tmp_path: Path) -> None:
    # GIVEN the same where what goes behind needs nothing of the method's WHEN it is rewritten
    names = run(RUNNER.format(told="self.peak += 1", result="y * 2", call=CALLS["one value"][1], read=""), tmp_path)
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN no caller is another one
    assert fix is None or "whoever calls it" not in str(fix), fix


@pytest.mark.parametrize("known", ["top", "top_out"])
def test_what_a_capture_gives_has_a_name_that_nothing_else_has(known: str, tmp_path: Path) -> None:
    # GIVEN a captured method that keeps a number by the name that it has there, or by the one that would be told
    kept = f"self.{known} = top.item()"
    names = run(RUNNER.format(told=kept, result="y * 2", call=CALLS["one value"][1], read=""), tmp_path)
    # WHEN what it keeps goes behind each launch
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    told = next((line for line in fix.verified if "whoever calls it" in line), "")
    # THEN the capture gives it to another name: behind a replay the kept one is no more what the graph writes
    assert f"`self.out, self.top_out{'_2' * (known == 'top_out')} = self.forward(self.static)`" in told, fix


ACTOR = """
class Actor:
    def __init__(self):
        self.obs, self.peak = torch.zeros(2, 4, device=device), 0.0
    def step(self):
        y = self.obs.tanh()
        top = y.abs().max()
        self.peak = max(self.peak, top.item())
        return y * 2
class Env:
    def __init__(self):
        self.state = torch.zeros(2, 4)
    def step(self, actions):
        return self.state + actions.cpu(), 0.0
class Worker(Actor):
    pass
def main():
    actor, env = KIND(), Env()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        actions = actor.step()
    for _ in range(3):
        graph.replay()
        obs, reward = env.step(actions)
        actor.obs.copy_(obs)
f, args = KIND().step, ()
"""


@pytest.mark.parametrize("kind", ["Actor", pytest.param("Worker", marks=pytest.mark.sweep)])
def test_a_method_of_another_class_that_has_the_same_name_is_no_caller(kind: str, tmp_path: Path) -> None:
    # GIVEN a captured method, and a class of another kind whose method is called so, too
    names = run(ACTOR.replace("KIND", kind), tmp_path)
    # WHEN what the first keeps goes behind each launch
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    told = next((line for line in fix.verified if "whoever calls it" in line), "")
    # THEN its own caller, whose class may have the method from another one, is told, and the other is not
    assert "`actions, top_out = actor.step()`" in told, fix
    assert "env.step" not in told, fix


WALK = """
import random
class Walk:
    def __init__(self):
        self.state, self.action = torch.ones(3, 4, device=device), torch.zeros(3, 4, device=device)
    def step(self):
        y = (self.state + self.action).tanh()
        y = torch.where(y > 0, torch.full_like(y, random.random()), y)
        self.state.copy_(y)
        return self.state, y.cpu()
def main():
    env = Walk()
    graph = cuda.CUDAGraph()
    BEFORE
    with cuda.graph(graph):
        obs, far = env.step()
    for k in range(4):
        ACTION
        graph.replay()
        kept = obs.clone()
f, args = Walk().step, ()
"""
ACTION = "env.action.copy_(obs * 0.5 + k)"


@pytest.mark.parametrize(
    ("before", "action", "wanted"),
    [
        ("", ACTION, "line 27 reads `obs` ahead of the first replay: give it a value before, `obs = env.state`"),
        pytest.param("obs = env.state", ACTION, "", marks=pytest.mark.sweep),
        pytest.param("", "env.action.fill_(k)", "", marks=pytest.mark.sweep),
    ],
)
def test_a_result_that_is_read_ahead_of_the_first_replay_gets_a_value(
    before: str, action: str, wanted: str, tmp_path: Path
) -> None:
    # GIVEN a captured step whose results come from behind each replay, and a loop that reads one of them first, or not
    names = run(WALK.replace("BEFORE", before or "pass").replace("ACTION", action), tmp_path)
    # WHEN it is rewritten
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    told = next((line for line in fix.verified if "whoever calls it" in line), "")
    # THEN the name that nothing has given a value by then is told with what it is of the object, and no other one
    assert "is what `after_step` returns" in told, fix
    assert wanted in told, fix
    assert wanted or "reads `" not in told, fix
