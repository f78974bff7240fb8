"""Fixes that hand lists and numbers of the host over to what is behind the launch, and train there."""

from __future__ import annotations

import pytest
import torch

from tests.integration.rewritten import Fixed, lines_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")
NET = """
net = nn.Linear(6, 2).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
"""
WHOLE = {
    "a list of losses whose mean is kept": (
        NET
        + """
losses = []
args = (torch.randn(3, 4, 6, device=device), torch.randint(0, 2, (3, 4), device=device))
def f(x, y):
    per = []
    total = 0.0
    for t in range(3):
        loss = F.cross_entropy(net(x[t]), y[t])
        per.append(loss.item())
        total = total + loss
    opt.zero_grad()
    total.backward()
    opt.step()
    losses.append(np.mean(per))
    return total.detach()
""",
        ["per.append(loss.detach())", "return total.detach(), torch.stack(per).detach()", "per = per.tolist()"],
    ),
    "lists of tensors, of which what is behind the launch takes some, adds to them and keeps one": (
        """
draft = nn.Embedding(9, 9).to(device)
kept = []
args = (torch.randint(0, 9, (1,), device=device),)
def feed(i):
    return (torch.tensor([i % 9]).to(device),)
@torch.no_grad()
def f(last):
    toks, probs = [], []
    for _ in range(3):
        q = draft(last).softmax(-1)
        last = q.argmax(-1)
        toks.append(last)
        probs.append(q)
    n = 0
    for i in range(3):
        if torch.rand(1, device=device) > probs[i].max() + 0.4:
            break
        n += 1
    toks.append(last)
    kept.append(toks[0])
    return torch.cat(toks[: n + 1]).tolist()
""",
        [
            "return last.detach(), [each.detach() for each in probs], [each.detach() for each in toks]",
            "toks = [each.clone() for each in toks]",
        ],
    ),
    "rows that are picked from themselves behind a way out": (
        """
net, last = nn.Linear(4, 4).to(device), torch.zeros(4, device=device)
args = (torch.randn(5, 4, device=device),)
@torch.no_grad()
def f(x):
    global last
    z = net(x)
    good = z[:, 0] < z[:, 0].median()
    if good.sum() == 0:
        print("none")
        return last
    z = z[good]
    last = z.mean(0)
    return last
""",
        ["return good.detach(), z.detach()", "z = z[good]"],
    ),
    "what an object keeps of its arguments, which a launch reads where they are": (
        """
head = nn.Linear(4, 1).to(device)
class Detector:
    def __init__(self):
        self.frames, self.by, self.n = [], {}, 0
    @torch.no_grad()
    def push(self, frame):
        p = torch.sigmoid(head(frame))
        if p > 0.0:
            self.n += 1
            self.frames.append(frame)
            self.by[self.n] = (frame[1:], p)
        return p
detector, args = Detector(), (torch.randn(4, device=device),)
def f(frame):
    return detector.push(frame)
""",
        ["self.frames.append(frame.clone())", "self.by[self.n] = (frame[1:].clone(), p.clone())"],
    ),
    "numbers of a list that decide what is returned of another one": (
        """
net, trace = nn.Linear(4, 4).to(device), []
args = (torch.randn(3, 4, device=device),)
@torch.no_grad()
def f(x):
    states = [x]
    for _ in range(3):
        x = net(x).tanh()
        states.append(x)
    drift = [(a - b).abs().mean().item() for a, b in zip(states[:-1], states[1:])]
    trace.append(max(drift))
    if max(drift) > 10:
        states = states[:3]
    return states[-1], len(states)
""",
        ["return [each.detach() for each in states]", "states = [each.clone() for each in states]"],
    ),
    "a tensor of the launch that a loop behind it writes, by places": (
        """
args = (torch.randn(5, 4, device=device),)
def f(x):
    for _ in range(3):
        x = (x * 1.5).tanh() - x.sin() / 4
    near = torch.cdist(x, x) < 2.5
    core = near.sum(1) > 1
    labels, c = torch.full((5,), -1, device=device), 0
    for i in range(5):
        if labels[i] != -1 or not core[i]:
            print("left out")
            continue
        for j in near[i].nonzero().flatten().tolist():
            labels[j] = c
        c += 1
    return labels, c
""",
        ["return core.detach(), labels.detach(), near.detach()", "c = 0"],
    ),
    "parts of one token's states, which are the same in each trial": (
        """
embed, kept = nn.Embedding(9, 6).to(device), []
args = (torch.randint(0, 9, (1,), device=device),)
def feed(i):
    return (torch.tensor([i % 9]).to(device),)
@torch.no_grad()
def f(last):
    h = embed(last).tanh()
    kept.append(h.chunk(3, 1)[0])
    kept.append(torch.squeeze(h, 0)[1:])
    return h.sum().item()
""",
        ["kept.append(h.chunk(3, 1)[0].clone())", "kept.append(torch.squeeze(h, 0)[1:].clone())"],
    ),
    "what the host draws, read by a log as well": (
        """
correct = 0
args = (torch.randn(6, 8, device=device), torch.randint(0, 4, (6,), device=device))
def f(x, y):
    global correct
    lam = np.random.beta(0.4, 0.4)
    index = torch.randperm(x.size(0), device=x.device)
    x = lam * x + (1 - lam) * x[index]
    pred = x.argmax(1)
    correct += lam * pred.eq(y).sum().item() + (1 - lam) * pred.eq(y[index]).sum().item()
    return x * 2
""",
        ["global lam", "lam_in.fill_(lam)", "x = lam_in * x + (1 - lam_in) * x[index]"],
    ),
    "a copy that the first step makes": (
        """
class Motion:
    last = None
motion = Motion()
args = (torch.randn(6, device=device),)
def f(x):
    if motion.last is None:
        motion.last = x.clone()
        return x * 0
    moved = x - motion.last
    motion.last = x
    return moved
""",
        ["motion.last.copy_(x.view_as(motion.last))"],
    ),
    "a step's number, of which powers are taken from one": (
        """
m = torch.zeros(3, device=device); v = torch.zeros(3, device=device)
n = 0
args = (torch.randn(3, device=device),)
def f(g):
    global m, v, n
    n += 1
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    return m / (1 - 0.9 ** n) / (torch.sqrt(v / (1 - 0.999 ** n)) + 1e-8)
""",
        ["n_in = torch.zeros((), dtype=torch.float64, device=device)", "n_in.fill_(n)"],
    ),
    "numbers that are drawn in an order, with a size of the function's own": (
        """
args = (torch.randn(4, 3, 8, 8, device=device),)
def f(x):
    pad = 2
    if random.random() < 0.5:
        x = torch.flip(x, dims=[3])
    img = F.pad(x, (pad, pad, pad, pad))
    i = random.randint(0, 2 * pad)
    j = random.randint(0, 2 * pad)
    out = img[:, :, i:i + 8, j:j + 8]
    return out.sum((2, 3))
""",
        ["pad = 2", "given_in.fill_(random.random() < 0.5)", "i = random.randint(0, 2 * pad)"],
    ),
    "a norm that is added up of numbers, and a logger's step": (
        """
class Writer:
    def __init__(self):
        self.scalars = []
    def add_scalar(self, tag, value, step):
        self.scalars.append((tag, float(value), step))
writer, step = Writer(), 0
"""
        + NET
        + """
args = (torch.randn(4, 6, device=device), torch.randint(0, 2, (4,), device=device))
def f(x, y):
    global step
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    norm = 0.0
    for p in net.parameters():
        norm += p.grad.norm(2).item() ** 2
    norm = norm ** 0.5
    opt.step()
    writer.add_scalar("loss", loss, step)
    writer.add_scalar("norm", norm, step)
    step += 1
    return loss.detach()
""",
        ["norm += p.grad.norm(2).detach() ** 2", 'writer.add_scalar("norm", norm.clone(), step.clone())'],
    ),
    "negatives that numpy draws, as many as there are rows": (
        """
items = nn.Embedding(12, 4).to(device)
args = (torch.randint(0, 12, (6,), device=device),)
def f(i):
    j = torch.LongTensor(np.random.randint(0, 12, len(i))).to(device)
    return (items(i) - items(j)).sum(1).detach()
""",
        ["j_in.copy_(torch.LongTensor(np.random.randint(0, 12, len(i))).to(device).view_as(j_in))", "j = j_in"],
    ),
    "hidden states that begin as None": (
        """
rnn, hidden = nn.LSTM(3, 4).to(device), None
args = (torch.randn(4, 2, 3, device=device),)
def f(x):
    global hidden
    if hidden is not None:
        hidden = tuple(h.detach() for h in hidden)
    out, hidden = rnn(x, hidden)
    return out.sum().detach()
""",
        ["if hidden is None:", "hidden = tuple(new.detach().clone() for new in hidden_now)"],
    ),
    "a generator that trains now and then, and logs the critic's loss": (
        """
G, D = nn.Linear(3, 5).to(device), nn.Linear(5, 1).to(device)
optG, optD = torch.optim.SGD(G.parameters(), lr=1e-2), torch.optim.SGD(D.parameters(), lr=1e-2)
i, log = 0, []
args = (torch.randn(6, 5, device=device),)
def f(real):
    global i
    optD.zero_grad()
    z = torch.Tensor(np.random.normal(0, 1, (real.shape[0], 3))).to(device)
    d_loss = D(G(z)).mean() - D(real).mean()
    d_loss.backward()
    optD.step()
    optG.zero_grad()
    if i % 3 == 0:
        g_loss = -D(G(z)).mean()
        g_loss.backward()
        optG.step()
        log.append((i, d_loss.item(), g_loss.item()))
    i += 1
""",
        [
            "z_in.copy_(torch.Tensor(np.random.normal(0, 1, (real.shape[0], 3))).to(device).view_as(z_in))",
            "optG.zero_grad(set_to_none=False)",
        ],
    ),
    "a penalty every few steps in the middle of a step": (
        """
G, D = nn.Linear(4, 6).to(device), nn.Linear(6, 1).to(device)
go, do = torch.optim.SGD(G.parameters(), lr=2e-3), torch.optim.SGD(D.parameters(), lr=2e-3)
idx = 0
args = (torch.randn(8, 6, device=device),)
def f(real):
    global idx
    d_loss = F.softplus(-D(real)).mean() + F.softplus(D(G(torch.randn(8, 4, device=device)).detach())).mean()
    D.zero_grad()
    d_loss.backward()
    do.step()
    if idx % 4 == 0:
        x = real.detach().requires_grad_(True)
        (g,) = torch.autograd.grad(D(x).sum(), x, create_graph=True)
        D.zero_grad()
        (g.square().sum() * 4).backward()
        do.step()
    g_loss = F.softplus(-D(G(torch.randn(8, 4, device=device)))).mean()
    G.zero_grad()
    g_loss.backward()
    go.step()
    idx += 1
    return g_loss.detach()
""",
        ["D.zero_grad(set_to_none=False)", "G.zero_grad(set_to_none=False)"],
    ),
}
BROAD = {"numbers that are drawn in an order, with a size of the function's own"}


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.sweep) if each in BROAD else each for each in WHOLE]
)
def test_what_is_handed_over_or_trains_behind_the_launch_is_whole(name: str, fixed: Fixed) -> None:
    # GIVEN a training step of which some lines need more than tensors, or train only now and then
    text, expected = WHOLE[name]
    # WHEN it is rewritten
    found = fixed(text)
    # THEN replays give eager's numbers and state, in the user's lines
    assert found.complete, found
    assert set(expected) <= set(lines_of(found)), found.diff
    assert ".clone().clone()" not in found.diff


@pytest.mark.parametrize(
    "line",
    [
        "if y.sum() > 1e6:\n        counts['bad'] = counts['bad'] + 1",
        "box.bad = box.bad + 1 if (y > 1e6).any() else box.bad",
        "if y.sum() > 1e6:\n        box.bad += 1",
    ],
)
def test_what_the_device_counts_now_and_then_is_counted_in_launches_too(line: str, fixed: Fixed) -> None:
    # GIVEN a number of the host's that no step that is tried changes, and later ones do, WHEN it is rewritten
    found = fixed(
        f"""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.bad = nn.Linear(4, 1), 0
        nn.init.constant_(self.lin.weight, 0.1)
    def forward(self, x):
        box, y = self, self.lin(x)
        {line}
        return y
counts, net = {{"bad": 0}}, Net().to(device)
args = (torch.rand(8, 4, device=device),)
def feed(i):
    x = torch.rand(8, 4, generator=torch.Generator().manual_seed(i))
    return ((x * 1e9 if i in (6, 8) else x).to(device),)
@torch.no_grad()
def f(x):
    return net(x) * 2
def seen(out):
    return out, counts["bad"], net.bad
""".replace("\n        counts", "\n            counts").replace("\n        box.bad +", "\n            box.bad +")
    )
    # THEN what is called whole counts them, as the helper has seen, and a number that is made anew is not rewritten so
    assert " = torch.where" not in found.diff


KEPT = """
embed, kept = nn.Embedding(9, 6).to(device), []
args = (torch.randint(0, 9, (1,), device=device),)
class Log:
    def __init__(self):
        self.rows = []
    def put(self, row):
        self.rows = [*self.rows, row]
log = Log()
@torch.no_grad()
def f(last):
    h = embed(last).tanh()
    log.put(h[:, 0])
    return h.sum().item()
"""


def test_what_steps_keep_of_a_launch_is_no_memory_that_the_next_one_writes(fixed: Fixed) -> None:
    # GIVEN an object that keeps a part of each step's states, which are the same in all steps of a trial WHEN rewritten
    found = fixed(KEPT)
    # THEN a copy is kept behind each launch, as the next one writes into the same memory
    assert found.complete, found
    assert "+        self.rows = [*self.rows, row.clone()]\n" in found.diff, found
