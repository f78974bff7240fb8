"""Rounds of loops in which agents and teachers are updated: in a branch, with rates that are logged and rows picked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.proving.launches import Launches
from paramgraph_kit.rewrite.result import Rewriting
from paramgraph_kit.rewrite.trained_behind import branch_behind
from tests.integration.rewritten import TIMES, lines_of, run
from tests.programs.running import differences, eager

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

DQN = """\
q, target = nn.Linear(4, 3).to(device), nn.Linear(4, 3).to(device)
opt = torch.optim.Adam(q.parameters(), lr=1e-2)
memory, scalars = torch.utils.data.DataLoader(torch.randn(48, 10), 8), []
args = ()
def f():
    for step, data in enumerate(memory):
        if step > 1:
            if step % 2 == 0:
                data = data.to(device)
                with torch.no_grad():
                    best, _ = target(data[:, :4]).max(dim=1)
                    wanted = data[:, 9] + 0.9 * best
                value = q(data[:, 4:8]).gather(1, (data[:, 8:9] > 0).long()).squeeze()
                loss = F.mse_loss(value, wanted)
                if step % 4 == 0:
                    scalars.append((loss.item(), step))
                opt.zero_grad()
                loss.backward()
                opt.step()
            if step % 3 == 0:
                target.load_state_dict(q.state_dict())
"""
RATED = """\
student, teacher = nn.Linear(4, 3).to(device), nn.Linear(4, 3).to(device)
opt = torch.optim.AdamW(student.parameters())
rates, momenta = np.linspace(0.01, 0.05, 16), np.linspace(0.9, 1.0, 16)
batches = torch.utils.data.DataLoader(torch.randn(32, 4), 8)
meters = {"loss": [], "rate": []}
args = (1,)
def f(epoch):
    for it, x in enumerate(batches):
        it = len(batches) * epoch + it
        for group in opt.param_groups:
            group["lr"] = rates[it]
        picked = np.roll(np.arange(8), it)[:4]
        x = x.to(device)
        loss = F.mse_loss(student(x[picked]), teacher(x[picked, :]).detach())
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            m = momenta[it]
            for new, old in zip(teacher.parameters(), student.parameters()):
                new.data.mul_(m).add_((1 - m) * old.detach().data)
        meters["loss"].append(loss.item())
        meters["rate"].append(opt.param_groups[0]["lr"])
"""


@pytest.mark.parametrize(
    ("program", "lines", "replays"),
    [
        pytest.param(DQN, ["loss = f_round(data)"], 3, id="a branch in which it trains"),
        pytest.param(
            RATED,
            [
                'meters["rate"].append(float(opt.param_groups[0]["lr"]))',
                "picked_in = torch.as_tensor(picked, device=device)",
            ],
            20,
            id="a rate that is logged, and rows that the host picks",
        ),
        pytest.param(
            RATED.replace("picked = np.roll(np.arange(8), it)[:4]", "low = it % 4").replace("picked", "low : low + 4"),
            ["x_there = x[low : low + 4]", "m_in = torch.full((), momenta[it], device=device)"],
            20,
            id="rows and a number, which are both found before the same line",
        ),
    ],
)
def test_a_round_is_cut_out_of_what_a_loop_does(program: str, lines: list[str], replays: int, tmp_path: Path) -> None:
    # GIVEN a loop WHEN it is rewritten THEN one round is a function
    truth, names = eager(run(program, tmp_path), "f"), run(program, tmp_path)
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert fix.alone == "f_round", fix
    assert {*lines} <= {*lines_of(fix)}, fix
    # AND the loop does from graphs what it does as it is
    with fix.applied() as made:
        names[fix.alone] = launches = Launches(made, fix.around, fix.bound)
        assert not differences(truth, eager(names, "f"), TIMES)
    assert launches.replays > replays


BEHIND = """\
class Agent:
    def train(self, x):
        return critic_step(x)

    def after_train(self, state, loss):  # after each launch
        self.count += 1
        log(loss)
        if self.count % self.every == 0:
            actor_loss = -self.q(state.clone()).mean()
            actor_loss.backward()
            self.actor_optimizer.step()
"""


def test_what_trains_now_and_then_behind_a_launch_is_told_to_have_a_graph_of_its_own() -> None:
    # GIVEN lines of a rewrite whose branch behind the launch trains WHEN THEN that is told with names and arguments
    told = branch_behind(Rewriting("Agent.train", texts={"agent.py": BEHIND.splitlines(keepends=True)}))
    assert "what `after_train` trains under `if self.count % self.every == 0:`" in told
    assert "`def now_and_then_train(self, state):`" in told
    assert "`pgk.diagnose(self.now_and_then_train, ..., fix=True)`" in told
    # AND one that only logs is not
    quiet = BEHIND.replace("actor_loss.backward()", "log(actor_loss)")
    assert not branch_behind(Rewriting("Agent.train", texts={"agent.py": quiet.splitlines(keepends=True)}))
