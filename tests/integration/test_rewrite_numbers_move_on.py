"""Numbers among the arguments that move on: what they decide later, a verified diff has to do, too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paramgraph_kit.rewrite.moving_numbers import now_and_then
from paramgraph_kit.rewrite.proving.around import Around
from paramgraph_kit.rewrite.source.edits import Source
from tests.integration.rewritten import rewritten

OWN = """
class Own(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "mu" not in state:
                    state["mu"] = torch.zeros_like(p)
                if p.grad.norm() > 1e-6:
                    state["mu"].mul_(0.9).add_(p.grad)
                p.add_(state["mu"], alpha=-group["lr"])
net = nn.Linear(4, 2).to(device)
opt = Own(net.parameters(), 0.2)
def adjust(opt, it):
    lr = 0.2 * it / 3 if it < 3 else 0.2
    for group in opt.param_groups:
        group["lr"] = lr
    return lr
def f(it, x):
    lr = adjust(opt, it)
    loss = net(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item(), lr
args = (1, torch.randn(5, 4, device=device))
def feed(i):
    return 1 + i, torch.randn(5, 4, generator=torch.Generator().manual_seed(i)).to(device)
"""


@pytest.mark.sweep
@pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")
def test_a_rate_by_the_iteration_goes_behind_the_launch_with_the_step_of_an_own_optimizer(tmp_path: Path) -> None:
    # GIVEN an optimizer of the user's own, whose rate a helper sets by a number that each call is given
    # WHEN the step is rewritten, and run with ten numbers
    fix = rewritten(OWN, tmp_path)
    # THEN the helper stands behind the launch too: six steps of one number had shown a diff that leaves it in the graph
    assert fix.complete, fix
    behind = str(fix.diff).partition("def after_f")[2]
    assert "adjust(opt, it)" in behind.partition("opt.step()")[0], fix


def test_what_is_around_a_replay_gets_the_numbers_of_today_and_the_tensors_of_the_capture() -> None:
    # GIVEN what a graph was captured with WHEN a later step has other numbers
    held, new = torch.zeros(2), torch.ones(2)
    static, today = ((held, 3, True), {"rate": 0.5}), ((new, 4, True), {"rate": 0.25})
    given = Around().given(today, static)
    # THEN these reach what is around its launch, beside the tensors that the graph reads
    assert given[0][0] is held
    assert given[0][1:] == (4, True)
    assert given[1] == {"rate": 0.25}
    assert Around().given(static, static) is static


CALLS = {
    "an outer loop": ("for k in range(3):\n    for x in xs:\n        f(k, x)\n", "k", True),
    "each round": ("for epoch in range(3):\n    f(epoch, xs)\n", "epoch", False),
    "counted": ("for level, x in enumerate(xs):\n    f(level, x)\n", "level", False),
    "no loop": ("f(3, xs)\n", "epoch", True),
    "by its name alone": ("f(3, xs)\n", "sigma", False),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_graph_keeps_a_number_that_loops_around_the_call_change_now_and_then(name: str, tmp_path: Path) -> None:
    # GIVEN calls of a step that is given a number WHEN asked whether it is worth a graph for each THEN its loops tell
    text, argument, kept = CALLS[name]
    file = tmp_path / "calls.py"
    file.write_text(text)
    source = Source.of(str(file))
    assert source is not None
    assert now_and_then([source], "f", 0, argument) is kept
