"""Words about training steps that can be followed: networks made in a step, picks that a loss is made of, rates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.advised.state.kept_outside import kept_outside
from tests.programs.reading import PRELUDE
from tests.programs.running import load, quiet

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

LOCAL = """\
server = nn.Linear(3, 2).to(device)
def step(x):
    model = nn.Linear(3, 2).to(device)
    model.load_state_dict(server.state_dict())
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).sum().backward()
    opt.step()
    server.load_state_dict({k: (v + server.state_dict()[k]) / 2 for k, v in model.state_dict().items()})
args = (torch.randn(4, 3, device=device),)
"""
PICKED = """\
net = nn.Linear(3, 2).to(device)
def step(x, y):
    p, keep = net(x).softmax(1), y != 9
    p, y = p[keep], y[keep]
    error, order = (p[:, 1] - y).abs().sort()
    loss = torch.dot(error, order.float().cumprod(0))
    loss.backward()
    return loss.detach()
args = (torch.randn(6, 3, device=device), torch.tensor([0, 1, 9, 1, 0, 9], device=device))
"""
MERGED = """\
net = nn.Linear(3, 2).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
met = 0
def merge(grads):
    global met
    for g in grads:
        if torch.dot(g, grads[0]).item() < 0:
            met += 1
    return torch.stack(grads).mean(0)
def step(x):
    losses = [net(x).sum(), net(x).pow(2).sum()]
    grads = [torch.autograd.grad(l, [net.weight])[0].flatten() for l in losses]
    net.weight.grad = merge(grads).view_as(net.weight)
    opt.step()
args = (torch.randn(4, 3, device=device),)
"""
RATE = """\
def step(x):
    for group in opt.param_groups:
        group["lr"] = schedule[it]
    opt.step()

def after_step():
    global it
    it += 1
"""


def told(text: str, path: Path) -> str:
    """What is told of a program's ``step`` with its fix."""
    names = load(PRELUDE + text, path / "program.py")
    with quiet():
        return str(pgk.diagnose(names["step"], *names["args"], fix=True))


def test_nothing_is_copied_into_a_network_as_a_whole(tmp_path: Path) -> None:
    # GIVEN a step that makes a network anew and loads values into it WHEN its fix is told
    found = told(LOCAL, tmp_path)
    # THEN no line copies into the network, which has no such method
    assert "model_in.copy_(" not in found
    assert "model_in.clone()" not in found


def test_what_a_loss_is_made_of_is_not_picked_behind_the_launch(tmp_path: Path) -> None:
    # GIVEN rows that a mask picks, and a loss of these WHEN its fix is told
    found = told(PICKED, tmp_path)
    # THEN nobody is told to pick once the step is over
    assert "behind the launch" not in found


def test_gradients_that_a_graph_does_not_write_are_not_said_to_add_up(tmp_path: Path) -> None:
    # GIVEN gradients that the host puts together, behind the launch, of those that a graph returns
    # WHEN its fix is told
    found = told(MERGED, tmp_path)
    # THEN nothing adds to them in the graph
    assert "after_step" in found
    assert "each launch adds to the gradients" not in found


@pytest.mark.parametrize(
    ("moved", "words"),
    [
        ({"after_step"}, "belongs before each launch, so take it out of the step, and write there `group['lr'].fill_"),
        ({"count"}, "so take its call, `step`, out of the step"),
    ],
    ids=["the step itself", "a helper"],
)
def test_a_rate_that_a_count_decides_is_told_where_it_is_set(moved: set[str], words: str) -> None:
    # GIVEN a count that moves outside the launch, and a rate that it decides within
    lines = RATE.replace("after_step", next(iter(moved))).splitlines(keepends=True)
    # WHEN it is told what to do THEN the step is not told to take out its own call
    assert words in kept_outside("it", lines, lines, moved, {"step"}, "cuda")


BROUGHT = """\
import numpy as np
net, rows, rng = nn.Linear(3, 2).to(device), np.ones((9, 3), dtype=np.float32), np.random.default_rng(0)
def step(x):
    taken = rng.choice(9, 4)
    bring = lambda part: torch.as_tensor(part, device=device)
    return net(bring(rows[taken])) + x
args = (torch.randn(4, 2, device=device),)
"""


def test_what_a_lambda_is_given_is_none_of_what_is_made_once(tmp_path: Path) -> None:
    # GIVEN a helper, written as a lambda, that brings to the device what it is given
    space = load(PRELUDE + BROUGHT, tmp_path / "program.py")
    # WHEN its step is diagnosed
    with quiet():
        told = " ".join(f.fix for f in pgk.diagnose(space["step"], *space["args"]) if f.code == "tensor-literal")
    # THEN it is brought ahead of each launch, and nothing is made of a name that only the lambda has
    assert "before each launch" in told
    assert "each time that a step calls `bring`" in told
    assert "constant_on_device" not in told


SCORED = """\
net = nn.Linear(3, 2).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def score(p, y):
    large = [c for c in range(2) if p[:, c].sum() > 0.5]
    return p.mean() + sum(p[:, c].mean() for c in large)
def step(x, y):
    loss = score(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
args = (torch.randn(4, 3, device=device), torch.tensor([0, 1, 1, 0], device=device))
"""


def test_what_a_helper_gives_a_backward_pass_is_not_left_behind_the_launch(tmp_path: Path) -> None:
    # GIVEN a loss of a helper that the host decides, whose backward pass is the step's
    names = load(PRELUDE + SCORED, tmp_path / "program.py")
    # WHEN the step is diagnosed
    with quiet():
        words = " ".join(f.fix for f in pgk.diagnose(names["step"], *names["args"]))
    # THEN no launch is told to end ahead of it
    assert "end what is captured before" not in words, words
