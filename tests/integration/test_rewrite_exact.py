"""Numbers that decide stay what Python makes of them, where they stay on the device: at the edges, too."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import paramgraph_kit as pgk
from tests.integration.rewritten import lines_of, run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

# What is written, and inputs at which float32, or a narrow type, would decide otherwise.
EDGES = {
    "a threshold": (
        """
args = (torch.randn(1, device=device), torch.randn(3, device=device))
def f(x, y):
    total = x.sum().item()
    if total > 0.1:
        return y * 2
    return y if x.max().item() < 0.7 else y * 4
others = [(torch.tensor([v], device=device), torch.ones(3, device=device)) for v in (0.1, 0.7)]
""",
        "total = x.sum().detach().double()",
    ),
    "a part of a count": (
        """
args = (torch.rand(40, device=device) - 0.5, torch.randn(40, device=device))
def f(p, x):
    n = (p > 0).sum().item()
    most, least = math.ceil(n * 0.3), int(n * 0.29)
    ranks = p.argsort(descending=True).argsort()
    return x * (ranks < most), x * (ranks < least)
others = [(torch.rand(n, device=device) + 0.1, torch.ones(n, device=device)) for n in (50, 90, 100)]
""",
        "n = (p > 0).sum().detach().double()",
    ),
    "a part that scales a loss as well": (
        """
args = (torch.randn(10, device=device), torch.rand(10, device=device) > 0.3)
def f(x, m):
    n = m.sum().item()
    part = n / m.numel()
    loss = (x * m).sum() / n
    if part > 0.7:
        loss = loss * 0.5
    return loss
others = [(torch.ones(10, device=device), torch.arange(10, device=device) < n) for n in (7, 8)]
""",
        "part = n.double() / m.numel()",
    ),
    "numbers of a list": (
        """
args = (torch.rand(4, device=device), torch.randn(3, device=device))
def f(s, y):
    out = y * 0
    for i, v in enumerate(s.tolist()):
        if v > 0.3:
            out = out + y * i
    return out
others = [(torch.tensor([0.1, 0.3, 0.4, 0.3], device=device), torch.ones(3, device=device))]
""",
        "for i, v in enumerate(s.double().unbind()):",
    ),
    "what ends a loop": (
        """
args = (torch.randn(4, device=device),)
def f(x):
    for _ in range(5):
        if x.abs().max().item() <= 0.1:
            break
        x = x * 0.5
    return x
others = [(torch.tensor([v], device=device),) for v in (0.2, 0.4)]
""",
        "done = done | (x.abs().max().double() <= 0.1)",
    ),
    "whole numbers of a narrow type": (
        """
args = (torch.tensor([4, 5], device=device, dtype=torch.int32), torch.tensor([4], device=device).byte())
def f(a, b):
    n, m = a.max().item(), b.max().item()
    return torch.ones(3, device=a.device) * (n * n), torch.ones(3, device=a.device) * (m + m)
others = [(torch.tensor([70000], device=device, dtype=torch.int32), torch.tensor([200], device=device).byte())]
""",
        "n, m = a.max().detach().long(), b.max().detach().long()",
    ),
    "rows of tensors of which one is named as the end of another": (
        """
w = torch.randn(3, device=device).requires_grad_()
args = (torch.randn(4, 3, device=device), torch.randn(4, 3, device=device), torch.rand(4, 3, device=device) > 0.3)
def f(a_x, x, m):
    loss = (x[m] * a_x[m]).sum() * w.sum()
    loss.backward()
    return loss.detach()
others = [(torch.ones(2, 3, device=device), torch.ones(2, 3, device=device), torch.eye(3, device=device)[:2] > 0)]
""",
        "loss = torch.where(m, torch.where(m, x, 0) * torch.where(m, a_x, 0), 0).sum() * w.sum()",
    ),
    "a power that is taken from one": (
        """
args = (torch.randn(3, device=device), torch.ones((), device=device))
def f(v, step):
    t = step.item()
    return v / (1 - 0.9999 ** t)
others = [(torch.ones(3, device=device), torch.tensor(t, device=device)) for t in (1.0, 2.0)]
""",
        "t = step.detach().double()",
    ),
    "a threshold of a helper's": (
        """
args = (torch.randn(1, device=device), torch.randn(3, device=device))
def is_large(value, limit=0.1):
    return value > limit
def f(x, y):
    total = x.sum().item()
    return y * 2 if is_large(total) else y
others = [(torch.tensor([0.1], device=device), torch.ones(3, device=device))]
""",
        "total = x.sum().detach().double()",
    ),
    "a whole number that is at least another": (
        """
args = (torch.randn(20, device=device),)
def f(x):
    least = max(4, int((x > 0).float().sum().item() * 0.3))
    return x * (torch.arange(len(x), device=device) < least)
others = [(torch.ones(n, device=device),) for n in (5, 20, 50)]
""",
        "least = ((x > 0).float().sum().detach().double() * 0.3).long().clamp(min=4)",
    ),
    "rows whose mean gets their name": (
        """
args = (torch.randn(6, device=device), torch.rand(6, device=device) > 0.3)
def f(x, m):
    h = x[m]
    h = h.mean()
    return h * x
others = [
    (torch.ones(3, device=device), torch.tensor([True, False, False], device=device)),
    (torch.full((900,), 99.0, device=device).half(), torch.ones(900, dtype=torch.bool, device=device)),
]
""",
        "h = (torch.where(m, h.movedim(0, -1), 0).sum(dtype=torch.float32) / (h[0].numel() * m.sum())).type_as(h)",
    ),
    "a mean of no row, put where all rows are nan": (
        """
args = (torch.tensor([[1.0, 2.0], [float("nan"), 1.0], [3.0, 4.0]], device=device),)
def f(x):
    bad = torch.isnan(x).any(1)
    if bad.any():
        x[bad] = x[~bad].mean(0)
    return x
others = [(torch.full((2, 2), float("nan"), device=device),)]
""",
        (
            "x.copy_(torch.where(bad[..., None], (torch.where(~bad, x.movedim(0, -1), 0).sum(-1, dtype=torch.float32)"
            " / (~bad).sum()).type_as(x), x))"
        ),
    ),
    "a part of the largest, which the next step compares with": (
        """
class Gate:
    def __init__(self):
        self.low = 0.5
    def __call__(self, x):
        y = torch.where(x > self.low, x, 0.0)
        self.low = x.max().item() * 0.1
        return y
gate = Gate()
args = (torch.rand(6, device=device),)
def f(x):
    return gate(x)
others = []
""",
        "self.low.fill_(x.max().detach().double() * 0.1)",
    ),
    "a sum that ends a loop": (
        """
args = (torch.rand(6, device=device),)
def f(c):
    total, k = 0.0, 0
    for i in range(len(c)):
        total += c[i].item()
        if total > 0.3:
            break
        k = i + 1
    return c * k + total
others = [(torch.full((6,), part, device=device),) for part in (0.1, 0.05, 0.3)]
""",
        "total = torch.where(done, total, total + c[i].detach().double())",
    ),
    "gradients of rows that a mask leaves out": (
        """
args = (torch.randn(4, 3, device=device).requires_grad_(), torch.tensor([0, 1, 2, 0], device=device),
        torch.tensor([True, False, True, True], device=device))
def f(x, y, m):
    loss = F.cross_entropy(x[m], y[m])
    loss.backward()
    return loss.detach()
others = [(torch.tensor([[1.0, 2, 3], [float("inf"), 1, 2]], device=device).requires_grad_(),
           torch.tensor([0, 1], device=device), torch.tensor([True, False], device=device))]
""",
        "loss = F.cross_entropy(torch.where(m[..., None], x, 0).flatten(0, -2), torch.where(m, y, -100).flatten())",
    ),
}


def _seen(function: Any, args: tuple[Any, ...]) -> list[torch.Tensor]:
    """What a call returns, and the gradients that its arguments get."""
    given = copy.deepcopy(args)
    out = [leaf.detach().cpu() for leaf in tree_leaves(function(*given))]
    return [*out, *(leaf.grad.cpu() for leaf in given if leaf.grad is not None)]


@pytest.mark.parametrize("title", EDGES)
def test_rewritten_lines_decide_as_python_does_at_the_edges(title: str, tmp_path: Path) -> None:
    # GIVEN a step whose numbers decide something, and what it gives at their edges
    text, line = EDGES[title]
    names = run(text, tmp_path)
    truth = [_seen(names["f"], others) for others in names["others"]]
    # WHEN it is rewritten THEN its lines give the same there, in the same types
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert fix.complete, fix
    assert line in lines_of(fix), fix
    with fix.applied():
        for others, expected in zip(names["others"], truth, strict=True):
            torch.testing.assert_close(_seen(names["f"], others), expected, rtol=1e-6, atol=0, equal_nan=True)


# What would be wrong with other inputs, and a part of a line that it would have.
NOT_SO = {
    "what ends before the last that is kept, which eager counts from the end where none is": (
        """
args = (torch.randn(5, 5, device=device), torch.arange(5, device=device) < 3)
def f(x, m):
    last = m.sum().item() - 1
    return x[:last].mean(0)
""",
        "< last",
    ),
    "a loop whose rounds behind its end would spoil gradients": (
        """
args = (torch.randn(3, device=device).requires_grad_(),)
def f(v):
    u = v
    for _ in range(4):
        n = u.norm()
        if n.item() == 0:
            break
        u = u / n
    u.sum().backward()
    return u.detach()
""",
        "torch.where(done",
    ),
    "rows of a mask that may be others": (
        """
args = (torch.randn(6, device=device), torch.rand(6, device=device) > 0.3)
def f(x, m, few=100):
    h = x[m]
    if len(x) > few:
        h = x[:few]
    return h.mean()
""",
        "torch.where(m",
    ),
    "one of two arguments that is written by another name": (
        """
args = (torch.randn(3, device=device), torch.randn(3, device=device), torch.ones(1, device=device))
def f(x, y, which):
    z = x if which.sum() > 0 else y
    z.add_(1)
    return z * 2
""",
        "z = torch.where(",
    ),
}


@pytest.mark.parametrize("title", NOT_SO)
def test_what_would_be_wrong_with_other_inputs_is_not_written(title: str, tmp_path: Path) -> None:
    # GIVEN a step of which a rewrite is right for some inputs alone
    text, part = NOT_SO[title]
    names = run(text, tmp_path)
    # WHEN its fix is asked for THEN it is not written so
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert not any(part in line for line in lines_of(fix)), fix


@pytest.mark.parametrize(
    ("sizes", "k"),
    [
        ("n = x.shape[1]", "k = x.argmin().detach()"),
        ("m, n = x.shape", "k = x.argmin().detach()"),
        ("n = x.shape[1] / 2", "k = x.argmin().detach().double()"),
    ],
)
def test_a_place_that_a_size_divides_stays_a_whole_number(sizes: str, k: str, tmp_path: Path) -> None:
    # GIVEN a place among all elements, of which a size by its own name makes a row and a column
    text = f"""
args = (torch.rand(4, 4, device=device),)
def f(x):
    {sizes}
    k = x.argmin().item()
    i, j = k // n, k % n
    y = x * (i + 1) + j
    return y
"""
    names = run(text, tmp_path)
    # WHEN it is rewritten THEN it is one on the device, too, and a double only beside a number that is none
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    assert k in lines_of(found.fix), found.fix
