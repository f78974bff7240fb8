"""Training steps that are not rewritten whole: what is told to do instead, with the step's own names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import lines_of, rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

OWN = """\
class Own(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02):
        super().__init__(params, dict(lr=lr, momentum=0.9, nesterov=True))
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                buf = self.state[p].setdefault("buf", torch.zeros_like(p))
                buf.lerp_(p.grad, 1 - group["momentum"])
                g = p.grad.lerp(buf, group["momentum"]) if group["nesterov"] else buf
                p.add_(g, alpha=-group["lr"])
net = nn.Linear(4, 2).to(device)
opt, n = Own(net.parameters()), 0
args = (torch.randn(8, 4, device=device), torch.randn(8, 2, device=device))
def f(x, y):
    global n
    loss = F.mse_loss(net(x), y)
    loss.backward()
    for group in opt.param_groups:
        group["momentum"] = 0.8 + 0.1 * min(n / 20, 1.0)
        group["lr"] = 0.02 / (1 + n)
    opt.step()
    net.zero_grad()
    n += 1
    again = F.mse_loss(net(net(x) @ net.weight), y) + F.mse_loss(net(net(x).tanh() @ net.weight), y)
    return loss.detach(), again.detach()
"""
LAYER = """\
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.drop = nn.Linear(4, 4), 0.4
    def forward(self, x):
        if random.random() < self.drop:
            return x
        return x + self.fc(x) / (1 - self.drop)
blocks = nn.ModuleList([Block(), Block()]).to(device)
args = (torch.randn(3, 4, device=device),)
def f(x):
    for block in blocks:
        x = block(x)
    return x
"""


@pytest.mark.words
def test_numbers_of_a_group_that_are_set_anew_are_told_as_tensors_filled_before_each_launch(tmp_path: Path) -> None:
    # GIVEN an optimizer of one's own, two of whose numbers the step sets WHEN a fix is asked for
    told = "\n".join(rewritten(OWN, tmp_path).instead)
    # THEN both are filled before each launch, nothing constant is told to be decided, and `alpha=` is told
    assert 'as `group["momentum"].fill_(0.8 + 0.1 * min(n / 20, 1.0))`' in told, told
    assert 'group["momentum"] = torch.tensor(group["momentum"], device=device)' in told
    assert 'as `group["lr"].fill_(0.02 / (1 + n))`; once' in told
    assert "a tensor is no `alpha=`" in told
    assert '`p.add_(g * (-group["lr"]))`' in told
    assert "nesterov" not in told.replace('if group["nesterov"] else buf  [', "")


def test_a_layer_that_is_left_out_by_chance_is_told_with_its_own_attributes(tmp_path: Path) -> None:
    # GIVEN a layer whose attribute decides a branch and divides WHEN a fix is asked for THEN the attribute stays one
    told = "\n".join(rewritten(LAYER, tmp_path).instead)
    assert "m.left_out.fill_(bool(random.random() < m.drop))" in told, told
    assert "line 17 as `return torch.where(self.left_out, x, x + self.fc(x) / (1 - self.drop))`" in told


def test_a_weight_that_some_steps_compute_of_gradients_is_told_as_a_tensor_from_its_beginning(tmp_path: Path) -> None:
    # GIVEN a weight that is a mean by numpy of what was read, in some steps WHEN a fix is asked for
    text = """\
net = nn.Linear(4, 2).to(device)
weight, it = 1.0, 0
args = (torch.randn(8, 4, device=device),)
def f(x):
    global weight, it
    one, other = net(x).square().mean(), net(x).abs().mean()
    if it % EVERY == 0:
        size = np.mean([g.abs().mean().item() for g in torch.autograd.grad(one, net.parameters(), retain_graph=True)])
        weight = 0.9 * weight + 0.1 * size
    loss = one + weight * other
    net.zero_grad()
    loss.backward()
    it += 1
    return loss.detach()
"""
    told = "\n".join(rewritten(text.replace("EVERY", "3"), tmp_path).instead)
    # THEN it is told as a tensor that is written where it stands, and no graph for each of its values
    assert "with `weight = torch.tensor(1.0, device=device)` where it begins" in told, told
    # WHEN each step moves it THEN it is told to stay on the device, at the line that reads it
    always = "\n".join(rewritten(text.replace("it % EVERY == 0", "it >= 0"), tmp_path).instead)
    assert "keep `weight` on the device, `weight = torch.tensor(1.0, device=device)` where it begins" in always, always
    assert "`weight.copy_(0.9 * weight + 0.1 * size)`" in always
    assert "give `weight`" not in told + always


PICKED = """\
net = nn.Linear(4, 3).to(device)
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
skipped, shares = 0, []
args = (torch.randn(8, 4, device=device),)
def f(x):
    global skipped
    wrong = net(x).square().sum(1)
    hard = wrong[wrong > 1.0]
    if hard.numel() == 0:
        skipped += 1
        return None
    loss = hard.mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    shares.append(hard.numel() / len(x))
    return loss.detach()
"""


def test_what_a_mask_picks_and_a_step_averages_is_told_as_sums_that_work_when_written(tmp_path: Path) -> None:
    # GIVEN a step that averages what a mask picks, and leaves where that is nothing WHEN a fix is asked for
    told = "\n".join(rewritten(PICKED, tmp_path).instead)
    # THEN the branch is told with what the mask counts, as sums of all stand in the diff
    new = {
        "hard = wrong[wrong > 1.0]": "keep = wrong > 1.0",
        "hard.mean()": "(torch.where(keep, wrong, 0).sum() / keep.sum())",
        "hard.numel()": "keep.sum()",
    }
    assert "`opt.found_inf = ((wrong > 1.0).sum() == 0).float()`" in told, told
    # WHEN they are written so THEN one graph is left, in which the device leaves the step out
    text = PICKED
    for old, mended in new.items():
        text = text.replace(old, mended)
    fix = rewritten(text, tmp_path)
    assert fix.complete, fix
    assert "opt.found_inf = (keep.sum() == 0).float()" in lines_of(fix)


CODES = """\
class Codes(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.randn(6, 3))
        self.register_buffer("counts", torch.rand(6))
        self.revived = 0
    def forward(self, z):
        self.counts.mul_(0.9)
        dead = self.counts < 0.3
        if dead.any():
            n_dead = int(dead.sum())
            self.revived += n_dead
            picks = z[torch.randint(0, z.size(0), (n_dead,), device=z.device)]
            self.rows[dead] = picks
        return self.rows.sum()
codes = Codes().to(device)
args = (torch.randn(8, 3, device=device),)
@torch.no_grad()
def f(z):
    return codes(z)
"""


def test_rows_that_a_branch_makes_for_a_mask_are_told_for_all_rows(tmp_path: Path) -> None:
    # GIVEN rows that are drawn for as many as a mask has WHEN a fix is asked for
    told = "\n".join(rewritten(CODES, tmp_path).instead)
    # THEN they are told for all rows, with other numbers, and the count behind the launch
    assert "`picks = z[torch.randint(0, z.size(0), (dead.shape[0],), device=z.device)]`, but draws" in told, told
    assert "`n_dead = int(dead.sum())` belongs behind the launch" in told
