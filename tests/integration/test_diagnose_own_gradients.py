"""What is told of the gradients of a captured training step: made anew at each replay, where none were there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.driver.sim.libraries import forget
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
TRAINED = """
def main():
    torch.manual_seed(0)
    net, x, losses = nn.Linear(4, 1).to(device), torch.zeros(3, 4, device=device), []
    opt = torch.optim.OPTIMIZER
    AHEAD
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = net(x).square().mean()
        loss.backward()
        STEP
    for i in range(4):
        x.fill_(1.0 + i)
        g.replay()
        BEHIND
        losses.append(loss.detach())
    return torch.stack(losses)
"""
SUMS = "where there were none it writes over those of the launch before"
ONLY = "only where several replays are to add up ahead of one step of the optimizer's: each launch adds"
WAYS = {
    "the documented way": ("opt.zero_grad(set_to_none=True)", "opt.step()", "pass", ""),
    "a step behind each replay": ("opt.zero_grad(set_to_none=True)", "seen = loss.item()", "opt.step()", ONLY),
}


@pytest.mark.parametrize("way", WAYS)
def test_gradients_that_each_replay_makes_anew_are_not_told_to_be_there_before(way: str, tmp_path: Path) -> None:
    # GIVEN a training step whose capture begins without gradients, as torch's documentation has it
    ahead, step, behind, words = WAYS[way]
    text = TRAINED.replace("AHEAD", ahead).replace("STEP", step).replace("BEHIND", behind)
    text = text.replace("OPTIMIZER", "Adam(net.parameters(), lr=0.1)")  # its capture fails, and is rewritten
    pgk.device()
    forget()
    names = load(PRELUDE + text, tmp_path / "program.py")
    # WHEN
    told = str(pgk.diagnose(names["main"], fix=True))
    # THEN no words make its replays add up, but those that say when one wants that
    assert "losses.append(loss.detach().clone())" in told
    assert (SUMS in told) == bool(words)
    assert words in told


@pytest.mark.parametrize(
    "optimizer", ["Adam(net.parameters(), lr=0.1, capturable=True)", "SGD(net.parameters(), lr=0.1)"]
)
def test_a_warm_up_that_is_told_puts_back_what_a_step_of_the_optimizer_moves(optimizer: str, tmp_path: Path) -> None:
    # GIVEN a process that has used no library yet, and a training step that is captured at once
    pgk.device()
    forget()
    text = TRAINED.replace("AHEAD", "pass").replace("STEP", "opt.step()").replace("BEHIND", "pass")
    text = text.replace("OPTIMIZER", optimizer)
    names = load(PRELUDE + text, tmp_path / "program.py")
    # WHEN
    first = next(f for f in pgk.diagnose(names["main"]) if f.code == "cold-library")
    # THEN weights are put back, and what the optimizer has made is of zeros, where it makes something
    assert "ahead of it  params = [p for group in opt.param_groups for p in group['params']]; before = [" in first.fix
    assert "put back what that moves (the weights, `with torch.no_grad(): [p.copy_(b) for p, b in" in first.fix
    assert ("for state in opt.state.values(): [v.zero_()" in first.fix) == optimizer.startswith("Adam")
