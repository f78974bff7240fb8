"""Fixes that compute all rows, all rounds and all steps, and leave out what is not meant on the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import Fixed, lines_of, rewritten, run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

WHOLE = {
    "rows up to a length, and masks of lengths": (
        """
args = (torch.randn(3, 5, 4, device=device), torch.tensor([2, 5, 3], device=device))
@torch.no_grad()
def f(x, lengths):
    means, most = [], []
    pad = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
    for b in range(len(x)):
        n = int(lengths[b])
        some = x[b, :n].relu()
        means.append(some.mean(dim=0))
        most.append(some.max(dim=0).values)
    for i, n in enumerate(lengths.tolist()):
        pad[i, n:] = True
    return torch.stack(means), torch.stack(most), x.masked_fill(pad[..., None], 0.0)
""",
        ["some = x[b].relu()", "pad[i].masked_fill_(torch.arange(pad.shape[1], device=pad.device) >= n, True)"],
    ),
    "what a mask picks, asked for more than a sum": (
        """
args = (torch.rand(8, 4, device=device), torch.rand(8, device=device).clamp(max=0.9))
@torch.no_grad()
def f(boxes, scores):
    keep = scores > 0.3
    some = scores[keep]
    return some.max(), some.std(), torch.log(some).sum(), boxes[keep].amin(0), torch.mean(scores[keep])
""",
        ["some = scores"],
    ),
    "experts that count the tokens which they get": (
        """
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.load = [0] * 3
    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            tok, nth = torch.where(chosen == i)
            self.load[i] += len(tok)
            out[tok] += weights[tok, nth, None] * expert(x[tok])
        return out
moe = Experts().to(device)
args = (torch.randn(6, 4, device=device),)
@torch.no_grad()
def f(x):
    return moe(x)
""",
        ["later.append((chosen, i, self))", "self.load[i] += int((chosen == i).sum())"],
    ),
    "rows of a mask that are put back by it": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)
    def forward(self, x):
        return self.second(F.relu(self.first(x)))
net = Net().to(device)
args = (torch.randn(6, 4, device=device), torch.rand(6, device=device) < 0.4)
def f(x, done):
    going = ~done
    some = x[going]
    best = torch.zeros(len(x), device=x.device)
    with torch.no_grad():
        best[going] = net(some).max(1).values
    return best
""",
        ["some = torch.where(going[..., None], x, 0)", "best.copy_(torch.where(going, net(some).max(1).values, best))"],
    ),
    "a schedule beside Nesterov's momentum, which is added to the gradients": (
        """
net = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
sched = torch.optim.lr_scheduler.StepLR(opt, 2)
args = (torch.randn(4, 4, device=device),)
def f(x):
    opt.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    opt.step()
    sched.step()
    return loss.detach()
""",
        ["momentum=0.9, nesterov=True, fused=True)", "def after_f():  # after each launch"],
    ),
    "rows that modules of losses are given": (
        """
net, criterion = nn.Linear(4, 3).to(device), nn.MSELoss()
args = (torch.randn(6, 4, device=device), torch.tensor([0, 1, 2, 2, 1, 0], device=device))
def f(x, y):
    loss_fct = nn.CrossEntropyLoss()
    logits = net(x)
    active = y.view(-1) != 1
    active_logits = logits.view(-1, 3)[active]
    active_labels = y.view(-1)[active]
    loss = loss_fct(active_logits, active_labels)
    return loss + criterion(logits[active], x[:, :3][active])
""",
        [
            (
                "loss = loss_fct(torch.where(active[..., None], active_logits, 0).flatten(0, -2), "
                "torch.where(active, active_labels, -100).flatten())"
            )
        ],
    ),
    "Adagrad, made in another function, whose rate falls with its own count": (
        """
net = nn.Linear(4, 1).to(device)
def made(parameters):
    return torch.optim.Adagrad(parameters, lr=0.1, lr_decay=0.1)
opt, losses = made(net.parameters()), []
args = (torch.randn(4, 4, device=device),)
def f(x):
    opt.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    opt.step()
    losses.append(loss.item())
""",
        ["return torch.optim.Adagrad(parameters, lr=0.1, lr_decay=0.1, fused=True)"],
    ),
    "one row after the other is marked": (
        """
args = (torch.tensor([2, 0, 1], device=device),)
def f(labels):
    marked = torch.zeros(3, 4, device=labels.device)
    for i, label in enumerate(labels):
        marked[i, label] = 1
    return marked
""",
        ["marked[i].index_fill_(0, label.reshape(1), 1)"],
    ),
    "a ring along another dimension": (
        """
ring, at = torch.randn(4, 8, device=device), torch.zeros(1, dtype=torch.long, device=device)
args = (torch.randn(2, 4, device=device),)
def f(keys):
    n = len(keys)
    ptr = int(at)
    ring[:, ptr : ptr + n] = keys.T
    ptr = (ptr + n) % 8
    at[0] = ptr
    return ring.sum(0)
""",
        ["ring[:, ptr + torch.arange(n, device=ring.device)] = keys.T"],
    ),
    "what is made like another tensor": (
        """
args = (torch.randn(6, device=device),)
def f(x):
    z = torch.linspace(0.0, 1.0, 6).to(x)
    for i in range(2):
        z = z + torch.tensor(2.0**i).to(x) * x
    return z
""",
        ["z = torch.linspace(0.0, 1.0, 6, device=x.device).to(x)", "torch.full((), 2.0**i, device=x.device).to(x) * x"],
    ),
    "experts that are given their rows": (
        """
experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)).to(device)
router = nn.Linear(4, 3).to(device)
args = (torch.randn(6, 4, device=device),)
def f(x):
    weights, chosen = router(x).softmax(-1).topk(2)
    out = torch.zeros_like(x)
    for e, expert in enumerate(experts):
        tok, k = torch.where(chosen == e)
        if len(tok) == 0:
            continue
        made = expert(x[tok])
        out[tok] += weights[tok, k, None] * made
    return out
""",
        ["made = expert(x)", "(weights * (chosen == e)).sum(-1)[:, None] * made, 0)"],
    ),
    "an optimizer's step that a value decides": (
        """
net = nn.Linear(4, 1).to(device)
opt = torch.optim.Adam(net.parameters(), lr=0.1)
args = (torch.randn(4, 4, device=device),)
def f(x):
    opt.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    if torch.isfinite(loss) and loss > 0.3:
        opt.step()
    return loss.detach()
""",
        ["opt.found_inf = torch.logical_not((torch.isfinite(loss)) & (loss > 0.3)).float()", "opt.step()"],
    ),
    "what the host decides at the beginning": (
        """
net, target = nn.Linear(4, 2).to(device), nn.Linear(4, 2).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
n = 0
args = (torch.randn(4, 4, device=device),)
def f(x):
    global n
    n += 1
    if n % 2 == 0:
        target.load_state_dict(net.state_dict())
    opt.zero_grad()
    loss = F.mse_loss(net(x), target(x).detach())
    loss.backward()
    opt.step()
    return loss.detach()
""",
        ["def before_f():  # before each launch"],
    ),
    "what the host decides in the middle, behind what reads none of it": (
        """
class Agent:
    def __init__(self):
        self.q, self.target, self.n = nn.Linear(4, 2).to(device), nn.Linear(4, 2).to(device), 0
    def loss(self, x):
        q = self.q(x).max(1).values
        self.n += 1
        if self.n % 2 == 0:
            self.target.load_state_dict(self.q.state_dict())
        with torch.no_grad():
            y = 0.9 * self.target(x).max(1).values
        return F.mse_loss(q, y)
args = (torch.randn(4, 4, device=device),)
f = Agent().loss
""",
        ["def before_loss(self):  # before each launch", "q = self.q(x).max(1).values"],
    ),
    "a mean of the rounds that are kept": (
        """
args = (torch.randint(0, 4, (40,), device=device), torch.randint(0, 4, (40,), device=device))
def f(pred, target):
    ious = []
    for c in range(5):
        both = ((pred == c) & (target == c)).sum()
        union = ((pred == c) | (target == c)).sum()
        if union == 0:
            continue
        ious.append(both / union)
    return sum(ious) / len(ious)
""",
        ["skipped = union == 0", "kept.append(torch.logical_not(skipped))",
         "return (torch.stack(ious).sum(0) / torch.stack(kept).sum())"],
    ),
    "a filter in the order of a sort": (
        """
args = (torch.randn(10, device=device),)
def f(logits):
    ranked, order = torch.sort(logits, descending=True)
    gone = ranked.softmax(-1).cumsum(-1) > 0.8
    at = order[gone]
    logits[at] = -float("inf")
    return logits.softmax(-1)
""",
        ["at = torch.zeros_like(gone).scatter_(-1, order, gone)", 'logits.masked_fill_(at, -float("inf"))'],
    ),
    "a ring with its place in a buffer": (
        """
data, at = torch.zeros(8, 3, device=device), torch.zeros(1, dtype=torch.long, device=device)
args = (torch.randn(2, 3, device=device),)
def f(x):
    n = int(at)
    data[n : n + 2] = x
    at[0] = (n + 2) % 8
    return data.sum(0)
""",
        ["n = at.clone().squeeze().long()", "data[n + torch.arange(2, device=data.device)] = x"],
    ),
    "rounds that are counted, and may end early": (
        """
args = (torch.randn(4, device=device),)
def f(x):
    n = 0
    while n < 5:
        x = x * 0.7
        n += 1
        if (x.abs() < 0.5).all():
            break
    return x
""",
        ["x = torch.where(done, x, x * 0.7)", "done = done | (x.abs() < 0.5).all()"],
    ),
    "numbers of a list, each clamped": (
        """
args = (torch.randint(0, 2, (5, 5), device=device).float(),)
def f(adj):
    inv = torch.tensor([1.0 / max(d, 1.0) for d in adj.sum(1).tolist()], device=device)
    return adj * inv[:, None]
""",
        ["inv = torch.stack([1.0 / d.clamp(min=1.0) for d in adj.sum(1).unbind()])"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "lines"), WHOLE.values(), ids=WHOLE)
def test_all_is_computed_and_what_is_not_meant_left_out(text: str, lines: list[str], fixed: Fixed) -> None:
    # GIVEN a program whose values decide what is computed WHEN rewritten THEN it is whole, in these lines
    found = fixed(text)
    assert found.complete, str(found)
    assert all(any(line.endswith(wanted) for line in lines_of(found)) for wanted in lines), lines_of(found)


LEFT = {
    "rows that others change": (
        """
class Net(nn.Module):
    def forward(self, x):
        return x - x.mean(0)
net = Net().to(device)
args = (torch.randn(6, 4, device=device), torch.rand(6, device=device) < 0.4)
def f(x, done):
    best = torch.zeros(len(x), device=x.device)
    some = x[done]
    best[done] = net(some).max(1).values
    return best
""",
        "some = x[done]",
    ),
    "experts that see all of their rows": (
        """
class Centred(nn.Linear):
    def forward(self, x):
        return super().forward(x - x.mean(0))
experts = nn.ModuleList(Centred(4, 4) for _ in range(2)).to(device)
args = (torch.randn(12, 4, device=device), torch.randint(0, 2, (12, 1), device=device))
def f(x, chosen):
    out = torch.zeros_like(x)
    for e in range(2):
        tok, k = torch.where(chosen == e)
        out.index_add_(0, tok, experts[e](x[tok]))
    return out
""",
        "torch.where(",
    ),
    "gradients that are set to None before some steps": (
        """
net = nn.Linear(4, 1).to(device)
n = 0
args = (torch.randn(4, 4, device=device),)
def f(x):
    global n
    n += 1
    if n % 50 == 1:
        net.zero_grad()
    net(x).square().mean().backward()
    return net.weight.grad.sum()
""",
        "+def before_f",
    ),
    "a momentum whose first step takes more of the gradient": (
        """
net = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, dampening=0.5)
args = (torch.randn(4, 4, device=device),)
def f(x):
    opt.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    if loss > 0.3:
        opt.step()
    return loss.detach()
""",
        "found_inf",
    ),
}


@pytest.mark.parametrize(("text", "word"), LEFT.values(), ids=LEFT)
def test_what_would_not_be_the_same_is_left(text: str, word: str, fixed: Fixed) -> None:
    # GIVEN a program in which what is left out would be seen WHEN rewritten THEN it is done in another way, or left
    assert word not in fixed(text).diff


ADVICE = {
    "a cache": (
        """
past = []
args = (torch.randn(1, 4, device=device),)
@torch.no_grad()
def f(k):
    past.append(k)
    return torch.cat(past).sum(0)
""",
        "`past` grows at each step, and a graph has one size",
    ),
    "what follows one another": (
        """
args = (torch.randint(0, 3, (12,), device=device),)
def f(x):
    return torch.unique_consecutive(x)
""",
        "`keep = torch.cat([x.new_ones(1, dtype=torch.bool), x[1:] != x[:-1]])` marks what it keeps",
    ),
    "a loss that is no number": (
        """
net = nn.Linear(4, 1).to(device)
opt = torch.optim.Adam(net.parameters(), lr=0.1)
args = (torch.randn(4, 4, device=device),)
def f(x):
    loss = net(x).square().mean()
    if not torch.isfinite(loss):
        return None
    for p in net.parameters():
        p.grad = None
    loss.backward()
    opt.step()
    return loss.detach()
""",
        "write `opt.found_inf = (torch.logical_not(torch.isfinite(loss))).float()` before `opt.step()` at line",
    ),
}


@pytest.mark.parametrize(("text", "wanted"), ADVICE.values(), ids=ADVICE)
def test_what_grows_or_ends_is_told_with_what_to_write(text: str, wanted: str, fixed: Fixed) -> None:
    # GIVEN a line that no rewrite is safe for WHEN left to the user THEN it says what to write, in the user's names
    found = fixed(text)
    assert any(wanted in line for line in found.instead), str(found)


HARDEST = """
labels = torch.tensor([0, 0, 1, 1], device=device)
args = (torch.randn(4, 3, device=device),)
def f(x):
    d = torch.cdist(x, x)
    same = labels[:, None] == (labels + 0 * (x[:, 0] > 9))[None]
    far, near = [], []
    for i in range(len(x)):
        far.append(d[i][same[i]].max())
        near.append(d[i][~same[i]].min())
    return F.relu(torch.stack(far) - torch.stack(near) + 0.3).mean()
"""


def test_a_row_of_a_mask_picks_as_a_mask_does_and_its_number_is_none(tmp_path: Path) -> None:
    # GIVEN the hardest of each row, picked by a row of a mask WHEN it is rewritten
    fix = rewritten(HARDEST, tmp_path)
    # THEN both are taken of all, and the row's number is taken for no mask
    assert fix.complete, fix
    assert "far.append(torch.where(same[i], d[i].movedim(0, -1), -math.inf).max())" in lines_of(fix)
    assert "near.append(torch.where(~same[i], d[i].movedim(0, -1), math.inf).min())" in lines_of(fix)


SPREAD = """
args = (torch.arange(6.0, device=device),)
def f(x):
    return x[x > 2].var(), x[x > 2].std()
"""


def test_the_spread_of_no_row_is_no_number_as_eager_has_it(tmp_path: Path) -> None:
    # GIVEN the spread of what a mask picks WHEN it is rewritten, and the mask picks one row, or none
    names = run(SPREAD, tmp_path)
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert fix.complete, fix
    with fix.applied():
        for rows in (torch.zeros(4), torch.tensor([3.0, 0.0])):
            # THEN it is no number
            assert all(part.isnan() for part in names["f"](rows.to(pgk.device())))
