"""A step whose callers get a tensor of the device where they had something of the host's: the fix says what to do."""

from __future__ import annotations

import pytest
import torch

from tests.integration.rewritten import Fixed

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

STEP = """
net, n = nn.Linear(4, 3).to(device), 0
args = (torch.randn(8, 4, device=device),)
@torch.no_grad()
def f(x):
    global n
    u = torch.tanh(net(x))
{lines}    return {returned}
"""
RETURNED = {  # what a step returns, and what is told of it
    "u.cpu().numpy()": "where it was an array: what else calls it gets one, too, and each launch writes the same: "
    "keep `.cpu().numpy()` of it",
    "u.cpu()": "where it was a tensor of the CPU",
    "u.sum().item()": "keep a number of it, `.item()`, behind the launch",
    "{'sum': u.sum().item()}": "keep a number of it, `.item()`, behind the launch",
    "u": "",
}
COUNTED = "    n += 1\n    if n % 100 == 0:\n        print('steps', n)\n"


@pytest.mark.parametrize("returned", RETURNED)
def test_what_was_the_hosts_and_is_a_tensor_now_is_told(returned: str, fixed: Fixed) -> None:
    # GIVEN a step that returns something of the host's, and counts, which goes behind its launch
    fix = fixed(STEP.format(lines=COUNTED, returned=returned))
    # WHEN it is rewritten THEN it is whole, and what becomes of the result is told
    assert fix.complete, fix
    told = [line for line in fix.verified if "from now on" in line and "`f` returns" in line]
    assert [RETURNED[returned] in line for line in told] == [True] * bool(RETURNED[returned]), fix
