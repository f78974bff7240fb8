"""What the host knows stays the host's: in conditions of both, in what fills tensors, and in what is advised."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import Fixed, lines_of, run
from tests.programs.running import quiet

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

WHOLE = {
    "an end that the host and the device decide": (
        """
args = (torch.eye(4, device=device) * 3, torch.randn(4, device=device))
def settings():
    return 3
@torch.no_grad()
def solve(a, b, least=None, verbose=0, tol=1e-3):
    if least is None:
        least = settings()
    x, most = torch.zeros_like(b), min(12, b.size(0) * 3)
    for k in range(most):
        r = b - a @ x
        x = x + 0.3 * r
        if k >= min(2, least - 1) and bool(r.norm() < tol) and not (verbose and k < 3):
            break
    return x
def f(a, b):
    return solve(a, b)
""",
        "not (verbose and k < 3)",
    ),
    "arithmetic with what torch makes": (
        """
args = (torch.randn(3, 2, device=device),)
@torch.no_grad()
def f(x):
    for i in reversed(range(3)):
        t = (torch.ones(len(x)) * i).to(x.device)
        x = x * (1 + t[:, None])
    return x
""",
        "(torch.ones(len(x), device=x.device) * i)",
    ),
    "a number through a mask, with a list as the index": (
        """
args = (torch.randn(3, 6, device=device),)
@torch.no_grad()
def f(x):
    x = x * 2
    top = x.topk(2)[0]
    x[x < top[:, [-1]]] = float("-inf")
    return x.softmax(-1)
""",
        'x[x < top[:, -1:]] = float("-inf")',
    ),
    "a number that becomes a tensor of the same name": (
        """
args = (torch.rand(4, device=device),)
@torch.no_grad()
def norm(x, eps=1e-3):
    eps = torch.tensor(eps, dtype=x.dtype, device=x.device)
    return x / torch.maximum(x.sum(), eps)
def f(x):
    return norm(x) + norm(x, 2.0)
""",
        "eps = torch.full((), eps, dtype=x.dtype, device=x.device)",
    ),
    "an error that a helper raises by a number it reads": (
        """
args = (torch.rand(2, 5, device=device) + 0.1,)
@torch.no_grad()
def pick(p):
    token = p.argmax(-1)
    if token.sum().item() < 0:
        raise RuntimeError
    return token
def f(x):
    for _ in range(3):
        x = x + pick(x)[:, None]
    return x
""",
        "torch._assert_async(torch.logical_not(token.sum() < 0))",
    ),
}


@pytest.mark.parametrize("title", WHOLE)
def test_what_the_host_knows_it_is_not_asked_of_the_device(fixed: Fixed, title: str) -> None:
    # GIVEN a line of the host's numbers and the device's WHEN rewritten THEN it is whole, and each stays where it is
    text, line = WHOLE[title]
    found = fixed(text)
    assert found.complete, found
    assert any(line in each for each in lines_of(found)), found


SAID = {
    "a set of numbers, of which tensors would be apart": (
        """
args = (torch.tensor([1, 1, 2], device=device), torch.rand(4, device=device))
@torch.no_grad()
def f(ids, x):
    y, known = x * 2, set(ids.tolist())
    if float(y.sum()) > 100:
        return y
    for t in known:
        y[t] = y[t] - 1.0
    return y
""",
        "",
        "set(ids.unbind())",
    ),
    "a batch that becomes smaller, in rounds through modules": (
        """
cell, head = nn.GRUCell(4, 4).to(device), nn.Linear(4, 5).to(device)
args = (torch.randn(3, 4, device=device),)
@torch.no_grad()
def f(x):
    h, rows, told = torch.zeros_like(x), [0, 1, 2], []
    for _ in range(3):
        h = cell(x, h)
        token = head(h).argmax(1)
        going = token != 4
        rows = [row for row, g in zip(rows, going.tolist()) if g]
        if not going.any():
            break
        x, h = x[going], h[going]
        told.append(len(rows))
    return told
""",
        "make it a function of `h`, `x` that returns `going`, `h`, launch that in the loop",
        "and pick `[going]` behind the launch",
    ),
    "places that are fewer in each round, by which rows are picked": (
        """
net = nn.Linear(3, 3).to(device)
args = (torch.rand(5, 3, device=device),)
@torch.no_grad()
def f(x):
    clear, alive = torch.ones(5, device=device), torch.arange(5, device=device)
    for _ in range(4):
        clear[alive] *= net(x[alive]).sigmoid().mean(1)
        alive = alive[clear[alive] > 0.2]
    return clear
""",
        "`run = pgk.parameterize(f_round)`, which captures a graph for each size that comes",
        "zeros elsewhere",
    ),
    "a number that decides what is returned": (
        """
state = {"floor": 0.1, "hang": 0}
args = (torch.rand(8, device=device),)
@torch.no_grad()
def f(x):
    level = x.square().mean().item()
    if level > 3 * state["floor"]:
        state["hang"] = 2
    else:
        state["hang"] -= 1
    out = x * 2
    return out if state["hang"] > 0 else torch.zeros_like(out)
""",
        "call after_f(x, level_out) after each launch, which returns the result",
        "fill_(state",
    ),
    "a table of an object that is copied at each call": (
        """
class Schedule:
    def __init__(self):
        self.alphas = torch.linspace(0.1, 0.9, 8)
class Sampler:
    def __init__(self):
        self.schedule = Schedule()
    def update(self, x, t):
        schedule = self.schedule
        return x * schedule.alphas.to(t.device)[t]
    def step(self, x, t):
        for i in range(3):
            x = self.update(x, t + i)
            if float(x.sum()) > 1e9:
                x = x * 0.5
        return self.update(x, t)
args = (torch.rand(2, device=device), torch.tensor([1, 2], device=device))
f = Sampler().step
""",
        "`self.alphas = torch.linspace(0.1, 0.9, 8, device=device)`; this line stays as it is, and copies nothing then",
        "alpha_in",
    ),
    "a list that the function goes on with": (
        """
args = (torch.rand(5, device=device),)
@torch.no_grad()
def f(x):
    keep = []
    for i in range(len(x)):
        if all(x[i] - x[j] <= 0.5 for j in keep):
            keep.append(i)
    return x[keep] * 2
""",
        "",
        "only tells",
    ),
    "texts": (
        """
args = (torch.rand(1, 16, device=device),)
words = list("abcdefghijklmnop")
@torch.no_grad()
def spoken(x):
    for _ in range(3):
        token = x.argmax(-1)
        x = x * 0.9 + (token == 3)
        yield words[token.item()]
def f(x):
    return len("".join(spoken(x)))
""",
        "has texts, which no tensor is",
        "torch.tensor(...",
    ),
    "copies that a loop reads again": (
        """
args = (torch.rand(3, 2, device=device),)
net = nn.Linear(2, 2).to(device)
@torch.no_grad()
def f(x):
    xs = [x]
    for i in range(3):
        now = xs[-1].to(device)
        if float(now.sum()) > 1e9:
            now = now * torch.from_numpy(np.random.rand(2)).float().to(device)
        xs.append(net(now).to("cpu"))
    return xs
""",
        'returns in it, and behind the launch `xs = [each.to("cpu") for each in xs]`',
        "xs_in",
    ),
    "a way that leaves names without a value": (
        """
args = (torch.rand(4, device=device), 3)
@torch.no_grad()
def f(x, n):
    if (x > 2).all():
        n = 0
    else:
        y = x.clone()
    for _ in range(n):
        y = y * 0.5
        x = x + y
    return x
""",
        "",
        "compute it in any case",
    ),
}


@pytest.mark.parametrize("title", SAID)
def test_what_is_said_works(tmp_path: Path, title: str) -> None:
    # GIVEN a program that is not rewritten whole WHEN diagnosed THEN what is said is no advice that cannot be followed
    text, said, unsaid = SAID[title]
    names = run(text, tmp_path)
    with quiet():
        found = pgk.diagnose(names["f"], *names["args"], fix=True)
    shown = str(found.fix)
    assert said in shown or (found.fix is not None and found.fix.alone), shown  # of a round the rest stays as it is
    assert unsaid not in shown, shown


COUNTED = {
    "in a function": """
state, args = {"n": 0}, (torch.rand(5, device=device),)
def is_late(): return state["n"] > 20
def f(x):
    state["n"] += 1
    y = x * 2
    if y.sum() > 99 and is_late():
        y = y * 3
    return y + 1
""",
    "in a method": """
class Step:
    n = 0
    def is_late(self): return self.n > 20
    def run(self, x):
        self.n += 1
        y = x * 2
        if y.sum() > 99 and self.is_late():
            y = y * 3
        return y + 1
f, args = Step().run, (torch.rand(5, device=device),)
""",
}


@pytest.mark.parametrize("title", COUNTED)
def test_a_count_is_not_frozen_where_no_trial_has_asked_for_it(tmp_path: Path, title: str) -> None:
    # GIVEN a step that asks for its count only once the device has said yes, which it does not while it is tried
    names = run(COUNTED[title], tmp_path)
    # WHEN it is rewritten
    with quiet():
        fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN it is not called whole with the question in the graph, and the count moved behind it
    assert fix is not None
    asked_there = any("torch.where" in line and "is_late()" in line for line in lines_of(fix))
    assert not (fix.complete and asked_there), fix


@pytest.mark.parametrize("asked", ["random.random() < 0.5", "time.time() > 1e12"])
def test_what_is_another_each_time_is_not_asked_in_a_graph(tmp_path: Path, asked: str) -> None:
    # GIVEN a step that asks it only once the device has said yes, which it does not while it is tried
    text = f"""
args = (torch.rand(5, device=device),)
def f(x):
    y = x * 2
    if y.sum() > 99 and {asked}:
        y = y * 3
    return y + 1
"""
    names = run(text, tmp_path)
    # WHEN it is rewritten THEN no line of the graph has it
    with quiet():
        fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert fix is not None
    assert not any("torch.where" in line and asked in line for line in lines_of(fix)), fix
