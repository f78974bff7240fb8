"""Optimizers that users write: what they count is kept on the device, so that their steps stay in the graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import Fixed, lines_of, run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

ADAM = """
class Adam(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2, betas=(0.9, 0.99), eps=1e-8):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                NAME = self.state[p]
                if not NAME:
                    NAME["step"] = 0
                    NAME["m"], NAME["v"] = torch.zeros_like(p), torch.zeros_like(p)
                NAME["step"] += 1
                NAME["m"].mul_(b1).add_(p.grad, alpha=1 - b1)
                NAME["v"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                UPDATE
"""
STEP = """
net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).to(device)
opt, losses = Adam(net.parameters()), []
args = (torch.randn(6, 4, device=device), torch.randn(6, 1, device=device))
def f(x, y):
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    opt.step()
    losses.append(loss.item())
    return loss.detach()
"""
PLAIN = """rate = group["lr"] * math.sqrt(1 - b2 ** NAME["step"]) / (1 - b1 ** NAME["step"])
                p.addcdiv_(NAME["m"], NAME["v"].sqrt().add_(group["eps"]), value=-rate)"""
RECTIFIED = """t = NAME["step"]
                sure = 40 - 2 * t * b2 ** t / (1 - b2 ** t)
                if t > 3:
                    rate = group["lr"] * math.sqrt((t - 3) / t) / (1 - b1 ** t)
                    p.addcdiv_(NAME["m"], NAME["v"].sqrt().add_(group["eps"]), value=-rate)
                else:
                    p.add_(NAME["m"], alpha=-group["lr"] / (1 - b1 ** t))"""


@pytest.mark.parametrize("name", ["state", "mine"])
@pytest.mark.parametrize("update", [PLAIN, RECTIFIED], ids=["plain", "rectified"])
@pytest.mark.parametrize("apart", [False, True], ids=["one file", "a file of its own"])
def test_what_an_optimizer_counts_is_kept_on_the_device(fixed: Fixed, update: str, name: str, apart: bool) -> None:
    # GIVEN an optimizer with a count of its steps WHEN rewritten
    text = ADAM.replace("UPDATE", update).replace("NAME", name)
    own = f"# file: own_adam.py\nimport math\nimport torch\n{text}\n# file: the program\nfrom own_adam import Adam\n"
    found = fixed((own if apart else text) + STEP)
    # THEN the count is a tensor, its step stays in the graph, and only what the host keeps goes behind the launch
    assert found.complete, found
    lines = lines_of(found)
    where = f'"{torch.device(pgk.device()).type}"' if apart else "device"
    assert f'{name}["step"] = torch.tensor(0, dtype=torch.float64, device={where})' in lines, found
    assert "opt.step()" not in lines[lines.index("def after_f(loss):  # after each launch") :], found


def test_an_optimizer_that_has_stepped_already_is_rewritten_alike(fixed: Fixed) -> None:
    # GIVEN one whose state was there before WHEN rewritten THEN its numbers go on from there, in the graph
    warm = "for _ in range(3):\n    opt.zero_grad()\n    net(args[0]).sum().backward()\n    opt.step()\n"
    text = ADAM.replace("UPDATE", PLAIN).replace("NAME", "state") + STEP.replace("def f(", f"{warm}def f(")
    found = fixed(text)
    assert found.complete, found
    assert "opt.step()" not in lines_of(found), found


def test_a_branch_that_only_logs_is_no_reason_to_keep_its_number_on_the_device(fixed: Fixed) -> None:
    # GIVEN a step that logs every third time WHEN rewritten THEN that is done behind the launch, by the host's own `it`
    text = ADAM.replace("UPDATE", PLAIN).replace("NAME", "state") + STEP
    text = text.replace("def f(x, y):", "it = 0\ndef f(x, y):\n    global it")
    text = text.replace(
        "    losses.append(loss.item())", "    if it % 3 == 0:\n        losses.append(loss.item())\n    it += 1"
    )
    found = fixed(text)
    assert found.complete, found
    assert not any(line.startswith("it = ") for line in lines_of(found)), found
    assert "opt.step()" not in lines_of(found), found


def test_a_count_that_is_made_together_with_others_is_kept_on_the_device_alone(fixed: Fixed) -> None:
    # GIVEN an optimizer whose state begins with two numbers in one statement, of which one moves WHEN rewritten
    text = ADAM.replace("UPDATE", PLAIN).replace('NAME["step"] = 0', 'NAME["step"], NAME["kind"] = 0, 0')
    found = fixed(text.replace("NAME", "state") + STEP)
    # THEN that one is a tensor
    assert found.complete, found
    made = 'state["step"], state["kind"] = torch.tensor(0, dtype=torch.float64, device=device), 0'
    assert made in lines_of(found), found


SCHEDULED = """rate = math.sqrt(1 - b2 ** NAME["step"]) / (1 - b1 ** NAME["step"])
                p.add_(NAME["m"] / NAME["v"].sqrt().add_(group["eps"]) * rate, alpha=-group["lr"])"""


@pytest.mark.sweep
@pytest.mark.parametrize("held", [False, True], ids=["a variable", "an attribute"])
def test_a_schedule_of_the_users_own_optimizer_leaves_its_steps_in_the_graph(fixed: Fixed, held: bool) -> None:
    # GIVEN an optimizer of the user's whose rate a schedule moves, and which counts its steps WHEN rewritten
    text = ADAM.replace("UPDATE", SCHEDULED).replace("NAME", "state")
    text += STEP.replace("args =", "schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)\nargs =")
    text = text.replace("    opt.step()\n    losses", "    opt.step()\n    schedule.step()\n    losses")
    if held:
        text = text.replace("opt, losses = Adam(net.parameters()), []", OWNER)
        for name in ("opt.zero_grad", "opt.step", "ExponentialLR(opt"):
            text = text.replace(name, name.replace("opt", "t.opt"))
    found = fixed(text)
    # THEN its rate is a tensor, which the schedule fills behind the launch
    assert found.complete, found
    of = "self.opt" if held else "opt"
    assert f"for group in {of}.param_groups:" in lines_of(found), found
    assert not any(line.endswith("opt.step()") for line in lines_of(found)), found


OWNER = """class Trainer:
    def __init__(self):
        self.opt = Adam(net.parameters())


t, losses = Trainer(), []"""


@pytest.mark.sweep
def test_an_option_of_the_users_own_optimizer_is_a_number(fixed: Fixed) -> None:
    # GIVEN an optimizer that takes the larger of an option and what the device has found WHEN rewritten
    relative = """rate = max(group["eps"], p.norm()) * min(1e-2, 1 / NAME["step"] ** 0.5)
                p.sub_(NAME["m"] * rate)"""
    found = fixed(ADAM.replace("UPDATE", relative).replace("NAME", "state") + STEP)
    # THEN the device does
    assert found.complete, found
    assert any(".clamp(min=group[" in line for line in lines_of(found)), found
    assert "opt.step()" not in lines_of(found), found


GIVEN = """
class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if len(state) == 0:
                    state["m"] = torch.zeros_like(p)
                p.add_((0.9 * state["m"] + 0.1 * p.grad).sign(), alpha=-group["lr"])
                state["m"].lerp_(p.grad, 0.01)
net = nn.Linear(4, 1).to(device)
opt = Lion(net.parameters(), 0.01)
args = (2, torch.randn(6, 4, device=device))
def f(it, x):
    for group in opt.param_groups:
        group["lr"] = 0.01 * 0.5 * (1 + math.cos(math.pi * it / 40))
    loss = net(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
"""


@pytest.mark.sweep
def test_a_rate_of_the_users_own_optimizer_by_the_number_of_the_step_leaves_it_in_the_graph(fixed: Fixed) -> None:
    # GIVEN an optimizer of the user's whose rate each step computes of its number WHEN rewritten
    found = fixed(GIVEN)
    # THEN that fills a tensor before each launch, and the optimizer's step is no line of what is done behind it
    assert found.complete, found
    lines = lines_of(found)
    assert any(line.startswith('group["lr"].fill_(') for line in lines), found
    assert "opt.step()" not in lines, found


@pytest.mark.sweep
def test_such_a_rate_in_a_tensor_that_the_device_moves_is_no_problem(tmp_path: Path) -> None:
    # GIVEN the same with what the diff writes, and a rate that decays on the device WHEN diagnosed
    made = 'for group in opt.param_groups:\n    group["lr"] = torch.tensor(0.01, device=device)\n'
    text = GIVEN.replace("def f(it, x)", f"{made}def f(x)").replace("args = (2, ", "args = (")
    text = text.replace("args = (torch.randn(6, 4, device=device))", "args = (torch.randn(6, 4, device=device),)")
    text = text.replace('group["lr"] = 0.01 * 0.5 * (1 + math.cos(math.pi * it / 40))', 'group["lr"].mul_(0.99)')
    names = run(text.replace('.sign(), alpha=-group["lr"])', '.sign() * -group["lr"])'), tmp_path)
    # THEN nothing is told
    assert not pgk.diagnose(names["f"], *names["args"]).failures
