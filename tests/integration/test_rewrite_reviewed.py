"""Programs whose values turn into others than a trial is shown: a fix is right with these, too, or there is none."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import lines_of, rewritten, run
from tests.programs.running import differences, eager

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

OTHER_VALUES = {
    "places of nan that are listed before they are filled": """
args = (torch.randn(6, 3, device=device),)
def feed(i):
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(i)).to(device)
    if i % 2:
        x[i % 6] = float("nan")
    return (x,)
def f(x):
    out = torch.zeros_like(x)
    bad = x.isnan().any(1).nonzero().flatten().tolist()
    x.nan_to_num_(0.0)
    for i in bad:
        out[i] = x[i] + 1.0
    return out + x
""",
    "copies on the CPU of what is written in place later": """
args = (torch.randn(3, device=device),)
def feed(i):
    x = torch.randn(3, generator=torch.Generator().manual_seed(i))
    if i % 2:
        x[1] = float("nan")
    return (x.to(device),)
def f(x):
    h, rows = x * 1.0, []
    for _ in range(3):
        h = h * 2
        rows.append(h.cpu())
        h.nan_to_num_()
    return torch.stack(rows).to(device) + 1
""",
    "targets of which some are nan, in a loss": """
w = torch.randn(4, device=device, requires_grad=True)
args = (torch.randn(6, 4, device=device), torch.randn(6, device=device))
def feed(i):
    g = torch.Generator().manual_seed(i)
    y = torch.randn(6, generator=g)
    if i % 2:
        y[2] = float("nan")
    return (torch.randn(6, 4, generator=g).to(device), y.to(device))
def f(x, y):
    p = x @ w
    m = ~torch.isnan(y)
    loss = F.mse_loss(p[m], y[m])
    g, = torch.autograd.grad(loss, w)
    return loss.detach(), g
""",
    "targets of which some are nan, in a mean": """
w = torch.randn(4, device=device, requires_grad=True)
args = (torch.randn(6, 4, device=device), torch.randn(6, device=device))
def feed(i):
    g = torch.Generator().manual_seed(i)
    y = torch.randn(6, generator=g)
    if i % 2:
        y[2] = float("nan")
    return (torch.randn(6, 4, generator=g).to(device), y.to(device))
def f(x, y):
    p = x @ w
    m = ~torch.isnan(y)
    loss = (p[m] - y[m]).square().mean()
    g, = torch.autograd.grad(loss, w)
    return loss.detach(), g
""",
    "rows of probabilities of which some are nan": """
w = torch.randn(4, device=device, requires_grad=True)
args = (torch.randn(6, 4, device=device), torch.rand(6, 4, device=device))
def feed(i):
    g = torch.Generator().manual_seed(i)
    y = torch.rand(6, 4, generator=g)
    if i % 2:
        y[2] = float("nan")
    return (torch.randn(6, 4, generator=g).to(device), y.to(device))
def f(x, y):
    p = (x * w).log_softmax(-1)
    m = ~torch.isnan(y).any(-1)
    one, other = p[m], y[m]
    loss = F.kl_div(one, other, reduction="batchmean")
    g, = torch.autograd.grad(loss, w)
    return loss.detach(), g
""",
    "rows of which one is nan, for another expert": """
E, D = 3, 4
experts = nn.ModuleList(nn.Linear(D, D) for _ in range(E)).to(device)
args = (torch.randn(9, D, device=device), torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2], device=device))
def feed(i):
    g = torch.Generator().manual_seed(i)
    top = torch.randint(0, 3, (9,), generator=g)
    x = torch.randn(9, D, generator=g)
    if i % 2:
        x[4] = float("nan")
    return (x.to(device), top.to(device))
def f(x, top):
    for p in experts.parameters():
        p.grad = None
    x = torch.where(x == x, x, x)
    counts = torch.bincount(top, minlength=E)
    order = top.argsort()
    parts = x[order].split(counts.tolist())
    out = torch.cat([experts[e](part) for e, part in enumerate(parts)])
    out.square().sum().backward()
    return [p.grad.clone() for p in experts.parameters()]
""",
    "means over rows that are alike, of which none was in the trial": """
args = (torch.randint(0, 9000, (8,), device=device), torch.randn(8, 3, device=device))
W = torch.randn(3, 3, device=device, requires_grad=True)
def feed(i):
    g = torch.Generator().manual_seed(i)
    return (torch.randint(0, 3, (8,), generator=g).to(device), torch.randn(8, 3, generator=g).to(device))
def f(v, p):
    u, inv = torch.unique(v, return_inverse=True)
    sums = torch.zeros(len(u), 3, device=device).index_add_(0, inv, p)
    cnt = torch.zeros(len(u), device=device).index_add_(0, inv, torch.ones(8, device=device))
    means = sums / cnt[:, None]
    loss = (means @ W)[inv].square().sum()
    g, = torch.autograd.grad(loss, W)
    return loss.detach(), g
""",
    "segments without rows, whose experts an optimizer leaves alone": """
E, D = 3, 4
experts = nn.ModuleList(nn.Linear(D, D) for _ in range(E)).to(device)
opt = torch.optim.AdamW(experts.parameters(), lr=0.1, weight_decay=0.5, capturable=True)
args = (torch.randn(9, D, device=device), torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2], device=device))
def feed(i):
    g = torch.Generator().manual_seed(i)
    top = torch.randint(0, 2 if i > 2 else 3, (9,), generator=g)
    return (torch.randn(9, D, generator=g).to(device), top.to(device))
def f(x, top):
    opt.zero_grad()
    counts = torch.bincount(top, minlength=E)
    order = top.argsort()
    tokens = x[order]
    outs, start = [], 0
    for i, n in enumerate(counts.tolist()):
        end = start + n
        if n == 0:
            continue
        outs.append(experts[i](tokens[start:end]))
        start = end
    loss = torch.cat(outs).square().mean()
    loss.backward()
    opt.step()
    return loss.detach()
""",
    "heads that nobody has chosen, which an optimizer leaves alone": """
E, D = 3, 4
heads = nn.ModuleList(nn.Linear(D, D) for _ in range(E)).to(device)
opt = torch.optim.AdamW(heads.parameters(), lr=0.1, weight_decay=0.5, capturable=True)
args = (torch.randn(9, D, device=device), torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2], device=device))
def feed(i):
    g = torch.Generator().manual_seed(i)
    top = torch.randint(0, 2 if i > 2 else 3, (9,), generator=g)
    return (torch.randn(9, D, generator=g).to(device), top.to(device))
def f(x, top):
    opt.zero_grad()
    out = torch.zeros_like(x)
    for e in top.unique():
        m = top == e
        out[m] = heads[e](x[m])
    loss = out.square().mean()
    loss.backward()
    opt.step()
    return loss.detach()
""",
    "numbers that are close, of which some are infinite": """
args = (torch.randn(6, device=device), torch.randn(6, device=device))
def feed(i):
    g = torch.Generator().manual_seed(i)
    x, y = torch.randn(6, generator=g), torch.randn(6, generator=g)
    x[0] = y[0] = float("inf"); y[1] = float("inf")
    return (x.to(device), y.to(device))
def f(x, y):
    s = x[2:].std().item()
    return torch.isclose(x, y, atol=s)
""",
    "a smooth step of half precision whose product has no room": """
args = (torch.randn(6, device=device).half(),)
def feed(i):
    g = torch.Generator().manual_seed(i)
    return ((torch.randn(6, generator=g) * 1000).to(device).half(),)
def f(x):
    b = (x * 0 + 200).max().item()
    return F.softplus(x, beta=b)
""",
    "the smallest of those kept, of which one is nan": """
args = (torch.randn(6, device=device),)
def feed(i):
    x = torch.randn(6, generator=torch.Generator().manual_seed(i))
    x[0] = 1.0
    if i % 2: x[0] = float("nan")
    return (x.to(device),)
def f(x):
    keep = ~(x < -0.1)
    return x[keep].sort()[0][:9].sum()
""",
    "columns from a number on that falls below zero": """
args = (torch.randn(3, 9, device=device), torch.tensor(6, device=device))
def feed(i):
    g = torch.Generator().manual_seed(i)
    return (torch.randn(3, 9, generator=g).to(device), torch.tensor(i % 5 + 2, device=device))
def f(x, n):
    y = x.clone()
    y[:, n - 4:] = 0.0
    return y * 2
""",
    "rows up to a number that falls below zero": """
args = (torch.randn(9, 3, device=device), torch.tensor(6, device=device))
def feed(i):
    g = torch.Generator().manual_seed(i)
    return (torch.randn(9, 3, generator=g).to(device), torch.tensor(i % 5 + 2, device=device))
def f(x, n):
    y = x.clone()
    y[: n - 4] *= 0.5
    return y * 2
""",
    "segments that leave rows at the end to nobody": """
args = (torch.randn(6, 3, device=device), torch.tensor([2, 3, 1], device=device))
def feed(i):
    g = torch.Generator().manual_seed(i)
    counts = torch.tensor([[2, 3, 1], [1, 2, 1], [3, 0, 1]][i % 3])
    return (torch.randn(6, 3, generator=g).to(device), counts.to(device))
@torch.no_grad()
def f(x, counts):
    outs, start = [], 0
    for i, n in enumerate(counts.tolist()):
        outs.append(x[start:start + n] * 2)
        start += n
    return torch.cat(outs).mean(0)
""",
    "what is put by a mask, whose gradient elsewhere is no number": """
w = torch.ones(4, 2, device=device, requires_grad=True)
args = (torch.rand(4, 2, device=device) + 0.5,)
def feed(i):
    x = torch.rand(4, 2, generator=torch.Generator().manual_seed(i)) + 0.5
    x[i % 4] = 0
    return (x.to(device),)
def f(x):
    w.grad = None
    v = w * x
    mask = (v > 0).all(1)
    out = torch.zeros_like(v)
    out[mask] = 1.0 / v[mask]
    out.sum().backward()
    return w.grad * 1
""",
    "a count beside the branch that asks for any, and a logarithm in a helper": """
w = torch.ones(4, device=device, requires_grad=True)
args = (torch.rand(4, device=device) + 0.5, torch.tensor([True, False, True, True], device=device))
def feed(i):
    x = torch.rand(4, generator=torch.Generator().manual_seed(i)) + 0.5
    x[i % 4] = 0.1 - 0.1 * (i % 2)
    return (x.to(device), torch.zeros(4, dtype=torch.bool, device=device) if i % 3 else x.to(device) > 0.6)
def entropy(p):
    return -(p * p.log()).sum()
def f(x, positive):
    w.grad = None
    p = w * x
    n = positive.sum()
    loss = p.mean()
    if positive.any():
        loss = loss + (p * positive).sum() / n
    if (p > 0).all():
        loss = loss + entropy(p)
    loss.backward()
    return w.grad * 1
""",
    "a module that divides by how many a mask has": """
class Head(nn.Module):
    def forward(self, total, n):
        return total / n
head = Head()
w = torch.ones(4, device=device, requires_grad=True)
args = (torch.rand(4, device=device) + 0.5, torch.tensor([True, False, True, True], device=device))
def feed(i):
    x = torch.rand(4, generator=torch.Generator().manual_seed(i)) + 0.5
    return (x.to(device), torch.arange(4, device=device) < i % 3)
def f(x, m):
    w.grad = None
    v = w * x
    loss = v.mean()
    if m.any():
        loss = loss + head((v * m).sum(), m.sum())
    loss.backward()
    return w.grad * 1
""",
    "means of what is too much for float16 where it is added up": """
args = (torch.rand(1000, 3, device=device).half(), torch.arange(1000, device=device) > 100)
def feed(i):
    rows = torch.rand(1000, 3, generator=torch.Generator().manual_seed(i)) * 200 + 100
    return (rows.half().to(device), torch.arange(1000, device=device) > i)
def f(x, mask):
    kept = x[mask]
    loss = F.mse_loss(x[mask] / 300, x[mask] / 200)
    return kept.mean(), kept.mean(0) + 1, (x - 1)[mask].mean(), x[:, 0][mask].std(), loss
""",
}


# Every third at each change; `make sweeps` takes the others.
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.sweep] * (n % 3 > 0)) for n, each in enumerate(OTHER_VALUES)]
)
def test_a_fix_is_right_with_values_that_its_program_does_not_begin_with(name: str, tmp_path: Path) -> None:
    # GIVEN a step whose later inputs have empty classes, or nan WHEN it is rewritten THEN ten such steps give the same
    rewritten(OTHER_VALUES[name], tmp_path)


@pytest.mark.parametrize(
    "name", ["targets of which some are nan, in a loss", "targets of which some are nan, in a mean"]
)
def test_what_a_mask_of_nan_leaves_out_has_zeros_for_gradients(name: str, tmp_path: Path) -> None:
    # GIVEN a loss of targets of which a mask leaves out those that are nan WHEN it is rewritten
    found = rewritten(OTHER_VALUES[name], tmp_path)
    # THEN it is whole, and the loss is computed of zeros there, whose gradients are numbers
    assert found.complete, found
    assert any("torch.where(m, p, 0)" in line and "torch.where(m, y, 0)" in line for line in lines_of(found)), found


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "what is put by a mask, whose gradient elsewhere is no number",
            "out.copy_(torch.where(mask[..., None], 1.0 / torch.where(mask[..., None], v, 1), out))",
        ),
        ("means of what is too much for float16 where it is added up", ".sum(-1, dtype=torch.float32)"),
        (
            "a count beside the branch that asks for any, and a logarithm in a helper",
            "/ torch.where(positive.any(), n, 1), loss)",
        ),
    ],
)
def test_what_a_mask_leaves_out_and_what_it_adds_up_stay_numbers(name: str, line: str, tmp_path: Path) -> None:
    # GIVEN a quotient that has no gradient elsewhere, or means of float16 WHEN they are rewritten
    found = rewritten(OTHER_VALUES[name], tmp_path)
    # THEN they are whole, the divisor is 1 elsewhere, and what is added up has room
    assert found.complete, found
    assert line in "".join(lines_of(found)), found


PICKED = {
    "rows": """
w = torch.randn(4, device=device, requires_grad=True)
args = (torch.randn(4, 4, device=device), torch.randn(4, 4, device=device))
def feed(i):
    g = torch.Generator().manual_seed(i)
    y = torch.randn(4, 4, generator=g)
    y[i % 4, 2] = float("nan")
    return (torch.randn(4, 4, generator=g).to(device), y.to(device))
def f(x, y):
    p = x * w
    loss = F.mse_loss(p[~y.isnan().any(1)], y[~y.isnan().any(1)])
    g, = torch.autograd.grad(loss, w)
    return loss.detach(), g
""",
    "elements": """
w = torch.randn(4, device=device, requires_grad=True)
args = (torch.randn(4, 4, device=device), torch.randn(4, device=device))
def feed(i):
    g = torch.Generator().manual_seed(i)
    y = torch.randn(4, generator=g)
    y[i % 4] = float("nan")
    return (torch.randn(4, 4, generator=g).to(device), y.to(device))
def f(x, y):
    p = x @ w
    loss = F.mse_loss(p[y == y], y[y == y])
    g, = torch.autograd.grad(loss, w)
    return loss.detach(), g
""",
}


@pytest.mark.parametrize("name", PICKED)
def test_words_for_a_loss_of_what_a_mask_picks_give_its_mean_and_gradients(name: str, tmp_path: Path) -> None:
    # GIVEN what is told for a loss of rows, or elements, that are not nan
    text = PICKED[name]
    truth, names = eager(run(text, tmp_path), "f"), run(text, tmp_path)
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    before, instead = re.findall(r"`([^`]+)`", next(line for line in fix.instead if "give the same mean" in line))[-2:]
    # WHEN it is followed to the letter THEN ten steps give the same
    followed = re.sub(r"^    loss = .+$", lambda _: f"    {before}\n    loss = {instead}", text, flags=re.M)
    assert not differences(truth, eager(run(followed, tmp_path), "f"), set())


SIZES = {
    "all of it one number": ("torch.full((5,), 2.0)", "torch.histc(x, bins=4)"),
    "twice the precision": ("torch.arange(6.0).double()", "torch.histc(x, bins=3)"),
    "short whole numbers": ("torch.tensor([1, 0, 2, 1], dtype=torch.int32)", "torch.bincount(x)"),
}


@pytest.mark.parametrize("name", SIZES)
def test_words_for_bounds_that_the_device_finds_give_the_same_counts(name: str, tmp_path: Path) -> None:
    # GIVEN what is told for a histogram, or counts, of values at the edge of what is common
    given, call = SIZES[name]
    text = f"args = ({given}.to(device),)\nn = 3\ndef f(x):\n    out = {call}\n    return out\n"
    names = run(text, tmp_path)
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert fix is not None
    told = "\n".join(fix.instead)
    parts = re.findall(r"`([^`]+)`", told)
    before = next((part for part in parts if part.startswith("low, high")), "pass")
    instead = next(part for part in parts if part.startswith("torch.zeros("))
    # WHEN it is followed to the letter THEN it counts the same, of the same type
    followed = run(text.replace(call, instead).replace("    out", f"    {before}\n    out", 1), tmp_path)
    wanted, seen = names["f"](*names["args"]), followed["f"](*followed["args"])
    assert seen.dtype == wanted.dtype
    assert torch.equal(seen.cpu(), wanted.cpu())
