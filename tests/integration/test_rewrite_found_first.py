"""Fixes that take numbers to the device which the host finds before a launch: lists of them, one for a whole loop."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import lines_of, rewritten

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
NET = """
net = nn.Linear(6, 2).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
args = (torch.randn(4, 6, device=device), torch.randn(4, 2, device=device))
"""
WHOLE = {
    "weights of two losses that the last losses decide": (
        """
last, before = [1.0, 1.0], [1.0, 1.0]
def f(x, y):
    global last, before
    exps = [math.exp(a / b) for a, b in zip(last, before)]
    w = [2 * e / sum(exps) for e in exps]
    one, two = F.mse_loss(net(x), y), net(x).abs().mean()
    loss = w[0] * one + w[1] * two
    opt.zero_grad()
    loss.backward()
    opt.step()
    before, last = last, [one.item(), two.item()]
    return loss.detach()
""",
        ["w_in.copy_(torch.as_tensor(w))", "loss = w_in[0] * one + w_in[1] * two"],
    ),
    "one number for all rounds of a loop, beside a guard that clears gradients and what a patience counts": (
        """
best, bad, t = float("inf"), 0, 0
def f(x, y):
    global best, bad, t
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    t += 1
    sigma = 0.01 / (1 + t) ** 0.55
    for p in net.parameters():
        if torch.isnan(p.grad).any():
            p.grad.zero_()
        p.grad += sigma * torch.ones_like(p.grad)
    opt.step()
    value = loss.item()
    if value < best:
        best, bad = value, 0
    else:
        bad += 1
    return loss.detach()
""",
        [
            "sigma_in.fill_(sigma)",
            "p.grad.masked_fill_(torch.isnan(p.grad).any(), 0)",
            "p.grad += sigma_in * torch.ones_like(p.grad)",
            "global bad, best",
        ],
    ),
    "minibatches of an order that is shuffled anew, with a log of each": (
        """
kls = []
def f(x, y):
    order = np.arange(4)
    for _ in range(2):
        np.random.shuffle(order)
        for start in range(0, 4, 2):
            rows = order[start:start + 2]
            loss = F.mse_loss(net(x[rows]), y[rows])
            kls.append(loss.item())
            opt.zero_grad()
            loss.backward()
            opt.step()
    return loss.detach()
""",
        ["given_in = torch.zeros(4, 2, dtype=torch.int64, device=device)", "rows = next(given)"],
    ),
    "parts of unlike sizes, of an order whose length the loop asks for": (
        """
def f(x, y):
    total = 0.0
    for _ in range(2):
        order = np.random.permutation(len(x))
        for i in range(0, len(order), 3):
            idx = order[i:i + 3]
            loss = F.mse_loss(net(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
    return total
""",
        ["for _ in range(2):", "idx = next(given)", "total += loss.detach()"],
    ),
    "parts of an order that is drawn as a tensor": (
        """
def f(x, y):
    for _ in range(2):
        for idx in torch.randperm(4).split(2):
            idx = idx.to(device)
            loss = F.mse_loss(net(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
    return loss.detach()
""",
        ["idx = next(given)"],
    ),
    "noise of each round, by a number that each round lowers": (
        """
sigma = 1.0
@torch.no_grad()
def f(x, y):
    global sigma
    for _ in range(3):
        x = x + sigma * torch.from_numpy(np.random.randn(4, 6)).float().to(device)
        sigma = max(0.1, sigma * 0.9)
    return x
""",
        ["x = x + next(given) * next(given)"],
    ),
    "layers that are left out by chance": (
        """
layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3)).to(device)
@torch.no_grad()
def f(x, y):
    for i, layer in enumerate(layers):
        p = 0.4 * i
        if random.random() < p:
            continue
        x = x + layer(x)
    return x
""",
        ["skipped = next(given)", "x = torch.where(skipped, x, x + layer(x))"],
    ),
    "a crop and a flip for each image": (
        """
images = torch.randn(3, 2, 8, 8, device=device)
def f(x, y):
    out = []
    for i in range(images.shape[0]):
        top, left = random.randint(0, 4), random.randint(0, 4)
        flip = random.random() < 0.5
        patch = images[i, :, top:top + 4, left:left + 4] * x.mean()
        if flip:
            patch = patch.flip(-1)
        out.append(patch)
    return torch.stack(out)
""",
        [
            "top, left = next(given), next(given)",
            "flip = next(given)",
            "patch = torch.where(flip, patch.flip(-1), patch)",
        ],
    ),
    "an object that draws with a generator of its own": (
        """
class Agent:
    def __init__(self):
        self.rng, self.q, self.updates = np.random.default_rng(0), net, 3
    def learn(self, x, y):
        for _ in range(self.updates):
            pick = self.rng.integers(0, len(x), size=2)
            loss = F.mse_loss(self.q(x[pick]), y[pick])
            opt.zero_grad()
            loss.backward()
            opt.step()
        return loss.item()
f = Agent().learn
""",
        ["def before_learn(self, x):  # before each launch", "pick = next(given)"],
    ),
    "a box that another image is pasted into": (
        """
def box(h, w, lam):
    cut = np.sqrt(1.0 - lam)
    ch, cw = int(h * cut), int(w * cut)
    cy, cx = np.random.randint(h), np.random.randint(w)
    top, bottom = np.clip(cy - ch // 2, 0, h), np.clip(cy + ch // 2, 0, h)
    return top, bottom, np.clip(cx - cw // 2, 0, w), np.clip(cx + cw // 2, 0, w)
images = torch.randn(4, 2, 8, 8, device=device)
def f(x, y):
    lam = np.random.beta(1.0, 1.0)
    index = torch.arange(4, device=device).flip(0)
    y1, y2, x1, x2 = box(8, 8, lam)
    some = images.clone()
    some[:, :, y1:y2, x1:x2] = images[index, :, y1:y2, x1:x2]
    lam = 1 - (y2 - y1) * (x2 - x1) / 64
    return lam * some.sum(1) + (1 - lam) * x.sum()
""",
        ["y1_in.fill_(y1)", "lam_in.fill_(lam)"],
    ),
    "what a buffer of the host's samples, and is told of afterwards": (
        """
class Buffer:
    def __init__(self):
        self.prio, self.beta = np.ones(16, dtype=np.float32), 0.4
    def sample(self, k):
        p = self.prio / self.prio.sum()
        idx = np.random.choice(16, k, p=p)
        self.beta = min(1.0, self.beta + 0.01)
        w = (16 * p[idx]) ** -self.beta
        return idx, (w / w.max()).astype(np.float32)
buffer, states = Buffer(), torch.randn(16, 6, device=device)
def f(x, y):
    idx, w = buffer.sample(4)
    w = torch.from_numpy(w).to(device)
    td = (net(states[torch.as_tensor(idx, device=device)]) - y).pow(2).mean(1)
    loss = (w * td).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    buffer.prio[idx] = td.detach().cpu().numpy() + 1e-5
    return loss.detach()
""",
        ["idx, w = buffer.sample(4)", "global idx, w", "w = w_in"],
    ),
    "losses of some rows, with a bound and of some columns, whose number is logged": (
        """
counts = []
def f(x, y):
    out = net(x)
    keep = x[:, 0] > -0.5
    some = out[keep].abs()
    counts.append(len(some))
    loss = F.smooth_l1_loss(out[keep, :1], y[keep, :1], beta=0.5, reduction="sum")
    loss = loss + (some.sum() if len(some) else out.sum())
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
""",
        ["counts.append(keep.sum().item())"],
    ),
    "a list that a loop carries on until the device ends it": (
        """
def f(x, y):
    fast = [p for p in net.parameters()]
    for _ in range(3):
        inner = F.mse_loss(F.linear(x, *fast), y)
        grads = torch.autograd.grad(inner, fast, create_graph=True)
        if inner.item() < 0.9:
            break
        fast = [p - 0.1 * g for p, g in zip(fast, grads)]
    loss = F.mse_loss(F.linear(x, *fast), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
""",
        ["done = done | (inner.double() < 0.9)"],
    ),
    "a step's size that the host sets behind a branch that leaves it, of a function that an object has": (
        """
class Solver:
    def __init__(self, rhs):
        self.rhs, self.h, self.t = rhs, 0.1, 0.0
    def step(self, x):
        k = self.rhs(self.t, x)
        new = x + self.h * k
        if (new - x).abs().max() > 0.25:
            self.h *= 0.5
            return x
        self.t += self.h
        self.h = min(0.2, self.h * 1.1)
        return new
def rhs(t, x):
    return 0.5 * math.cos(t) - x * x.abs()
f, args = Solver(rhs).step, (torch.randn(4, 6, device=device),)
""",
        ["h_in.fill_(self.h)", "k = self.rhs(t_in, x)", "return 0.5 * torch.cos(t) - x * x.abs()"],
    ),
    "a branch of the device's that bounds in place": (
        """
state = torch.zeros(4, 2, device=device)
def f(x, y):
    state.add_(net(x).detach())
    if state.abs().max() > 0.7:
        state.clamp_(-0.5, max=0.5)
    return state * y
""",
        ["state.copy_(torch.where(state.abs().max() > 0.7, state.clamp(-0.5, max=0.5), state))"],
    ),
}


@pytest.mark.parametrize("title", WHOLE)
def test_what_the_host_finds_first_is_given_in_tensors(title: str, tmp_path: Path) -> None:
    # GIVEN a step whose numbers the host finds first WHEN it is rewritten
    text, lines = WHOLE[title]
    fix = rewritten(NET + text, tmp_path)
    # THEN that is whole, over ten steps too, and the lines are these
    assert fix.complete, str(fix)
    assert [line for line in lines if line not in lines_of(fix)] == [], str(fix)


def test_layers_of_a_module_are_left_out_by_what_its_owner_draws_first(tmp_path: Path) -> None:
    # GIVEN a module that leaves layers out by chance as long as it trains WHEN it is rewritten
    text = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
    def forward(self, x):
        for layer in self.layers:
            if self.training and random.uniform(0, 1) < 0.3:
                continue
            x = x + layer(x).relu()
        return x
f, args = Net().to(device), (torch.randn(2, 6, device=device),)
"""
    fix = rewritten(text, tmp_path)
    # THEN one graph leaves out today's
    assert fix.complete, str(fix)
    assert "call self.before_forward() before each launch" in fix.usage


LEFT = {
    "what the device finds in a round decides what the next one draws": """
prio = np.ones(4)
def f(x, y):
    for _ in range(2):
        idx = np.random.choice(4, 2, p=prio / prio.sum())
        td = (net(x[idx]) - y[idx]).pow(2).mean(1)
        opt.zero_grad()
        td.mean().backward()
        opt.step()
        prio[idx] = td.detach().cpu().numpy() + 0.01
    return x
""",
    "the device ends the loop": """
def f(x, y):
    for _ in range(3):
        idx = np.random.permutation(4)[:2]
        loss = F.mse_loss(net(x[idx]), y[idx])
        if loss.item() < 1e-9:
            break
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.detach()
""",
    "what the device has found decides what is drawn": """
def f(x, y):
    for _ in range(2):
        k = int(x.argmax()) % 3 + 1
        idx = np.random.permutation(4)[k - 1:k + 1]
        x = x + net(x[idx]).mean()
    return x
""",
}


@pytest.mark.parametrize("title", LEFT)
def test_what_the_device_decides_is_not_found_before_it(title: str, tmp_path: Path) -> None:
    # GIVEN a loop whose rounds, or whose draws, the device decides WHEN it is rewritten
    fix = rewritten(NET + LEFT[title], tmp_path)
    # THEN nothing says that it is whole
    assert not fix.complete, str(fix)
    assert fix.instead or fix.alone  # a round, beside which the host decides as ever


def test_what_is_said_of_a_step_that_trains_can_be_done(tmp_path: Path) -> None:
    # GIVEN a step that trains on as many edges as the host's chance keeps, and has a median of some values
    text = """
edges = torch.randint(0, 4, (2, 12))
def f(x, y):
    mask = torch.rand(edges.size(1)) > 0.3
    ei = edges[:, mask].to(device)
    out = net(torch.zeros(4, 6, device=device).index_add_(0, ei[1], x[ei[0]]))
    loss = F.mse_loss(out, y) + out[out.detach() > 0].median()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
"""
    # WHEN it is rewritten THEN what is left says how the mask is kept, and that no backward pass goes through a launch
    told = "\n".join(rewritten(NET + text, tmp_path).instead)
    assert "draw `mask` there, line" in told
    assert "`edges` for `edges[:, mask]` here" in told
    assert "a backward pass comes after line" in told
    assert "end what is captured before" not in told


def test_what_goes_before_the_launch_leaves_no_lines_that_nothing_reads(tmp_path: Path) -> None:
    # GIVEN a list that the host fills by sizes, and that becomes a tensor of its name WHEN it is rewritten
    text = """
gains = np.array([0.5, 1.5, 2.5])
args = (torch.randn(4, 6, device=device), torch.randn(4, 2, device=device))
def f(x, y):
    ideal = []
    n, d = x.shape
    half = d // 2
    for value in y[:, 0].tolist():
        ideal.append(gains[: min(int(abs(value)) + 1, 3)].sum() * half)
    ideal = torch.tensor(ideal, dtype=torch.float32, device=device)
    return (x.sum(1) * ideal).mean() / d
"""
    fix = rewritten(text, tmp_path)
    # THEN what only the list has needed is gone with it, and what else is read stays
    assert fix.complete, str(fix)
    assert "+def f(x, y):\n+    n, d = x.shape\n+    ideal = ideal_in\n     return" in fix.diff, str(fix)
