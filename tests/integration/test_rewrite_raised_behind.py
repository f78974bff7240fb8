"""Steps that end early where a value of the device says so: by an exception, or with the program."""

from __future__ import annotations

import pytest
import torch

from tests.integration.rewritten import Fixed, lines_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

STEP = """
import math, os, sys
net = nn.Linear(4, 2).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
args, kept = (torch.randn(3, 4, device=device),), []
def give_up(loss):
    print(loss)
    sys.exit(1)
def f(x):
    loss = net(x).pow(2).mean()
    value = loss.item()
    if not math.isfinite(value):
        print("stopped at", value)
        SAVES
        LEAVES
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
"""


LEAVES = ["sys.exit(1)", "exit()", "os._exit(3)", "give_up(value)", "raise ValueError(value)"]


@pytest.mark.parametrize("leaves", LEAVES)
@pytest.mark.parametrize("saves", ["pass", "kept.append([p.tolist() for p in net.parameters()])"])
def test_a_step_that_ends_the_program_does_not_train_first(fixed: Fixed, leaves: str, saves: str) -> None:
    # GIVEN a step that ends the program, or raises, ahead of its backward pass WHEN rewritten
    found = fixed(STEP.replace("SAVES", saves).replace("LEAVES", leaves))
    # THEN that goes behind the launch, and the optimizer leaves the step out on the device
    assert found.complete, found
    lines = lines_of(found)
    asks = "opt.found_inf = (torch.logical_not(torch.isfinite(value))).float()"
    assert asks in lines, found
    assert lines.index(asks) < lines.index("def after_f(loss, value):  # after each launch"), found


@pytest.mark.parametrize("leaves", LEAVES)
def test_what_is_done_before_a_step_ends_behind_its_launch_is_said(fixed: Fixed, leaves: str) -> None:
    # GIVEN one that counts where it goes on, so that the branch has two ways WHEN rewritten
    text = STEP.replace("SAVES", "pass").replace(
        "        LEAVES", f"        {leaves}\n    else:\n        kept.append(value)"
    )
    found = fixed(text)
    # THEN it goes behind the launch, and what is done by then is said
    assert found.complete, found
    assert any("ends the step behind the launch: what lines " in line for line in found.verified), found
