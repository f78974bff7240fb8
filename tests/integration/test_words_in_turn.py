"""Words of several lines that are followed together: what counts, what is filled with it, and what a helper does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
WAVE = """
class Wave:
    def __init__(self):
        self.now, self.t = torch.ones(4, device=device), 0
    def advance(self):
        LINES
f = Wave().advance
args = ()
"""
COUNTED = """self.now.mul_(0.5)
        self.t += 1
        if self.t > 6:
            self.now[:2] = 0"""
ASKED_FIRST = """self.now.mul_(0.5)
        if self.t > 6:
            self.now[:2] = 0
        self.t += 1"""
BEGUN = """loss = self.now.mul(0.5).sum()
        if getattr(self, "ema", None) is None:
            self.ema = loss.detach()
        else:
            self.ema = 0.9 * self.ema + 0.1 * loss.detach()"""
NORM = """
class Norm:
    def __init__(self):
        self.mean, self.count = torch.zeros(4, device=device), 0
    def update(self, x):
        total = self.count + 3
        self.mean = self.mean + (x - self.mean) * 3 / total
        self.count = total
    def __call__(self, x):
        return x - self.mean
class Actor:
    def __init__(self):
        self.norm, self.obs = Norm(), torch.ones(4, device=device)
    def act(self):
        FIRST
        return self.norm(self.obs) * 2
f = Actor().act
args = ()
"""
ENDED = """
class Env:
    def __init__(self):
        self.state, self.done = torch.ones(8, device=device), torch.zeros(8, dtype=torch.bool, device=device)
        self.ended = 0
    def step(self):
        self.state.mul_(0.5)
        self.done.copy_(self.state > LIMIT)
        self.reset()
        return self.state
    def reset(self):
        ids = self.done.nonzero().flatten()
        if len(ids) > 0:
            self.state[ids] = 1.0
            self.ended += len(ids)
f = Env().step
args = ()
"""


def test_a_count_is_ahead_of_what_a_flag_is_filled_with(tmp_path: Path) -> None:
    # GIVEN a step that counts, and then asks for the count
    told = pgk.diagnose(run(WAVE.replace("LINES", COUNTED), tmp_path)["f"]).failures
    # WHEN THEN both lines go before the launch, in their order
    (count,) = (f for f in told if f.code == "host-counter")
    assert "belongs before each launch, ahead of `chosen_in.fill_(self.t > 6)`" in count.fix


def test_a_count_that_is_asked_for_first_stays_behind(tmp_path: Path) -> None:
    # GIVEN a step that asks for the count of the steps before
    told = pgk.diagnose(run(WAVE.replace("LINES", ASKED_FIRST), tmp_path)["f"]).failures
    # WHEN THEN the count goes behind the launch
    (count,) = (f for f in told if f.code == "host-counter")
    assert "after each launch do `self.t += 1`" in count.fix


def test_an_average_is_written_where_it_goes_on_and_begun_with_a_copy(tmp_path: Path) -> None:
    # GIVEN an average that a branch begins with the loss itself
    text = (
        WAVE.replace("LINES", BEGUN)
        .replace('getattr(self, "ema", None)', "self.ema")
        .replace(", 0\n", ", 0\n        self.ema = None\n")
    )
    (failure,) = pgk.diagnose(run(text, tmp_path)["f"]).failures
    # WHEN THEN the line that goes on writes in place, and none into what is not there yet
    assert "`self.ema.copy_(0.9 * self.ema + 0.1 * loss.detach())`" in failure.fix
    assert "`self.ema = loss.detach().clone()`" in failure.fix
    assert "self.ema.copy_(loss.detach())" not in failure.fix


def test_statistics_that_the_same_step_reads_are_updated_ahead_of_it(tmp_path: Path) -> None:
    # GIVEN a step that begins with an update of what it then normalizes with
    told = pgk.diagnose(run(NORM.replace("FIRST", "self.norm.update(self.obs)"), tmp_path)["f"]).failures
    # WHEN THEN the update goes ahead of the launch, and never behind it
    count = next(f for f in told if f.code == "host-counter")
    assert "`self.norm.update(self.obs)`, belongs before each launch: take it out of the step" in count.fix
    assert "`self.mean.copy_(self.mean + (x - self.mean) * 3 / total)`" in count.fix
    assert not any("belongs behind the launch: take it out" in f.fix for f in told)


@pytest.mark.parametrize("limit", ["0.0", pytest.param("2.0", marks=pytest.mark.sweep)])
def test_a_method_that_counts_what_it_finds_goes_behind_the_launch(limit: str, tmp_path: Path) -> None:
    # GIVEN a step that ends with it, of which some calls, or none, find something
    told = pgk.diagnose(run(ENDED.replace("LIMIT", limit), tmp_path)["f"]).failures
    # WHEN THEN the count is told, and all of its lines go together
    assert any(f.code == "host-counter" and "ended" in f.frame.text for f in told if f.frame)
    assert all("`self.reset()`, belongs behind the launch: take it out of the step" in f.fix for f in told)


RING = """
class Ring:
    def __init__(self):
        self.rows, self.x, self.at, self.full = torch.zeros(4, 3, device=device), torch.ones(3, device=device), 0, False
    def put(self):
        self.rows[self.at] = self.x * 2
        self.at = (self.at + 1) % 4
        if self.at == 0:
            self.full = True
f = Ring().put
args = ()
"""


def test_a_place_that_becomes_a_tensor_is_asked_for_behind_the_launch(tmp_path: Path) -> None:
    # GIVEN a ring whose place decides what only the host has
    told = pgk.diagnose(run(RING, tmp_path)["f"]).failures
    # WHEN THEN its branch is taken out, as a graph would wait for the place
    (count,) = (f for f in told if f.code == "host-counter" and f.frame and "% 4" in f.frame.text)
    assert "`self.at == 0`, is asked behind each launch: take it out of the step" in count.fix


CHAIN = """
pi, beta = nn.Linear(3, 2).to(device), 1.0
args = (torch.randn(6, 3, device=device), torch.randn(6, 2, device=device))
def f(x, y):
    global beta
    kl = (pi(x) - y).square().mean()
    loss = kl * 2
    loss.backward()
    CHAIN
    return loss.detach()
"""
FIVEFOLD = """if kl.item() > 0.02:
        beta *= 1.5
    elif kl.item() < 0.005:
        beta /= 1.5
    else:
        beta = max(beta, 0.1)"""


@pytest.mark.parametrize(
    "chain", [FIVEFOLD, pytest.param(FIVEFOLD.replace(".item()", "").replace("0.02", "90"), marks=pytest.mark.sweep)]
)
def test_branches_that_go_behind_the_launch_go_there_with_their_other_ways(chain: str, tmp_path: Path) -> None:
    # GIVEN a number of the host's that a value of the device makes larger, smaller, or leaves
    names = run(CHAIN.replace("CHAIN", chain), tmp_path)
    told = pgk.diagnose(names["f"], *names["args"]).failures
    # WHEN THEN the branch goes behind the launch, and no word of its other ways has them in the graph
    first, *others = (f for f in told if f.frame and ("beta" in f.frame.text or "if kl" in f.frame.text))
    assert "do that line with all after it behind the launch" in first.fix
    assert others
    assert all("behind each launch" in f.fix or "behind the launch" in f.fix for f in others)
