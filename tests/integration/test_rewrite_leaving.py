"""A test of the host that leaves a step before it trains, as updates of a policy do where it has moved too far."""

from __future__ import annotations

import pytest
import torch

from tests.integration.rewritten import Fixed, lines_of

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
    # THEN no part is cut out, as launches lead no gradients back: it stays as it is, and pieces of it are graphs
    assert not found.complete
    assert not found.alone, found
    assert not found.diff, found
    assert "two launches" in str(found)


GATED = {
    "a method that counts how often it left, and returns what it has": (
        """
class Filter:
    def __init__(self):
        self.x, self.missed = torch.zeros(4, device=device), 0
    def update(self, z):
        y = z - self.x
        d = (y * y).sum().item()
        if d > 2.3:
            self.missed += 1
            return self.x
        self.x = self.x + y / 2
        self.missed = 0
        return self.x
kf = Filter()
args = (torch.randn(4, device=device),)
def f(z):
    return kf.update(z) * 2
""",
        [
            "self.x.copy_(torch.where(goes_on, self.x + y / 2, self.x))",
            "self.missed += torch.where(torch.logical_not(goes_on), 1, 0)",
            "self.missed.copy_(torch.where(goes_on, 0, self.missed))",
        ],
    ),
    "methods in turn, and whether it was left, which nobody asks": (
        """
class Mean:
    def __init__(self):
        self.x = torch.zeros(4, device=device)
    def update(self, z):
        if z.isnan().any():
            return False
        if (z - self.x).norm() > 2.5:
            return False
        self.x.mul_(0.9).add_(0.1 * z)
        return True
mean = Mean()
args = (torch.randn(4, device=device),)
def f(z):
    mean.update(z)
    return mean.x * 2
""",
        ["goes_on = torch.logical_not((z - self.x).norm() > 2.5)", "return goes_on_2 & goes_on"],
    ),
    "rounds of a loop, of which each writes where it is": (
        """
state, count = torch.zeros(5, device=device), torch.zeros(5, dtype=torch.long, device=device)
args = (torch.randn(5, device=device),)
def f(x):
    for i in range(5):
        v = x[i] * 2
        if v.abs() > 1.5:
            continue
        state[i] = 0.9 * state[i] + v
        count[i] += 1
    return state.sum()
""",
        ["state[i] = torch.where(goes_on, 0.9 * state[i] + v, state[i])", "count[i] += torch.where(goes_on, 1, 0)"],
    ),
}


@pytest.mark.parametrize("name", GATED)
def test_what_is_behind_a_way_out_runs_and_changes_nothing_where_it_was_taken(name: str, fixed: Fixed) -> None:
    # GIVEN a way out that the device decides, ahead of lines that write what lives on WHEN rewritten
    text, expected = GATED[name]
    found = fixed(text)
    # THEN all of it is in the graph
    assert found.complete, found
    assert set(expected) <= set(lines_of(found)), found
