"""Fixes that keep what a step hands on in its memory, write rates before the launch, and sum parts of tensors."""

from __future__ import annotations

import pytest
import torch

from paramgraph_kit.rewrite.reads import moved_around, one_name
from paramgraph_kit.verbs import _pieces
from tests.integration.rewritten import Fixed, lines_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")


WHOLE = {
    "hidden states of several networks, exchanged together": (
        """
cell = nn.LSTM(4, 3).to(device)
h, c = torch.zeros(1, 2, 3, device=device), torch.zeros(1, 2, 3, device=device)
args = (torch.randn(2, 2, 4, device=device),)
@torch.no_grad()
def f(x):
    global h, c
    out, (h, c) = cell(x, (h, c))
    return out
""",
        ["h_now = h", "out, (h_now, c_now) = cell(x, (h_now, c_now))", "c.copy_(c_now.detach())"],
    ),
    "one that is written where it stands, beside one that the first step begins": (
        """
class Controller:
    def __init__(self):
        self.total, self.last = torch.zeros(3, device=device), None
    @torch.no_grad()
    def step(self, error):
        self.total = self.total + error * 0.1
        slope = torch.zeros_like(error) if self.last is None else (error - self.last) / 0.1
        self.last = error
        return 2.0 * error + 0.5 * self.total + 0.01 * slope
f = Controller().step
args = (torch.randn(3, device=device),)
""",
        [
            "self.total.copy_(self.total + error * 0.1)",
            "last_now = self.last",
            "self.last.copy_(last_now.detach().view_as(self.last))",
        ],
    ),
    "two that begin as None together, one of which is asked": (
        """
class Welford:
    def __init__(self):
        self.n, self.mean, self.m2 = 0, None, None
    def update(self, x):
        self.n += 1
        if self.mean is None:
            self.mean = x.clone()
            self.m2 = torch.zeros_like(x)
            return
        d = x - self.mean
        self.mean = self.mean + d / self.n
        self.m2 = self.m2 + d * (x - self.mean)
stats, args = Welford(), (torch.randn(3, device=device),)
@torch.no_grad()
def f(x):
    stats.update(x)
    return x * 2
""",
        ["self.mean.copy_(self.mean + d / self.n)", "self.m2.copy_(self.m2 + d * (x - self.mean))"],
    ),
    "one that begins as a number, and is bounded": (
        """
class Meter:
    def __init__(self):
        self.total = 0.0
    def update(self, x):
        self.total = self.total + x.sum()
        self.total = self.total.clamp(max=5.0)
        return x - self.total
f, args = Meter().update, (torch.randn(3, device=device),)
""",
        ["if not isinstance(self.total, torch.Tensor):", "self.total.copy_(total_now.detach())"],
    ),
    "one that is exchanged behind the launch, where the host has decided so": (
        """
best, value, tries = torch.zeros(3, device=device), -1e9, 0
args = (torch.randn(3, device=device),)
def f(noise):
    global best, value, tries
    new = best + 0.3 * noise
    score = -(new - 1).pow(2).sum()
    tries += 1
    if score > value:
        best = new
        value = score.item()
    return best, tries
""",
        ["best.copy_(new.view_as(best))", "return best.clone(), tries"],
    ),
    "a tuple of states that is detached first": (
        """
state = (torch.zeros(2, 3, device=device), torch.ones(2, 3, device=device))
args = (torch.randn(2, 3, device=device),)
def f(x):
    global state
    state = tuple(s.detach() for s in state)
    state = (state[0] + x, state[1] * 0.5)
    return state[0] - state[1]
""",
        ["for held, new in zip(state, state_now):", "held.copy_(new.detach())"],
    ),
    "a tuple of states that a helper detaches, where it is read first": (
        """
def repackage(h):
    return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage(each) for each in h)
rnn = nn.LSTM(4, 3).to(device)
hidden = torch.zeros(1, 2, 3, device=device), torch.zeros(1, 2, 3, device=device)
args = (torch.randn(2, 2, 4, device=device),)
def f(x):
    global hidden
    rnn.zero_grad()
    hidden = repackage(hidden)
    out, hidden = rnn(x, hidden)
    out.pow(2).mean().backward()
    return out.detach()
""",
        ["hidden_now = repackage(hidden_now)", "for held, new in zip(hidden, hidden_now):"],
    ),
    "entries of a dictionary that the end of a step gives others, and a branch by a tensor of one number": (
        """
state = {"x": torch.zeros(2, 1, device=device), "P": torch.eye(2, device=device)}
H, rejected = torch.tensor([[1.0, 0.0]]).to(device), 0
args = (torch.randn(1, 1, device=device) * 3,)
def f(z):
    global rejected
    x, P = state["x"] * 0.9, state["P"] + 0.1
    y = z - H @ x
    d2 = (y.T @ y).item()
    if d2 > 4.0:
        rejected += 1
    else:
        x = x + P @ H.T @ y
        P = P * 0.5
    state["x"], state["P"] = x, P
    return x.squeeze(-1)
""",
        ['state["x"].copy_(x)', 'state["P"].copy_(P)', "d2 = (y.T @ y).detach().squeeze()"],
    ),
    "entries of a list, and weights by their data": (
        """
lin = nn.Linear(3, 2).to(device)
velocity = [torch.zeros_like(p) for p in lin.parameters()]
args = (torch.randn(4, 3, device=device),)
def f(x):
    grads = torch.autograd.grad(lin(x).square().mean(), list(lin.parameters()))
    with torch.no_grad():
        for i, (p, g) in enumerate(zip(lin.parameters(), grads)):
            velocity[i] = 0.9 * velocity[i] + g
            p.data = p.data - 0.1 * velocity[i]
    return grads[0]
""",
        ["velocity[i].copy_(0.9 * velocity[i] + g)", "p.data.copy_(p.data - 0.1 * velocity[i])"],
    ),
    "weights that climb and are put back from the optimizer's copies": (
        """
lin = nn.Linear(3, 2).to(device)
opt = torch.optim.SGD(lin.parameters(), lr=0.1)
args = (torch.randn(4, 3, device=device),)
def f(x):
    lin(x).square().mean().backward()
    with torch.no_grad():
        for p in lin.parameters():
            opt.state[p]["old"] = p.data.clone()
            p.add_(0.05 * p.grad / p.grad.norm())
    opt.zero_grad()
    loss = lin(x).square().mean()
    loss.backward()
    for p in lin.parameters():
        p.data = opt.state[p]["old"]
    opt.step()
    opt.zero_grad()
    return loss.detach()
""",
        ['p.data.copy_(opt.state[p]["old"])', 'opt.state[p]["old"] = p.data'],
    ),
    "a rate of many branches, which the host writes first and a log reads": (
        """
lin, it, log = nn.Linear(3, 1).to(device), 0, []
opt = torch.optim.SGD(lin.parameters(), lr=0.1)
args = (torch.randn(4, 3, device=device),)
def rate_of(n):
    if n < 3:
        return 0.1 * (n + 1)
    ratio = (n - 3) / 20
    return 0.4 * math.cos(ratio)
def f(x):
    global it
    it += 1
    rate = rate_of(it)
    for group in opt.param_groups:
        group["lr"] = rate
    loss = lin(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append((rate, loss.item()))
    return loss.detach()
""",
        ["def before_f():  # before each launch", 'group["lr"].fill_(rate)', "def after_f(loss):  # after each launch"],
    ),
    "a name that begins on the host and becomes a tensor of the device": (
        """
args = (torch.rand(2, 6, 6, device=device),)
def f(x, side=2):
    mask = np.ones((6, 6), np.float32)
    y = np.random.randint(6)
    mask[max(y - side, 0):y + side] = 0.0
    mask = torch.from_numpy(mask).to(device)
    mask = mask * 2
    return x * mask
""",
        ["mask_in = torch.zeros(6, 6, device=device)", "mask = mask_in"],
    ),
    "a round of a loop that is left out": (
        """
args = (torch.rand(6, 3, device=device), torch.randint(0, 3, (6,), device=device))
def f(p, y):
    total, n = 0.0, 0
    for c in range(4):
        rows = (y == c).float()
        if rows.sum() == 0:
            continue
        total += (rows * p[:, min(c, 2)]).sum() / rows.sum()
        n += 1
    return total / max(n, 1)
""",
        ["skipped = rows.sum() == 0", "n = torch.where(skipped, n, n + 1)", "return total / n.clamp(min=1)"],
    ),
    "two ways that write": (
        """
low, hits = torch.full((), math.inf, device=device), torch.zeros((), device=device)
args = (torch.randn(4, device=device),)
def f(x):
    if low == math.inf:
        low.copy_(x.min())
        y = x * 2
    else:
        low.add_(0.1 * (x.min() - low))
        hits.add_(1)
        y = x - 1
    return y + low
""",
        [
            "y = torch.where(torch.logical_not(chosen), x - 1, y)",
            "hits.add_(torch.where(torch.logical_not(chosen), 1, 0))",
        ],
    ),
    "parts whose ends lie on the device, rows by number, and what lies beside a diagonal": (
        """
args = (torch.rand(6, 6, device=device),)
def f(x):
    eye = torch.eye(6, dtype=torch.bool, device=device)
    beside = x[~eye].view(6, 5)
    keep = torch.where(x[0] > 0.5)[0]
    k = int((x > 0.5).sum() / 9)
    return beside.sum(0) + x.sort(0).values[:k].sum() + x[keep].sum()
""",
        ["keep = x[0] > 0.5", "k = ((x > 0.5).sum() / 9).detach().long()"],
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_a_step_hands_on_or_picks_stays_where_a_graph_reads_it(name: str, fixed: Fixed) -> None:
    # GIVEN a step that exchanges its state, has its rate written, or picks what the device decides
    text, expected = WHOLE[name]
    # WHEN it is rewritten
    found = fixed(text)
    # THEN replays give eager's numbers and state, in the user's names
    assert found.complete, found
    for line in expected:
        assert line in lines_of(found), found


RATES = {
    "in place": ('for g in opt.param_groups:\n            g["lr"] *= 0.5', 'g["lr"] *= 0.5'),
    "as another number": ('opt.param_groups[0]["lr"] = 0.01', 'opt.param_groups[0]["lr"].fill_(0.01)'),
}


@pytest.mark.parametrize("name", RATES)
def test_a_rate_that_the_moved_lines_write_one_day_is_a_tensor(name: str, fixed: Fixed) -> None:
    # GIVEN a rate that falls once the losses rise, which the steps that are tried do not show
    write, expected = RATES[name]
    found = fixed(
        "losses, lin = [], nn.Linear(3, 1).to(device)\n"
        "opt = torch.optim.SGD(lin.parameters(), lr=1)\n"
        "args = (torch.randn(4, 3, device=device),)\n"
        "def f(x):\n    loss = (lin(x) / 9).square().mean()\n    opt.zero_grad()\n    loss.backward()\n    opt.step()\n"
        "    losses.append(loss.item())\n"
        f"    if len(losses) > 7:\n        {write}\n"
        "    return loss.detach()\n"
    )
    # WHEN it is rewritten THEN the graph reads the rate from a tensor, which ten steps show
    assert found.complete, found
    assert "lr=torch.tensor(1.0, device=device)" in found.diff
    assert any(expected in line for line in found.diff.splitlines())


def test_each_group_of_parameters_has_a_rate_of_its_own(fixed: Fixed) -> None:
    # GIVEN two groups, of which one has no rate of its own: torch would give both the one tensor of the constructor
    found = fixed(
        "losses, lin = [], nn.Linear(3, 1).to(device)\n"
        "opt = torch.optim.SGD([{'params': [lin.weight]}, {'params': [lin.bias]}], lr=0.1)\n"
        "args = (torch.randn(4, 3, device=device),)\n"
        "def f(x):\n    loss = lin(x).square().mean()\n    opt.zero_grad()\n    loss.backward()\n    opt.step()\n"
        "    losses.append(loss.item())\n"
        "    for g in opt.param_groups:\n        g['lr'] *= 0.5 if len(losses) > 3 else 1.0\n"
        "    return loss.detach()\n"
    )
    # THEN each is made a tensor for itself
    assert 'group["lr"] = torch.tensor(float(group["lr"]), device=device)' in lines_of(found), found
    assert "lr=torch.tensor" not in found.diff


def test_a_rate_that_a_helper_of_moved_lines_writes_moves_the_step_behind_with_it(fixed: Fixed) -> None:
    # GIVEN the same in a function that the moved lines call, where no line of it moves, and no call has set it
    found = fixed(
        "losses, lin = [], nn.Linear(3, 1).to(device)\n"
        "opt = torch.optim.SGD(lin.parameters(), lr=0.1)\n"
        "args = (torch.randn(4, 3, device=device),)\n"
        "def lower():\n    if len(losses) > 7:\n        for g in opt.param_groups:\n            g['lr'] = 0.01\n"
        "def f(x):\n    loss = lin(x).square().mean()\n    opt.zero_grad()\n    loss.backward()\n    opt.step()\n"
        "    losses.append(loss.item())\n    lower()\n    return loss.detach()\n"
    )
    # THEN what reads the rate is behind the launch, too
    assert found.complete, found
    assert [line for line in found.diff.splitlines() if line.startswith("+    ")] == ["+    return loss.detach()"]


ADVICE = {
    "the end of a loop that trains": (
        """
lin = nn.Linear(3, 1).to(device)
opt = torch.optim.SGD(lin.parameters(), lr=0.1)
args = (torch.randn(4, 3, device=device),)
def f(x):
    for _ in range(3):
        loss = lin(x).square().mean()
        near = loss.item()
        if near < 0.001:
            break
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.detach()
""",
        "one round of the loop at line 15 is what is captured, without `opt.step()`",
    ),
    "sizes of a split": (
        """
args = (torch.randn(6, 3, device=device), torch.tensor([2, 2, 2], device=device))
def f(x, n):
    return torch.stack([each.mean(0) for each in torch.split(x, n.tolist())])
""",
        "`n` decides sizes: give it as numbers of the host among the arguments",
    ),
    "a backward that looks for zeros": (
        """
w = torch.rand(4, device=device, requires_grad=True)
args = (torch.rand(4, device=device),)
def f(x):
    t = torch.cumprod(w * x, dim=0)
    (g,) = torch.autograd.grad(t.sum(), w)
    return g
""",
        "`torch.stack(list(itertools.accumulate((w * x).unbind(0), torch.mul)), 0)` gives the same",
    ),
}


@pytest.mark.parametrize("name", ADVICE)
def test_what_a_value_decides_is_told_with_what_to_do_instead(
    name: str, fixed: Fixed, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a value that a size, the end of a loop, or a backward pass needs, and no pieces that are proved
    text, wanted = ADVICE[name]
    monkeypatch.setattr(_pieces, "in_pieces", lambda *_, **__: _pieces.NOT_PROVED)
    # WHEN rewritten THEN it says what to do
    found = fixed(text)
    assert not found.complete
    assert any(wanted in line for line in found.instead), found


def test_a_method_of_another_class_with_the_same_name_reads_nothing_in_the_graph(fixed: Fixed) -> None:
    # GIVEN two classes of a file with a method of one name, of which one writes a number behind the launch
    found = fixed(
        "class Meter:\n    def __init__(self):\n        self.total = 0.0\n"
        "    def step(self, x):\n        loss = x.sum()\n        self.total += loss.item()\n        return loss\n"
        "class Other:\n    def __init__(self):\n        self.total = 0.0\n"
        "    def step(self, x):\n        return x * self.total\n"
        "args = (torch.randn(4, device=device),)\nf = Meter().step\n"
    )
    # THEN the other's, which never ran, does not stand against it
    assert found.complete, found


@pytest.mark.parametrize(
    ("other", "given"),
    [
        ("stats['missed']", "stats = state\n"),
        ("k.stats['missed']", "class Kept: pass\nj, k = Kept(), Kept()\nj.stats, k.stats = {'missed': 0}, state\n"),
    ],
)
def test_what_is_counted_by_one_name_and_read_by_another_is_no_number_of_a_launch(
    fixed: Fixed, other: str, given: str
) -> None:
    # GIVEN a gate that counts in a dictionary, which a launch reads by another of its names
    head = "args = (torch.randn(3, 4, device=device),)\n"
    head += f"state = {{'y': torch.zeros(4, device=device), 'missed': 0}}\n{given}def f(x):\n"
    reads = f"    y = state['y'] + x.mean(0) / (1 + {other})\n    far = (y - x[0]).norm()\n"
    gate = "    if far.item() < 3:\n        y = y + 0.5 * (x[0] - y)\n        state['missed'] = 0\n    else:\n"
    # WHEN a fix is asked for
    fix = fixed(f"{head}{reads}{gate}        state['missed'] += 1\n    state['y'] = y\n    return y\n")
    # THEN it is told that a graph would keep it
    assert not fix.complete, fix
    assert "gets another value outside the launch" in str(fix), fix


@pytest.mark.parametrize("count", ["s['missed'] += 1", "s.update(missed=s['missed'] + 1)", "t = s; t['missed'] = 1"])
def test_what_a_helper_counts_in_what_it_is_given_is_no_number_of_a_launch(fixed: Fixed, count: str) -> None:
    # GIVEN a helper that counts in a dictionary that it is given, which a launch reads WHEN a fix is asked for
    fix = fixed(f"""
state = {{"missed": 0}}
args = (torch.randn(3, 4, device=device),)
def note(s, bad):
    if bad:
        {count}
def f(x):
    y = x.mean(0) / (1 + state["missed"])
    far = (y - x[0]).norm()
    note(state, far.item() > 90)
    return y * 2
""")
    # THEN it is told that a graph would keep it
    assert not fix.complete, fix
    assert "`state` gets another value outside the launch" in str(fix), fix


@pytest.mark.parametrize(
    ("count", "helper"),
    [("state['n'] += 1", ""), ("s = state; s['n'] += 1", ""), ("note(state)", "def note(s):\n    s['n'] += 1\n")],
)
def test_a_round_reads_what_is_counted_around_it_by_another_name(count: str, helper: str) -> None:
    # GIVEN a loop that counts in a dictionary, which its round reads by another name
    lines = [f"def f():\n    for x in rows:\n        one(x)\n        {count}\n"]
    lines += [f"def one(x):\n    return x * stats['n']\n{helper}"]
    # WHEN asked THEN it is found where the names are known to be of one
    state = {"n": 0}
    same = one_name({"state": state, "stats": state, "other": {}}, [])
    assert moved_around(lines, "f", "one", ["state"], ["state"], ["one"]) == ("", set())
    assert moved_around(lines, "f", "one", ["state"], [], ["one"], same=same)[0] == "state"


def test_what_a_property_reads_is_not_counted_behind_it(fixed: Fixed) -> None:
    # GIVEN a gate that sets a number first, which a property then reads WHEN a fix is asked for
    fix = fixed("""
class Filter:
    y, missed = torch.zeros(4, device=device), 0
    @property
    def trust(self):
        return 1 / (1 + self.missed)
    def step(self, z):
        y = self.y + z
        if y.norm() < 9:
            self.missed = 0
            y = y + self.trust * z
        else:
            self.missed += 1
        return y
kf = Filter()
args = (torch.randn(4, device=device),)
def f(z):
    return kf.step(z)
""")
    # THEN the two stay together
    assert not any("chosen" in line for line in lines_of(fix)), fix
