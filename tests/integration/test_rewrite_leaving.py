"""A test of the host that leaves a step before it trains, as updates of a policy do where it has moved too far."""

from __future__ import annotations

import pytest
import torch

from tests.integration.rewritten import Fixed, changed, lines_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

UPDATE = """
policy = nn.Linear(4, 3).to(device)
opt = torch.optim.{opt}(policy.parameters(), lr=3e-3)
updates = 0
args = (torch.randn(8, 4, device=device), torch.randint(0, 3, (8,), device=device), torch.randn(8, device=device))
def feed(i):
    made = torch.Generator().manual_seed(i)
    return (
        torch.randn(8, 4, generator=made).to(device) * (1 + i % 3),
        torch.randint(0, 3, (8,), generator=made).to(device),
        torch.randn(8, generator=made).to(device),
    )
def f(obs, act, adv):
    logp = F.log_softmax(policy(obs), -1).gather(1, act[:, None]).squeeze(1)
    loss = -(logp * adv).mean()
    kl = {read}
    if kl > {most}:
        return {early}
    {first}
    loss.backward()
    opt.step()
    return {end}
"""


@pytest.mark.parametrize("most", ["1.3", "100.0"], ids=["some", "none"])
@pytest.mark.parametrize("read", ["(-1.0 - logp).abs().mean().item()", "float(logp.abs().mean())"])
@pytest.mark.parametrize(("early", "end"), [("loss.detach()", "loss.detach()"), ("(loss, kl)", "(loss, kl)")])
def test_the_device_leaves_a_step_out_by_what_the_host_has_asked(
    fixed: Fixed, read: str, most: str, early: str, end: str
) -> None:
    # GIVEN an update that is left by a number that the host reads, in some steps or in none WHEN rewritten
    found = fixed(UPDATE.format(opt="Adam", read=read, most=most, early=early, end=end, first="opt.zero_grad()"))
    # THEN the device leaves the step of the optimizer out, and the host asks behind the launch
    assert found.complete, found
    assert f"opt.found_inf = (kl > {most}).float()" in lines_of(found)
    assert "kl = kl.item()" in lines_of(found)


def test_a_step_that_only_two_launches_can_leave_out_is_told_so(fixed: Fixed) -> None:
    # GIVEN an update that every step has left before it has trained WHEN rewritten
    text = UPDATE.format(
        opt="Adam", read="logp.abs().mean().item()", most="0.1", early="loss", end="loss", first="opt.zero_grad()"
    )
    found = fixed(text)
    # THEN what is computed before the test is a graph, and the test stays where it is
    assert not found.complete
    assert found.alone == "f_part", found
    assert "if kl > 0.1:" not in "".join(changed(found.diff))
