"""What moves out of ``torch.no_grad()`` goes on without gradients: with them an average would grow at each launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import lines_of, rewritten, run
from tests.programs.running import captured

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

HERE = """\
class Follow:
    def __init__(self, net):
        self.net, self.n, self.seen = net, 0, []
        self.slow = [p.detach().clone() for p in net.parameters()]
    def update(self):
        for mine, theirs in zip(self.slow, self.net.parameters()):
            mine.copy_(theirs.lerp(mine, 1 - 1 / (self.n + 1)))
        self.n += 1
net = nn.Linear(4, 4).to(device)
follow = Follow(net)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
args = (torch.randn(3, 4, device=device),)
"""
BLOCK = """\
def f(x):
    loss = net(x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        follow.update()
    return loss.detach()
"""
DECORATED = """\
@torch.no_grad()
def f(x):
    y = net(x) * 2
    follow.update()
    return y
"""
IN_A_LOOP = """\
@torch.no_grad()
def f(x):
    for _ in range(2):
        x = torch.tanh(net(x))
        follow.seen.append(x.mean().item())
        follow.update()
    return x
"""


SWITCHED = BLOCK.replace("torch.no_grad()", "torch.set_grad_enabled(False)")


@pytest.mark.parametrize("text", [BLOCK, DECORATED, IN_A_LOOP, SWITCHED], ids=["block", "decorator", "loop", "switch"])
def test_a_function_that_moves_out_of_no_grad_is_called_without_gradients(text: str, tmp_path: Path) -> None:
    # GIVEN a step that calls what writes averages of weights, where no gradients are wanted
    names = run(HERE + text, tmp_path)
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # WHEN the fix is followed, which does that behind the launch
    assert fix.complete, fix
    with fix.applied():
        captured(names, "f", fix.around)
    # THEN it is without gradients there as well
    assert not any(each.requires_grad for each in names["follow"].slow), fix


def test_what_only_tells_needs_no_such_block(tmp_path: Path) -> None:
    # GIVEN a decorated step that prints what it has found WHEN a fix is asked for
    fix = rewritten(
        HERE + "@torch.no_grad()\ndef f(x):\n    y = net(x) * 2\n"
        "    follow.seen.append(y.mean().item())\n    return y\n",
        tmp_path,
    )
    # THEN it is moved as it is
    assert fix.complete, fix
    assert not any("no_grad" in line for line in lines_of(fix)), fix
