"""Where a branch lets gradients go, its own line is told, and not the optimizer's step alone."""

from __future__ import annotations

from pathlib import Path

import paramgraph_kit as pgk
from tests.integration.rewritten import run

TEXT = """
net, head = nn.Linear(4, 4).to(device), nn.Linear(4, 2).to(device)
opt = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.1, momentum=0.9)


def cancel(epoch, model, freeze):
    if epoch >= freeze:
        return
    for p in model.parameters():
        p.grad = None


def f(x, epoch):
    opt.zero_grad()
    head(net(x)).square().mean().backward()
    cancel(epoch, head, 1)
    opt.step()


args = [torch.randn(8, 4).to(device), 0]
"""


def test_a_branch_that_lets_gradients_go_is_told_at_its_own_line(tmp_path: Path) -> None:
    # GIVEN a step that keeps a layer as it is in its first epoch, in a function that it calls
    names = run(TEXT, tmp_path)
    # WHEN it is asked for
    found = pgk.diagnose(names["f"], *names["args"]).failures
    # THEN the branch is told, with what the caller can ask before a launch
    told = [each for each in found if each.code == "branch-frozen"]
    assert [each.frame.text for each in told if each.frame] == ["if epoch >= freeze:"], found
    assert "ask `train_" in told[0].fix
    assert "= epoch >= 1` before each launch" in told[0].fix


def test_a_branch_that_always_goes_one_way_is_no_problem(tmp_path: Path) -> None:
    # GIVEN the same where the step goes by no number of a call's
    names = run(TEXT.replace("def f(x, epoch):", "def f(x, other):").replace("(epoch, head", "(0, head"), tmp_path)
    # WHEN / THEN
    assert not pgk.diagnose(names["f"], *names["args"]).failures
