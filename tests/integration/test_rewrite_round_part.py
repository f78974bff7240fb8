"""A part of a function, or of a loop's rounds, that runs where a test of the host's lets it: a graph of its own."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.loops.spans import may_train_before
from paramgraph_kit.rewrite.round_parts import has_own_gradients
from paramgraph_kit.rewrite.source.edits import Source
from tests.integration.rewritten import Fixed, lines_of, run, with_rounds

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

GATE = """
net, head = nn.GRUCell(6, 8).to(device), nn.Linear(8, 3).to(device)
state = {"h": torch.zeros(1, 8, device=device), "silent": 0}
args = (torch.randn(6, device=device),)
def feed(i):
    return (torch.randn(6, generator=torch.Generator().manual_seed(i)).to(device) * (0.1 if i in (4, 5, 8) else 1),)
@torch.no_grad()
def f(chunk):
    energy = (chunk ** 2).mean()
    if energy.item() < 0.1:
        state["silent"] += 1
        if state["silent"] > 1:
            state["h"] = torch.zeros_like(state["h"])
        return -1
    state["silent"] = 0
    x = torch.log1p(chunk.abs())
    state["h"] = net(x[None], state["h"])
    best = head(state["h"]).softmax(-1).argmax(-1)
    return best.item()
"""
WINDOWS = """
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).to(device)
args = (torch.randn(24, device=device),)
skipped = []
@torch.no_grad()
def f(signal):
    out = torch.zeros(24, device=device)
    weight = torch.hann_window(8, periodic=False) + 0.1
    weight = (weight * weight).to(device)
    for x in range(0, 17, 4):
        patch = signal[x:x + 8]
        if patch.abs().mean() < 0.7:
            skipped.append(x)
            continue
        out[x:x + 8] += net(patch[None])[0].softmax(-1) * weight
    return out.cpu().numpy()
"""
SOLVER = """
a = torch.randn(6, 6, generator=torch.Generator().manual_seed(1)).to(device)
a = a @ a.T + 4 * torch.eye(6, device=device)
args = (torch.randn(6, device=device),)
def f(b):
    x, r = torch.zeros_like(b), b.clone()
    p, rz, norms = r.clone(), r.dot(r), [1.0]
    for _ in range(12):
        ap = a @ p
        alpha = (rz / p.dot(ap)).item()
        x = x + alpha * p
        r = r - alpha * ap
        norms.append(r.norm().item())
        if norms[-1] < 1e-3 * norms[0]:
            break
        new = r.dot(r)
        p = r + new / rz * p
        rz = new
    return x, norms
"""
NEWTON = """
a = torch.randn(6, 6, generator=torch.Generator().manual_seed(1)).to(device) * 0.1
args = (torch.randn(6, device=device),)
def residual(x, b):
    return x + 0.3 * torch.tanh(a @ x) - b
def f(b):
    x, norms = torch.zeros_like(b), []
    for _ in range(12):
        r = residual(x, b)
        n = r.norm().item()
        norms.append(n)
        if n < 1e-5:
            return x, norms
        jac = torch.autograd.functional.jacobian(lambda z: residual(z, b), x)
        x = x - torch.linalg.solve(jac, r)
    return x, norms
"""

ADAPTIVE = """
net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)).to(device)
args = (torch.randn(2, 3, device=device),)
@torch.no_grad()
def f(y):
    t, h, n = 0.0, 0.4, 0
    while t < 1.0:
        h = min(h, 1.0 - t)
        k1 = net(y)
        k2 = net(y + h * k1)
        err = (h * 0.5 * (k2 - k1)).abs().max().item()
        if err < 1e-2 or h < 1e-2:
            y = y + h * 0.5 * (k1 + k2)
            t += h
            n += 1
        h = h * min(2.0, max(0.3, 0.9 * (1e-2 / max(err, 1e-10)) ** 0.5))
    return y, n
"""


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        pytest.param(GATE, ["def f_part(chunk, h_in):  # a part of f", 'state["h"] = h_in'], id="behind a return"),
        pytest.param(
            WINDOWS,
            ["out_now = f_round(patch, weight)", "out[x:x + 8] += out_now"],
            id="behind a continue, and ahead of places",
        ),
        pytest.param(SOLVER, ["x, r, value_now, new, p = f_round(p, rz, x, r)"], id="the rest of it before a break"),
        pytest.param(NEWTON, ["n_now, x_next = f_round(x, b)", "x = x_next"], id="a rest whose names are read behind"),
        pytest.param(ADAPTIVE, ["k1, k2 = f_round(y, h_in)"], id="a step that the host takes or leaves"),
    ],
)
def test_what_a_test_stands_before_is_a_graph(text: str, lines: list[str], tmp_path: Path) -> None:
    # GIVEN a test that leaves out most of a step, or ends its loop WHEN rewritten
    fix = with_rounds(text, lines, tmp_path, replays=3)
    # THEN what it stands before is a graph, which ten steps are compared with, and most of the step is in it
    assert fix.worth.share > 0.5, fix
    assert not fix.is_little


def test_what_is_seen_behind_the_loop_is_not_done_before_its_end(tmp_path: Path) -> None:
    # GIVEN the same solver, whose result is set behind the test WHEN rewritten
    text = SOLVER.replace("        x = x + alpha * p\n", "").replace(
        "        rz = new", "        rz, x = new, x + alpha * p"
    )
    fix = with_rounds(text, [], tmp_path)
    # THEN the test stays where it is
    assert not any("x, " in line and "f_round" in line for line in lines_of(fix)), fix


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (
            "break",
            "make one round of the loop at line 14 the function that is captured, launch it in that loop, and ask",
        ),
        ("continue", "a launch cannot leave out lines 18 to 20: make a function of them, with a graph of its own"),
    ],
)
def test_a_loop_without_end_is_not_told_to_lose_its_test(end: str, told: str, fixed: Fixed) -> None:
    # GIVEN rounds of which nothing is rewritten, as many as it takes WHEN rewritten
    found = fixed(f"""
args = (torch.randn(8, device=device),)
def f(x):
    n = 0
    while {"True" if end == "break" else "n < 9"}:
        n, u = n + 1, torch.unique(x.round())
        if u.sum() * 0 + x.abs().max() < 3:
            {end}
        x = x * 0.5 + u.sum().item() * 0
        x = x + torch.unique(u.round()).sum() * 0
        x = x + n * 1e-3
    return x
""")
    # THEN what is told leaves it where it is
    assert told in str(found), found


CALLED = """
net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)).to(device)
args = (torch.randn(4, 3, device=device),)
class Solver:
    def __init__(self):
        self.steps = 0
    def scale(self, ratio, dt):
        if ratio == 0:
            return dt * 4
        return dt * (0.9 / ratio ** 0.5).clamp(0.2, 4.0)
    def step(self, t, y, dt):
        new = y + dt * net(y)
        ratio = ((dt * net(new) - dt * net(y)).abs().max() / 0.05)
        if ratio <= 1:
            t, y = t + dt, new
        self.steps += 1
        return t, y, self.scale(ratio, dt)
    def solve(self, y, end):
        t, dt = torch.zeros((), device=device), torch.full((), 0.3, device=device)
        while t < end:
            t, y, dt = self.step(t, y, torch.min(dt, end - t))
        return y
solver = Solver()
@torch.no_grad()
def f(y):
    return solver.solve(y, torch.ones((), device=device))
"""


def test_a_round_has_gradients_as_its_callers_have_them(tmp_path: Path) -> None:
    # GIVEN a solver's loop in a method, which is called without gradients WHEN rewritten
    fix = with_rounds(CALLED, ["dt, t, y = solve_round(self, t, y, dt, end)"], tmp_path)
    # THEN most of what is done is in its round, which is captured so, and leaves gradients to who calls it with them
    assert fix.worth.share > 0.9
    assert "@torch.no_grad()" not in lines_of(fix)
    assert "in `torch.no_grad()`, as it is called here" in str(fix)


def test_a_backward_pass_counts_as_work_of_its_line(tmp_path: Path) -> None:
    # GIVEN a method, called by a function that returns nothing, which trains an actor at every second step only
    text = """
class Agent:
    def __init__(self):
        self.actor, self.critic = nn.Linear(4, 2).to(device), nn.Linear(6, 1).to(device)
        self.opt_a = torch.optim.SGD(self.actor.parameters(), lr=0.1)
        self.opt_c = torch.optim.SGD(self.critic.parameters(), lr=0.1)
        self.n = 0
    def train(self, s, a, r):
        self.n += 1
        with torch.no_grad():
            y = r + 0.99 * self.critic(torch.cat([s, self.actor(s)], 1))
        loss = F.mse_loss(self.critic(torch.cat([s, a], 1)), y)
        self.opt_c.zero_grad()
        loss.backward()
        self.opt_c.step()
        if self.n % 2 == 0:
            gain = -self.critic(torch.cat([s, self.actor(s)], 1)).mean()
            self.opt_a.zero_grad()
            gain.backward()
            self.opt_a.step()
agent = Agent()
args = (torch.randn(8, 4, device=device), torch.randn(8, 2, device=device), torch.randn(8, 1, device=device))
def f(s, a, r):
    agent.train(s, a, r)
"""
    # WHEN rewritten
    fix = with_rounds(text, ["train_part(self, r, s, a)", "    loss.backward()"], tmp_path)
    # THEN the graph is what trains the critic, and not what computes its target alone
    assert fix.worth.share > 0.5, fix


SKIPPED = """
net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 2)).to(device)
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
g = torch.Generator().manual_seed(0)
batches = [(torch.randn(4, 6, generator=g), torch.randint(0, 2, (4,), generator=g)) for _ in range(4)]
batches[1][0][0, 0] = batches[3][0][0, 0] = float("nan")
args = ()
def f():
    total, skipped = 0.0, 0
    for x, y in batches:
        x, y = x.to(device), y.to(device)
        loss = F.cross_entropy(net(x), y)
        if not math.isfinite(loss.item()):
            skipped += 1
            opt.zero_grad()
            continue
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        total += loss.item() * norm.item()
    return total, skipped
"""


def test_a_round_is_left_out_behind_its_backward_pass(tmp_path: Path) -> None:
    # GIVEN a loop that goes on without a step where a loss is nan, as two of its four are WHEN rewritten
    lines = [
        "    loss.backward()",
        "        loss, norm = f_round(x, y)",
        "            opt.zero_grad(set_to_none=False)",
    ]
    fix = with_rounds(SKIPPED, lines, tmp_path)
    # THEN the backward pass is in the graph, and the step is the host's, where it has asked
    assert not any("opt.step()" in line for line in lines_of(fix)), fix


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("        opt.zero_grad()\n        loss.b", "        loss.b"),  # gradients of many rounds come together
        ("skipped += 1", "skipped += net[0].weight.grad.norm().item()"),
        ("skipped += 1", "skipped += norm.item()"),  # of a round before
        ("loss.backward()", "loss.backward(); net[0].weight.data.mul_(0.9)"),
    ],
)
def test_a_test_before_a_backward_pass_stays_there(line: str, other: str) -> None:
    # GIVEN what the test, or other rounds, may see of a backward pass
    plain = SKIPPED.replace("            opt.zero_grad()\n", "")
    # WHEN asked whether the test may wait for it THEN it may not, and may without that
    assert _may_wait(plain)
    assert not _may_wait(plain.replace(line, other))


def _may_wait(text: str) -> bool:
    loop = next(node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.For))
    at = next(n for n, node in enumerate(loop.body) if isinstance(node, ast.If))
    step = next(n for n, node in enumerate(loop.body) if ast.unparse(node) == "opt.step()")
    return may_train_before(loop.body[at], loop.body[at + 1 : step], loop, loop)


LABELS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.inp, self.out = nn.Embedding(4, 8), nn.Linear(6, 8), nn.Linear(8, 6)
    def forward(self, x, y):
        h = self.inp(x)
        if y is not None:
            h = h + self.emb(y)
        return self.out(F.silu(h))
net = Net().to(device)
opt = torch.optim.AdamW(net.parameters(), lr=3e-4)
rows = torch.utils.data.TensorDataset(torch.randn(32, 6), torch.randint(0, 4, (32,)))
loader = torch.utils.data.DataLoader(rows, 8)
args = ()
def f():
    total = 0.0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        eps = torch.randn_like(images)
        noisy = images + eps
        if np.random.random() < 0.3:
            labels = None
        loss = F.mse_loss(eps, net(noisy, labels))
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    return total
"""


def test_a_label_that_is_dropped_by_chance_decides_which_graph_is_launched(tmp_path: Path) -> None:
    # GIVEN a loop that drops labels by chance in the middle of its rounds WHEN rewritten
    lines = ["        if np.random.random() < 0.3:", "        loss = f_round(images, labels)"]
    fix = with_rounds(LABELS, lines[1:], tmp_path)
    # THEN that is decided before a round, without labels it has another graph, and what they do not share is told
    order = [
        next(n for n, each in enumerate(fix.texts[str(tmp_path / "program.py")]) if line in each) for line in lines
    ]
    assert order == sorted(order), fix
    assert "`labels` may be None: capture a graph of its own for that" in str(fix)
    assert "each graph has gradients of its own" in str(fix)
    source = Source.of(str(tmp_path / "program.py"))
    assert source is not None
    loop = next(node for node in ast.walk(source.tree) if isinstance(node, ast.For))
    # GIVEN its step among the lines of a round, or beside them WHEN asked whether all gradients are a round's own
    own = [has_own_gradients(loop.body[at:end], [source]) for at, end in ((4, -1), (4, -2), (6, -1))]
    # THEN they are where it zeroes them, runs its backward pass, and steps
    assert own == [True, False, False]


def test_a_clock_is_asked_beside_the_graph(tmp_path: Path) -> None:
    # GIVEN a step that takes the time in its middle, and returns what no graph gives WHEN rewritten
    text = """
net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)).to(device)
args = (torch.randn(4, 3, device=device),)
timings = []
@torch.inference_mode()
def f(x):
    scale = x.new_ones(3) * 2
    begun = time.time()
    y = net(net(net(x) * scale))
    for i in range(3):
        y[i:i + 1] = net(y[i:i + 1]).sigmoid()
    timings.append(time.time() - begun)
    return (y * 255).round().cpu().numpy().tolist()
"""
    names = run(text, tmp_path)
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN no graph gives back when that was
    assert fix is not None
    assert not any(
        "begun" in line and ("launched(" in line or "return" in line) for line in (*fix.loop, *lines_of(fix))
    )


DROPPED = """
emb, net = nn.Embedding(4, 8).to(device), nn.Linear(8, 8).to(device)
opt = torch.optim.SGD([*net.parameters(), *emb.parameters()], lr=0.1)
args = (torch.randn(4, 8, device=device), torch.tensor([0, 1, 2, 3], device=device))
def model(x, y=None):
    if y is not None:
        x = x + emb(y)
    return net(x)
def f(x, y):
    if np.random.random() < 0.3:
        y = None
    loss = F.mse_loss(model(x, y), x)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
"""


def test_that_a_part_is_given_none_at_times_is_told(fixed: Fixed) -> None:
    # GIVEN a label that the host drops by chance WHEN the rest of the step is a graph
    found = fixed(DROPPED)
    # THEN it is told that this is one of two, whether or not a trial had both
    assert "def f_part(x, y):  # a part of f" in lines_of(found), found
    assert "`y` may be None: capture a graph of its own for that, whatever this trial had" in found.verified, found


def test_lines_beside_a_part_stay_and_it_says_whose_size_they_decide(tmp_path: Path) -> None:
    # GIVEN a function that picks edges and counts nodes before all that it computes
    text = """
lin, args = nn.Linear(4, 3).to(device), (torch.randn(6, 4, device=device), torch.randint(0, 6, (2, 9), device=device))
def f(x, edges):
    edges = edges[:, edges[0] != edges[1]]
    n = int(edges.max()) + 1
    loop = torch.arange(n).repeat(2, 1).to(x.device)
    src, dst = torch.cat([edges, loop], dim=1)
    h = lin(x)
    alpha = F.leaky_relu(h.sum(-1)[src] + h.sum(-1)[dst]).exp()
    total = torch.zeros(n, device=x.device).index_add(0, dst, alpha)
    out = torch.zeros(n, 3, device=x.device).index_add(0, dst, h[src] * (alpha / total[dst])[:, None])
    return out.tanh()
"""
    names = run(text, tmp_path)
    # WHEN a part of it is cut out
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    fix: Any = found.fix
    assert fix.alone == "f_part", fix
    # THEN what is beside it stays, also where another line would bring more into it: this one is proved
    told = {each.frame.text: str(each.fix) for each in found if each.frame}
    stays = "after   stays as it is, beside the part that a graph holds"
    assert told["edges = edges[:, edges[0] != edges[1]]"].endswith(stays)
    assert told["n = int(edges.max()) + 1"].endswith("after   as in the diff, with what belongs to it elsewhere")
    assert told["loop = torch.arange(n).repeat(2, 1).to(x.device)"].endswith(stays)
    # AND it says whose sizes what is picked decides
    assert "decides the size of `edges`, `loop`" in str(fix)


SWEEPS = """
spins = torch.ones(4, 8, device=device)
masks = [torch.arange(8, device=device) % 2 == k for k in range(2)]
seen = {"flips": 0, "odd": 0, "swaps": 0}
args = (torch.randn(8, device=device), torch.rand(2, 4, 8, device=device))
def sweep(field, uniforms):
    for mask, u in zip(masks, uniforms):
        flip = (u < torch.exp(-2.0 * spins * (spins.roll(1, 1) + field))) & mask
        spins[flip] *= -1.0
        seen["flips"] += flip.sum().item()
def swap(field):
    e = (spins * field).sum(1).tolist()
    for a in range(seen["odd"], 3, 2):
        if e[a] > e[a + 1]:
            spins[[a, a + 1]] = spins[[a + 1, a]]
            seen["swaps"] += 1
    seen["odd"] = 1 - seen["odd"]
@torch.no_grad()
def f(field, uniforms):
    sweep(field, uniforms)
    swap(field)
    return spins.mean(1)
"""


def test_what_a_function_beside_that_of_the_round_does_stays_beside_it(tmp_path: Path) -> None:
    # GIVEN a step that calls a loop's function and, behind it, one that the host decides
    names = run(SWEEPS, tmp_path)
    # WHEN a round of the loop is cut out
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    fix: Any = found.fix
    # THEN lines of the other one, which the diff leaves as they are, are said to stay beside it
    assert fix.is_of_loop, fix
    told = {each.frame.text: str(each.fix) for each in found if each.frame}
    line = next(text for text in told if text.startswith("e = (spins"))
    assert "after   stays as it is, beside the part that a graph holds" in told[line], told[line]
