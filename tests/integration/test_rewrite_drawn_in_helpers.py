"""What the host draws in helpers, twice or deep within a step, goes before its launch; what helpers tell, behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.drawing import KEEPER, ORDER
from paramgraph_kit.rewrite.round_within import _let_go
from tests.integration.rewritten import launched, lines_of, rewritten, run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

CRITIC = """\
generator, critic = nn.Linear(4, 6).to(device), nn.Linear(6, 1).to(device)
opt = torch.optim.SGD(critic.parameters(), lr=0.05)
def sample(n):
    return generator(torch.randn((n, 4)).to(device))
def penalty(real, fake):
    alpha = torch.rand(real.size(0), 1)
    alpha = alpha.expand_as(real)
    alpha = alpha.to(device)
    mixed = (alpha * real + (1 - alpha) * fake).detach().requires_grad_(True)
    grads = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)[0]
    return ((grads.norm(2, dim=1) - 1) ** 2).mean()
def train_critic(real):
    fake = sample(real.size(0)).detach()
    opt.zero_grad()
    loss = critic(fake).mean() - critic(real).mean() + 10 * penalty(real, fake)
    loss.backward()
    opt.step()
    return loss.detach()
args = (torch.rand(8, 6, device=device),)
def f(real):
    train_critic(real)
    return train_critic(real)
"""
# A trainer whose helpers tell what they compute, and that trains its generator now and then.
TRAINER = """\
class Trainer:
    def __init__(self):
        self.g, self.d = nn.Linear(4, 6).to(device), nn.Linear(6, 1).to(device)
        self.g_opt = torch.optim.SGD(self.g.parameters(), lr=0.05)
        self.d_opt = torch.optim.SGD(self.d.parameters(), lr=0.05)
        self.losses, self.steps = {"D": [], "G": []}, 0
    def sample(self, n):
        return self.g(torch.randn(n, 4).to(device))
    def train_critic(self, real):
        loss = self.d(self.sample(len(real)).detach()).mean() - self.d(real).mean()
        self.d_opt.zero_grad()
        loss.backward()
        self.d_opt.step()
        self.losses["D"].append(loss.item())
    def train_generator(self, real):
        loss = -self.d(self.sample(len(real))).mean()
        self.g_opt.zero_grad()
        loss.backward()
        self.g_opt.step()
        self.losses["G"].append(loss.item())
    def step(self, real):
        self.steps += 1
        self.train_critic(real)
        if self.steps % 3 == 0:
            self.train_generator(real)
        return self.losses["D"][-1]
trainer = Trainer()
losses, g, d = trainer.losses, trainer.g, trainer.d
f = trainer.step
args = (torch.rand(8, 6, device=device),)
"""
# Gradients of tasks, each without what it has against the others, in the order of a shuffle; those of one task add up.
CONFLICTS = """\
import copy
net = nn.Linear(4, 3).to(device)
mask = torch.tensor([True, False, True] * 5, device=device)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
def gradients(losses):
    every = [torch.autograd.grad(loss, list(net.parameters()), retain_graph=True) for loss in losses]
    return [torch.cat([part.flatten() for part in each]) for each in every]
def project(grads):
    kept = copy.deepcopy(grads)
    for one in kept:
        random.shuffle(grads)
        for other in grads:
            along = torch.dot(one, other)
            if along < 0:
                one -= along * other / other.norm() ** 2
    merged = torch.zeros_like(grads[0])
    merged[mask] = torch.stack([g[mask] for g in kept]).mean(dim=0)
    merged[~mask] = torch.stack([g[~mask] for g in kept]).sum(dim=0)
    return merged
def f(x, y):
    out = net(x)
    losses = [F.mse_loss(out, y), F.l1_loss(out, -y), out.pow(2).mean()]
    merged, at = project(gradients(losses)), 0
    for p in net.parameters():
        p.grad = merged[at : at + p.numel()].view_as(p).clone()
        at += p.numel()
    opt.step()
    return [loss.item() for loss in losses]
args = (torch.randn(8, 4, device=device), torch.randn(8, 3, device=device))
"""
STACKED = """\
grads = [torch.randn(6, device=device) for _ in range(3)]
mask = torch.tensor([True, False, True, True, False, False], device=device)
def f(x):
    merged = torch.zeros_like(x)
    merged[mask] = torch.stack([g[mask] for g in grads]).mean(dim=0)
    merged[~mask] = {other}
    return merged * x
args = (torch.randn(6, device=device),)
"""


@pytest.mark.sweep
def test_what_a_helper_that_runs_twice_draws_goes_before_the_launch(tmp_path: Path) -> None:
    """GIVEN a penalty and samples that the CPU draws, in helpers of a helper that a step calls twice
    WHEN a fix is asked for
    THEN one diff draws all four before each launch, in the order of the step
    """
    found = rewritten(CRITIC, tmp_path)
    assert found.complete, found
    assert "with drawn.since(2):" in lines_of(found)
    assert found.diff.count("lambda: torch.randn(8, 4)") == 2


@pytest.mark.sweep
def test_what_is_drawn_on_the_device_there_is_none(tmp_path: Path) -> None:
    """GIVEN the same, drawn on the device
    WHEN it is asked
    THEN there is no problem
    """
    names = run(
        CRITIC.replace("(n, 4))", "(n, 4), device=device)").replace("(0), 1)", "(0), 1, device=device)"), tmp_path
    )
    assert not len(pgk.diagnose(names["f"], *names["args"]))


@pytest.mark.sweep
def test_draws_that_come_at_times_alone_are_not_drawn_ahead(tmp_path: Path) -> None:
    """GIVEN a helper that draws where the host's own numbers decide so
    WHEN a fix is asked for
    THEN no draws of two calls are drawn ahead, and what is launched has eager's numbers
    """
    at_times = CRITIC.replace("    train_critic(real)\n", "    if random.random() < 0.5:\n        train_critic(real)\n")
    assert "with drawn.since(2):" not in launched(at_times, tmp_path).diff


@pytest.mark.sweep
def test_helpers_that_draw_train_and_tell_are_one_graph(tmp_path: Path) -> None:
    """GIVEN a trainer whose critic's method draws, trains and tells, and whose generator trains now and then
    WHEN a fix is asked for
    THEN the critic is in the graph, with its draws before, and what it tells behind, ahead of the generator
    """
    found = rewritten(TRAINER, tmp_path)
    assert found.complete, found
    lines = lines_of(found)
    assert "self.train_critic(real)" in lines
    assert lines.index("def work(loss, self):") < lines.index("self.train_generator(real.clone())")


@pytest.mark.sweep
def test_gradients_that_are_projected_in_a_drawn_order(tmp_path: Path) -> None:
    """GIVEN gradients of three tasks that a shuffle puts in order, and masks of which tasks share a parameter
    WHEN a fix is asked for
    THEN the order comes from before the launch, and both masks are of each place
    """
    found = rewritten(CONFLICTS, tmp_path)
    assert found.complete, found
    assert "grads[:] = torch.stack(list(grads))[drawn(an_order, len(grads))]" in lines_of(found)


@pytest.mark.parametrize(
    "other",
    [
        "torch.stack([g[~mask] for g in grads]).sum(0)",
        pytest.param("sum(g[~mask] for g in grads)", marks=pytest.mark.sweep),
    ],
)
def test_rows_of_one_mask_of_several_tensors(other: str, tmp_path: Path) -> None:
    """GIVEN rows of a mask that are picked of each tensor of a list, and put back there together
    WHEN a fix is asked for
    THEN all rows are computed, and the mask says where
    """
    found = rewritten(STACKED.format(other=other), tmp_path)
    assert found.complete, found
    mean = "torch.stack([g for g in grads]).mean(dim=0)"
    assert f"merged.copy_(torch.where(mask, {mean}, merged))" in lines_of(found)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "other", ["torch.stack([g[~mask] for g in grads]).sum(0).flip(0)", "grads[0][~mask].cumsum(0)"]
)
def test_rows_that_look_at_their_neighbours_are_left(other: str, tmp_path: Path) -> None:
    """GIVEN rows of a mask of which each comes of others
    WHEN a fix is asked for
    THEN that line is not computed for all rows
    """
    assert "torch.where(~mask" not in rewritten(STACKED.format(other=other), tmp_path).diff


def test_what_a_step_draws_comes_in_its_order() -> None:
    """GIVEN what is written for draws within a step
    WHEN they are drawn ahead, and a step asks for them, and what is around it draws, too
    THEN the step has the generator's numbers in its order, others are drawn there, and another size raises
    """
    names: dict[str, Any] = {"torch": torch}
    exec(KEEPER.format(Drawn="Drawn") + ORDER.format(order="an_order", shuffle="list.sort"), names)
    drawn = names["Drawn"]((torch.zeros(2), lambda: torch.rand(2)), (torch.zeros(3), lambda: torch.randn(3)))
    torch.manual_seed(0)
    expected = [torch.rand(2), torch.randn(3), torch.rand(2)]
    torch.manual_seed(0)
    drawn.again()
    with drawn.since(0):
        first = drawn(torch.rand, 2)
    with drawn.since(1):
        second = drawn(torch.randn, (3,))
    seen = [first, second, drawn(torch.rand, 2)]
    assert all(map(torch.equal, seen, expected))
    with pytest.raises(RuntimeError, match="invalid for input of size 2"), drawn.since(0):
        drawn(torch.rand, 4)


def test_what_a_helper_was_given_in_a_list_keeps_no_graph() -> None:
    """GIVEN losses in a list, which a helper that trains is given, and a list of what has no graph
    WHEN they are kept for a trial of that helper
    THEN nothing of the first forward pass lives on, and what has none is the list itself
    """
    weight = torch.ones(2, requires_grad=True)
    losses, plain = [weight.sum(), {"a": weight * 2}], [torch.ones(1), 3]
    kept = _let_go(losses)
    assert [kept[0].grad_fn, kept[1]["a"].grad_fn] == [None, None]
    assert kept[0].requires_grad
    assert _let_go(plain) is plain
