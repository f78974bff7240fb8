"""Fixes of training steps: rates, numbers and draws of the host around the launch, and what is kept of its results."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import lines_of, rewritten
from tests.programs import running

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

NET = """\
net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
args = (torch.randn(8, 4, device=device), torch.randn(8, 2, device=device))
"""
STEP = """\
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    opt.step()
"""
NOISE = "noise of the CPU that a function within a forward draws, of the size of what is computed there"
# what is whole, with lines that the diff adds
WHOLE = {
    "what is made on the CPU with the type of a batch, and the size of a copy": (
        NET
        + """\
def f(x, y):
    noise = torch.randn(x.shape[0], 4).type_as(x)
    out = net(x + noise)
    size = np.size(np.array(out.argmax(1).cpu()))
    share = (out > 0).sum().item() / size
    loss = F.mse_loss(out, y * torch.ones(x.size(0), 1).type_as(x)) * share
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
""",
        ["noise_in.copy_(torch.randn(x.shape[0], 4).type_as(x)", "size = out.argmax(1).numel()", "device=x.device)"],
    ),
    NOISE: (
        """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Linear(4, 6), nn.Linear(3, 4)
    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, -1)
        def sample():
            std = logvar.mul(0.5).exp()
            eps = torch.FloatTensor(std.size()).normal_().to(std.device)
            return eps.mul_(std).add(mu)
        return self.dec(sample())
net = Net().to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
args = (torch.randn(8, 4, device=device),)
def f(x):
    loss = F.mse_loss(net(x), x)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
""",
        ["eps_in.copy_(torch.FloatTensor(8, 3).normal_())", "eps = eps_in.view(std.size()).clone()"],
    ),
    "a weight of a generator's, which a helper is given": (
        NET
        + """\
def weights():
    while True:
        for i in range(4):
            yield min(1.0, i / 3)
schedule, log = weights(), []
def losses(x, y, beta):
    out = net(x)
    return F.mse_loss(out, y) + beta * out.square().sum()
def f(x, y):
    beta = next(schedule)
    loss = losses(x, y, beta)
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
    return loss.detach()
""",
        ["beta_in.fill_(beta)", "loss = losses(x, y, beta_in)"],
    ),
    "a rate of the device's, of an optimizer that makes a number of it": (
        """\
net, rate = nn.Linear(4, 2).to(device), torch.tensor(0.05, device=device)
opt = torch.optim.SGD(net.parameters(), rate, momentum=0.9)
args = (torch.randn(8, 4, device=device),)
def f(x):
    loss = net(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        rate.mul_(0.9)
    return loss.detach()
""",
        ["opt = torch.optim.SGD(net.parameters(), rate, momentum=0.9, fused=True)"],
    ),
    "a rate, a decay and an average that one count decides, and a center that the step reads": (
        NET
        + """\
teacher, center, it = nn.Linear(4, 2).to(device), torch.zeros(2, device=device), 0
opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
def f(x, y):
    global it, center
    for k, group in enumerate(opt.param_groups):
        group["lr"] = 0.01 * 0.9 ** it
        if k == 0:
            group["weight_decay"] = 0.1 * (1 + it)
    with torch.no_grad():
        made = teacher(x) - center
    loss = F.mse_loss(net(x), y + made)
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for p, q in zip(teacher.parameters(), net[2].parameters()):
            p.mul_(0.9 + 0.01 * it).add_(q[:, :4] if q.dim() > 1 else q, alpha=0.1)
        center = 0.9 * center + 0.1 * made.mean(0)
    it += 1
    return loss
""",
        ["def after_f(loss, made):  # after each launch", "center.copy_(0.9 * center + 0.1 * made.mean(0))"],
    ),
    "betas that a method sets first": (
        """\
class Trainer:
    def __init__(self):
        self.net, self.n = nn.Linear(4, 2).to(device), 0
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-2)
    def set_numbers(self):
        for group in self.opt.param_groups:
            group["betas"] = (0.5 + 0.01 * self.n, 0.999)
    def fit(self, x, y):
        self.set_numbers()
        loss = F.mse_loss(self.net(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.n += 1
        return loss.detach()
f = Trainer().fit
args = (torch.randn(8, 4, device=device), torch.randn(8, 2, device=device))
""",
        ["def after_fit(self, loss):  # after each launch", "self.set_numbers()"],
    ),
    "an optimizer that steps now and then, whose rate stays a number": (
        NET
        + """\
state = {"n": 0}
def f(x, y):
    loss = F.mse_loss(net(x), y) / 4
    loss.backward()
    if (state["n"] + 1) % 4 == 0:
        for g in opt.param_groups:
            g["lr"] = 0.01 * min(1.0, (state["n"] + 1) / 20)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
    state["n"] += 1
    return loss.item() * 4
""",
        ["def after_f():  # after each launch", "opt.zero_grad(set_to_none=False)"],
    ),
    "a rate that grows behind the step, and is kept as a number": (
        NET
        + "best, rates, n = float('inf'), [], 0\ndef f(x, y):\n    global best, n\n"
        + STEP
        + """\
    n += 1
    smoothed = loss.item() / (1 - 0.9 ** n)
    best = min(best, smoothed)
    lr = opt.param_groups[0]["lr"]
    rates.append(lr)
    for g in opt.param_groups:
        g["lr"] = lr * 1.1
    return loss.detach()
""",
        ['lr = float(opt.param_groups[0]["lr"])', 'g["lr"].fill_(lr * 1.1)'],
    ),
    "an object that is called, and keeps the best loss": (
        NET
        + """\
class Stopper:
    def __init__(self):
        self.best, self.bad = None, 0
    def __call__(self, value):
        if self.best is None or value < self.best:
            self.best = value
            self.bad = 0
        else:
            self.bad += 1
stopper = Stopper()
def f(x, y):
"""
        + STEP
        + """\
    stopper(loss.detach())
    if stopper.bad == 2:
        for g in opt.param_groups:
            g["lr"] *= 0.5
    return loss.detach()
""",
        ["stopper(loss.detach().clone())"],
    ),
    "a number that the last round of a loop reads decides behind it": (
        NET
        + """\
beta = 0.1
def f(x, y):
    global beta
    size = 0.0
    for _ in range(2):
        opt.zero_grad()
        loss = F.mse_loss(net(x), y) + beta * net(x).square().mean()
        loss.backward()
        opt.step()
        size = loss.item()
    if size > 1.0:
        beta *= 1.5
    elif size < 0.9:
        beta /= 1.5
    return loss.detach()
""",
        ["size = loss.detach()", "size = size.item()", "beta_in.fill_(beta)"],
    ),
    "a number that only some steps move, in a list that a loop makes": (
        NET
        + """\
rate, n = 0.1, 0
def f(x, y):
    global rate, n
    w = [p.detach() for p in net.parameters()]
    for _ in range(2):
        for _ in range(2):
            w = [p - rate * p for p in w]
    n += 1
    if n % 4 == 0:
        rate *= 0.5
    return w[0]
""",
        ["rate_in.fill_(rate)", "w = [p - rate_in * p for p in w]"],
    ),
    "a list that is filled from its beginning, and becomes a tensor of its name": (
        """\
base = 0.0
args = (torch.rand(5, device=device),)
def f(rewards):
    global base
    total, returns = 0.0, []
    for r in rewards.tolist()[::-1]:
        total = r + 0.9 * total
        returns.insert(0, total)
    returns = torch.tensor(returns, dtype=torch.float32, device=rewards.device)
    base = 0.9 * base + 0.1 * returns[0].item()
    return returns - base
""",
        ["returns = torch.stack(returns).to(torch.float32)"],
    ),
    "a draw, or what the device finds": (
        """\
net = nn.Linear(4, 3).to(device)
eps, past = 0.8, torch.zeros(4, dtype=torch.long, device=device)
args = (torch.randn(4, device=device),)
@torch.no_grad()
def f(s):
    global eps
    if random.random() < eps:
        action = random.randrange(3)
    else:
        action = net(s).argmax().item()
    past[1:] = past[:-1].clone()
    past[0] = action
    eps *= 0.9
    return past.clone()
""",
        ["if chosen:", "action = torch.where(given_in, given_in_2, net(s).argmax())"],
    ),
    "a draw in the second of two returns": (
        """\
net = nn.Linear(4, 3).to(device)
n = 0
args = (torch.randn(4, device=device),)
@torch.no_grad()
def f(s):
    global n
    eps = 0.1 + 0.8 * math.exp(-n / 5)
    n += 1
    if random.random() > eps:
        return net(s).argmax().item()
    return random.randrange(3)
""",
        ["if not chosen:", "return torch.where(given_in, net(s).argmax(), given_in_2)"],
    ),
    "loss scaling by hand, in which some steps overflow, the first one too": (
        """\
class Scaler:
    def __init__(self):
        self.scale, self.good = 64.0, 0
    def overflows(self, params):
        for p in params:
            if p.grad is not None and not torch.isfinite(p.grad).all():
                return True
        return False
    def update(self, overflow):
        if overflow:
            self.scale, self.good = max(self.scale / 2, 1.0), 0
        else:
            self.good += 1
            if self.good % 3 == 0:
                self.scale *= 2
net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
scaler = Scaler()
args = (torch.randn(8, 4, device=device), torch.randn(8, 2, device=device))
def feed(i):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(i))
    x[0, 0] = math.inf if i in (0, 4, 9, 10, 17) else 1.0
    return x.to(device), torch.ones(8, 2, device=device)
def f(x, y):
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)
    (loss * scaler.scale).backward()
    overflow = scaler.overflows(net.parameters())
    if not overflow:
        for p in net.parameters():
            p.grad.div_(scaler.scale)
        opt.step()
    scaler.update(overflow)
    return loss.detach()
""",
        ["p.grad.div_(scale_in)", "found = found | (torch.logical_not(torch.isfinite(p.grad).all()))"],
    ),
    "a number that only an object called behind the step moves, after more steps than are tried": (
        """\
class Weight:
    def __init__(self):
        self.beta, self.n = 0.1, 0
    def update(self, loss):
        self.n += 1
        if self.n % 12 == 0 and loss > 0:
            self.beta *= 4
net, weight = nn.Linear(4, 2).to(device), Weight()
args = (torch.rand(8, 4, device=device),)
@torch.no_grad()
def f(x):
    loss = (net(x).square() + weight.beta * x.sum()).mean()
    weight.update(loss.item())
    return loss
""",
        ["beta_in.fill_(weight.beta)"],
    ),
    "an optimizer of one's own that reads norms, decides by them and counts": (
        """\
class Own(torch.optim.Optimizer):
    def __init__(self, params, lr=0.01):
        super().__init__(params, dict(lr=lr))
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"], state["m"], state["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)
                state["step"] += 1
                state["m"].lerp_(p.grad, 0.1)
                state["v"].lerp_(p.grad.square(), 0.01)
                m = state["m"] / (1 - 0.9 ** state["step"])
                update = m / ((state["v"] / (1 - 0.99 ** state["step"])).sqrt() + 1e-6)
                w, u = p.norm().item(), update.norm().item()
                trust = min(w / u, 10.0) if w > 0 and u > 0 else 1.0
                p.add_(update, alpha=float(-group["lr"] * trust))
net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).to(device)
opt = Own(net.parameters())
args = (torch.randn(8, 4, device=device), torch.randn(8, 2, device=device))
def f(x, y):
"""
        + STEP
        + "    return loss.detach()\n",
        ["torch.tensor(0, dtype=torch.float64, device=device)", "p.add_(update * (-group["],
    ),
    "an optimizer that another object holds, and a radius that warms up": (
        """\
class Climber:
    def __init__(self, params, base):
        self.params, self.base = list(params), base
    @torch.no_grad()
    def step(self, rho):
        size = torch.sqrt(sum(p.grad.square().sum() for p in self.params))
        for p in self.params:
            p.add_(p.grad * (rho / (size + 1e-12)))
        self.base.step()
net = nn.Linear(4, 2).to(device)
climber, n = Climber(net.parameters(), torch.optim.Adam(net.parameters(), lr=1e-2)), 0
args = (torch.randn(8, 4, device=device), torch.randn(8, 2, device=device))
def f(x, y):
    global n
    rho = 0.05 * min(1.0, (n + 1) / 12)
    net.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    climber.step(rho)
    n += 1
    return loss.detach()
""",
        ["torch.optim.Adam(net.parameters(), lr=1e-2, capturable=True)"],
    ),
    "a step size that an error decides, in a loop that ends early": (
        """\
net = nn.Linear(2, 2).to(device)
args = (torch.randn(5, 2, device=device),)
@torch.no_grad()
def f(y):
    t, h = 0.0, 0.4
    for _ in range(7):
        if t >= 1.0:
            break
        h = min(h, 1.0 - t)
        slope = torch.tanh(net(y))
        error = (h * (torch.tanh(net(y + h * slope)) - slope)).abs().max().item()
        if error < 0.2:
            y = y + h * slope
            t += h
        h = h * min(2.0, max(0.3, 0.9 * (0.2 / (error + 1e-9)) ** 0.5))
    return y
""",
        ["torch.full((), 0.4, dtype=torch.float64, device=device)", "torch.minimum(h, 1.0 - t)"],
    ),
    "the same where objects are called in a loop": (
        """\
class Weight:
    def __init__(self):
        self.beta, self.n = 0.1, 0
    def __call__(self, loss):
        self.n += 1
        if self.n % 12 == 0 and loss > 0:
            self.beta *= 4
net, weight = nn.Linear(4, 2).to(device), Weight()
hooks = [weight]
args = (torch.rand(8, 4, device=device),)
@torch.no_grad()
def f(x):
    loss = (net(x).square() + weight.beta * x.sum()).mean()
    for hook in hooks:
        hook(loss.item())
    return loss
""",
        ["beta_in.fill_(weight.beta)"],
    ),
    "a fill by an index with a value of the device": (
        """\
past = torch.zeros(5, dtype=torch.long, device=device)
args = (torch.randn(5, 5, device=device),)
def f(x):
    past.index_fill_(0, x.sum(0).argmax().reshape(1), x.sum(1).argmax())
    return past.clone()
""",
        ["x.sum(1).argmax().to(past.dtype).expand_as("],
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_training_step_is_rewritten_whole(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a step, and more steps than are tried WHEN it is rewritten
    monkeypatch.setattr(running, "STEPS", 30)
    text, lines = WHOLE[name]
    fix = rewritten(text, tmp_path)
    # THEN that is whole, replays of one graph do over all of them what the step does, and the lines are these
    assert fix.complete, fix
    for line in lines:
        assert any(line in each for each in lines_of(fix)), fix
    # THEN that others draw first is told
    assert any("calls `before_f` first" in each for each in fix.verified) == (name == NOISE)
    # THEN that a rate is a tensor now is told
    assert ("a rate is a tensor now" in "".join(fix.verified)) == ("lr=torch.tensor(" in fix.diff)


def test_noise_that_a_test_loop_draws_too_stays_where_it_is(tmp_path: Path) -> None:
    # GIVEN a network with noise of its own, which other code calls, too WHEN a step of it is rewritten
    text, _ = WHOLE[NOISE]
    fix = rewritten(text + "def test(x):\n    return net(x)\n", tmp_path)
    # THEN the network draws as ever
    assert not any("eps_in" in each for each in lines_of(fix)), fix
