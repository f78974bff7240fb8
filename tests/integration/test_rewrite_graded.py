"""Arguments that a step makes need gradients in their place, as networks for differential equations do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device")
Program = Callable[[str], dict[str, Any]]
RESIDUAL = """
net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
args = (torch.rand(8, 1, device=device), torch.rand(4, 1, device=device))
losses = []
def residual(x):
    {needs}
    u = net(x)
    u_x = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]
    return torch.autograd.grad(u_x, x, torch.ones_like(u_x), create_graph=True)[0] + u_x * u
def step(x, known):
    opt.zero_grad()
    loss = residual(x).square().mean() + net(known).square().mean()
    loss.backward()
    opt.step()
    losses.append(loss.item())
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """Runs a program from a file of its own; returns its names."""
    yield lambda text: load(PRELUDE + text, tmp_path / "program.py")
    pgk.diagnose.repair()


@pytest.mark.parametrize("needs", ["x.requires_grad_(True)", "x.requires_grad_()", "x.requires_grad = True"])
def test_an_argument_that_is_made_to_need_gradients_is_taken_over(needs: str, program: Program) -> None:
    # GIVEN a step that differentiates by its argument
    names = program(RESIDUAL.format(needs=needs))
    # WHEN it is looked at
    found = pgk.diagnose(names["step"], *names["args"])
    # THEN nothing is told of the order in which a backward pass runs, and the argument is as it was
    assert set(found.codes) == {"optimizer-not-capturable", "sync-item", "host-counter"}
    assert not names["args"][0].requires_grad
    assert names["args"][0].grad is None
    # WHEN its story is told THEN it comes to its end, with launches
    story = pgk.story(names["step"], *names["args"], say=None)
    assert story.complete, str(story)
    assert "+    x = x.detach().requires_grad_(True)" in str(story)
    assert len(story.traces["parameterized"].launches) >= 3
    assert not names["args"][0].requires_grad
    assert names["args"][0].grad is None


@pytest.mark.parametrize("title", ["needed gradients before", "has another name"])
def test_an_argument_that_cannot_be_taken_over_stays_and_the_rest_is_mended(title: str, program: Program) -> None:
    # GIVEN a helper whose argument comes of a network, or a step whose argument has two names
    if title == "needed gradients before":
        text = "def f(x):\n    loss = bent(net(x))\n    loss.backward()\n    print(loss.item())\n"
    else:
        text = "def f(x):\n    y = x\n    x.requires_grad_(True)\n    loss = bent(net(y))\n"
        text += "    g = torch.autograd.grad(loss, y)\n    print(loss.item())\n    return g\n"
    helper = (
        "def bent(u):\n    u.requires_grad_(True)\n"
        "    return torch.autograd.grad((u ** 3).sum(), u, create_graph=True)[0].square().mean()\n"
    )
    names = program(f"net = nn.Linear(6, 6).to(device)\nargs = (torch.randn(2, 6, device=device),)\n{helper}{text}")
    # WHEN rewritten
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN it needs its gradients as before, and what is printed is behind the launch
    assert fix is not None
    assert fix.complete, fix
    assert "detach().requires_grad_(True)" not in fix.diff


def test_that_the_caller_s_tensor_gets_no_gradient_is_said(program: Program) -> None:
    # GIVEN / WHEN / THEN
    names = program(RESIDUAL.format(needs="x.requires_grad_(True)"))
    fix: Any = pgk.diagnose(names["step"], *names["args"], fix=True).fix
    assert "the caller's gets no `.grad`" in str(fix.verified)
