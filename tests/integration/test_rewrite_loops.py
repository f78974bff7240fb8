"""Fixes of loops that the device ends, of what trains only now and then, and of numbers that the next step reads."""

from __future__ import annotations

import pytest
import torch

from tests.integration.rewritten import Fixed, lines_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")


WHOLE = {
    "a table that a helper copies, and numbers of a schedule": (
        """
alphas = np.cumprod(np.linspace(0.999, 0.9, 50))
def extract(table, t, shape):
    out = torch.from_numpy(table).to(t.device)[t].float()
    return out.view(-1, *[1] * (len(shape) - 1))
args = (torch.randn(2, 3, device=device),)
@torch.no_grad()
def f(x, steps=4):
    seq = np.linspace(0, 49, steps).round().astype(int)
    for n, i in enumerate(seq[::-1]):
        t = torch.tensor([i] * len(x)).to(x.device)
        a = extract(alphas, t, x.shape)
        before = torch.tensor(alphas[seq[-n]] if n else 1.0, dtype=torch.float32, device=x.device)
        pair = torch.tensor([math.sqrt(1 + i), float(n)], device=x.device)
        x = a.sqrt() * x + (1 - before) * x.tanh() * pair.sum()
    return x
""",
        [
            "out = table[t].float()",
            "alphas_on_device = torch.from_numpy(alphas).to(device)",
            "t = torch.full((len(x),), i, dtype=torch.int64, device=x.device)",
            "a = extract(alphas_on_device, t, x.shape)",
        ],
    ),
    "a loop that the function leaves, and counts where": (
        """
blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(4)).to(device).eval()
exits = []
args = (torch.randn(1, 4, device=device) * 3,)
@torch.no_grad()
def f(x, threshold=0.6):
    for i, block in enumerate(blocks):
        x = torch.tanh(block(x))
        p = x.softmax(-1)
        if p.max() > threshold:
            exits.append(i)
            return p, x
    exits.append(len(blocks))
    return p, x * 0
""",
        ["done = done | (p.max() > threshold)", "if bool(done):", "i = int(i_then)"],
    ),
    "steps of a size that their error decides about, and how many there were": (
        """
net = nn.Linear(2, 2).to(device)
args = (torch.randn(3, 2, device=device),)
evaluations = []
@torch.no_grad()
def f(y):
    t, h, n = 0.0, 0.5, 0
    while t < 1.0 and n < 6:
        k1 = net(y)
        k2 = net(y + h * k1)
        err = (h * (k2 - k1)).abs().max().item()
        n += 1
        if err < 0.3:
            y, t = y + h * (k1 + k2) / 2, t + h
        else:
            h = h / 2
    evaluations.append(n)
    return y
""",
        [
            "for n in range(6):",
            "done = done | torch.logical_not(t < 1.0)",
            "last_n = torch.where(done, last_n, n + 1)",
        ],
    ),
    "a test that no step has failed yet, and how many rounds there were": (
        """
args = (torch.rand(6, device=device) + 1,)
def f(a):
    x = torch.ones_like(a)
    i = 0
    while (x * x - a).abs().max() > -1 and i < 3:
        x = 0.5 * (x + a / x)
        i += 1
    return x * i
""",
        ["last_i = torch.where(done, last_i, i + 1)", "return x * last_i"],
    ),
    "rounds that a counter ends from inside": (
        """
args = (torch.randn(12, 2, device=device),)
@torch.no_grad()
def f(points, k=3, most=8):
    centers, n = points[:k].clone(), 0
    while True:
        nearest = torch.cdist(points, centers).argmin(dim=1)
        new = centers.clone()
        for c in range(k):
            new[c] = torch.where((nearest == c)[:, None], points, 0).sum(0) / (nearest == c).sum()
        shift = (new - centers).norm().item()
        centers = new
        n += 1
        if shift < 1e-2 or n >= most:
            break
    return centers, nearest, n
""",
        ["for _ in range(most):", "last_n = torch.where(done, last_n, n)", "return centers, nearest, last_n"],
    ),
    "decoding until all have ended": (
        """
torch.manual_seed(4)
emb, cell, head = nn.Embedding(7, 6).to(device), nn.GRUCell(6, 6).to(device), nn.Linear(6, 7).to(device)
args = (torch.arange(1, 3, device=device),)
@torch.no_grad()
def f(tokens):
    h = torch.zeros(tokens.size(0), 6, device=device)
    ended = torch.zeros(tokens.size(0), dtype=torch.bool, device=device)
    out = [tokens]
    for _ in range(6):
        h = cell(emb(tokens), h)
        tokens = head(h).argmax(-1)
        tokens[ended] = 0
        ended = ended | (tokens == 5) | (tokens == 3)
        out.append(tokens)
        if ended.all():
            break
    return torch.stack(out, dim=1)
""",
        ["done = done | ended.all()", "out = list(out)[: len(out) - int(left)]", "return torch.stack(out, dim=1)"],
    ),
    "a token that is a number of the host's, in what grows": (
        """
torch.manual_seed(4)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.head = nn.Embedding(7, 6), nn.Linear(6, 7)
    @torch.no_grad()
    def generate(self, ids, n=6):
        said = []
        for _ in range(n):
            token = self.head(self.emb(ids).cumsum(1)[:, -1]).argmax(-1).item()
            ids = torch.cat([ids, torch.tensor([[token]], device=ids.device)], dim=1)
            if token in (3, 5) or token == 1:
                break
            said.append(token)
        return said
f = Model().to(device).generate
args = (torch.arange(3, device=device)[None],)
""",
        ["token = self.head(self.emb(ids).cumsum(1)[:, -1]).argmax(-1).detach().squeeze()"],
    ),
    "rounds until it is near, and how many there were": (
        """
args = (torch.rand(4, device=device) + 0.5,)
def f(a):
    x, off, k = a.clone(), float("inf"), 0
    last = 1.0
    n = 0
    while last > 1e-3 and n < 9:
        new = 0.5 * (x + a / x)
        last = (new - x).abs().max()
        x = new
        n += 1
    for k in range(9):
        x = x * 0.5
        if x.max() < 0.1:
            break
    return x, k
""",
        ["last = torch.full((), 1.0, device=device)", "for n in range(9):", "last_k = torch.where(done, last_k, k)"],
    ),
    "a generator that trains only now and then": (
        """
D, G = nn.Linear(4, 1).to(device), nn.Linear(2, 4).to(device)
opt_d, opt_g = torch.optim.SGD(D.parameters(), lr=0.1), torch.optim.SGD(G.parameters(), lr=0.1)
args = (torch.randn(6, 4, device=device), torch.randn(6, 2, device=device))
class Game:
    def __init__(self):
        self.n = 0
    def step(self, real, z):
        loss = D(G(z).detach()).mean() - D(real).mean()
        opt_d.zero_grad()
        loss.backward()
        opt_d.step()
        if self.n % 3 == 0:
            g_loss = -D(G(z)).mean()
            opt_g.zero_grad()
            g_loss.backward()
            opt_g.step()
        self.n += 1
        return loss.detach()
f = Game().step
""",
        ["opt_g.zero_grad(set_to_none=False)", "def after_step(self, z):  # after each launch"],
    ),
    "a number that the next step reads, and that a list keeps": (
        """
lin, log_t = nn.Linear(3, 1).to(device), torch.zeros(1, device=device, requires_grad=True)
opt = torch.optim.SGD([log_t, *lin.parameters()], lr=0.1)
args = (torch.randn(4, 3, device=device),)
class Agent:
    def __init__(self):
        self.t = 1.0
        self.seen = []
    def step(self, x):
        p = -(lin(x) ** 2).sum(-1)
        loss = (self.t * p).mean() + (log_t * p.detach()).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        self.t = log_t.exp().item()
        self.seen.append(self.t)
        return loss.detach()
f = Agent().step
""",
        ["self.t.fill_(log_t.exp().detach().squeeze())", "self.seen.append(self.t.item())"],
    ),
}

DRAWN = {
    "teacher forcing, by a flag and at once": (
        """
dec, out = nn.GRUCell(3, 6).to(device), nn.Linear(6, 3).to(device)
args = (torch.randn(4, 6, device=device), torch.randn(4, 5, 3, device=device))
def f(h, trg, ratio=0.5):
    x = trg[:, 0]
    ys = []
    for t in range(1, trg.shape[1]):
        h = dec(x, h)
        y = out(h)
        ys.append(y)
        force = random.random() < ratio
        x = trg[:, t] if force else y
    return torch.stack(ys, 1)
""",
        [
            "asked.append(torch.as_tensor(force).clone())",
            "given_in = torch.zeros(4, dtype=torch.bool, device=device)",
            "force = next(given)",
            "x = torch.where(force, trg[:, t], y)",
        ],
    ),
    "layers that are left out, and a crop": (
        """
blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)).to(device)
args = (torch.randn(2, 9, device=device),)
def f(x):
    start = random.randint(0, 5)
    x = x[:, start:start + 4]
    for block in blocks:
        if random.random() > 0.5:
            x = x + block(x)
    return x
""",
        [
            "start = next(given)",
            "x = torch.where(next(given), x + block(x), x)",
        ],
    ),
    "several things in each round, in the order of the rounds": (
        """
args = (torch.rand(4, 3, 10, 10, device=device),)
def f(images):
    out = []
    for img in images:
        top, left = random.randint(0, 2), random.randint(0, img.shape[-1] - 8)
        img = img[:, top:top + 8, left:left + 8]
        if random.random() < 0.5:
            img = torch.flip(img, dims=[-1])
        if random.random() < 0.5:
            img = img * random.uniform(0.8, 1.2)
        out.append(img - random.uniform(0, 0.1))
    return torch.stack(out)
""",
        [
            "top, left = random.randint(0, 2), random.randint(0, img.shape[-1] - 8)",
            "asked.append(torch.as_tensor(left).clone())",
            "chosen = random.random() < 0.5",
            "chosen = next(given)",
            "img = torch.where(next(given), torch.flip(img, dims=[-1]), img)",
            "img = torch.where(chosen, img * next(given), img)",
        ],
    ),
    "layers that are left out, each by a share of its own that divides what is kept": (
        """
layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)).to(device)
args = (torch.randn(5, 4, device=device),)
def f(x):
    for i, layer in enumerate(layers):
        keep = 1 - 0.1 * (i + 1)
        if random.random() < keep:
            x = x + layer(x) / keep
    return x
""",
        ["chosen = next(given)"],
    ),
    "bands of any width, and a box": (
        """
args = (torch.randn(2, 12, 14, device=device),)
def f(spec, size=4):
    spec = spec.clone()
    width = random.randint(1, 6)
    first = random.randint(0, spec.shape[1] - width)
    spec[:, first:first + width] = 0
    y, x = np.random.randint(12), np.random.randint(14)
    y1, y2 = max(0, y - size // 2), min(12, y + size // 2)
    x1, x2 = max(0, x - size // 2), min(14, x + size // 2)
    spec[..., y1:y2, x1:x2] = 1.0
    return spec
""",
        [
            "at = torch.arange(spec.shape[1], device=spec.device).view(-1, *[1] * (spec.dim() - 2))",
            "spec.masked_fill_((at >= first_in) & (at < first_end), 0)",
        ],
    ),
}


@pytest.mark.parametrize("name", DRAWN)
def test_what_the_host_draws_in_rounds_and_for_parts_comes_before_the_launch(name: str, fixed: Fixed) -> None:
    # GIVEN such a program WHEN rewritten THEN it is drawn once for all rounds, in its order, and read from tensors
    text, wanted = DRAWN[name]
    found = fixed(text)
    assert found.complete, found
    assert [line for line in wanted if line not in lines_of(found)] == [], found


@pytest.mark.parametrize("name", WHOLE)
def test_what_ends_or_happens_now_and_then_is_rewritten_whole(name: str, fixed: Fixed) -> None:
    # GIVEN such a program WHEN rewritten THEN one graph does what it does, over other steps too
    text, wanted = WHOLE[name]
    found = fixed(text)
    assert found.complete, found
    assert [line for line in wanted if line not in lines_of(found)] == [], found


def test_numbers_that_are_kept_stay_numbers(fixed: Fixed) -> None:
    # GIVEN a metric by two ways that is kept in a list, and an array of the host's in a loop WHEN rewritten
    found = fixed("""
alphas, kept = np.linspace(0.1, 0.9, 4), []
args = (torch.rand(4, device=device),)
def f(x):
    for i in reversed(range(4)):
        x = x * torch.tensor(alphas[i], device=device, dtype=torch.float32)
    total = x.sum()
    if total == 0:
        part = 1.0
    else:
        part = (x.max() / total).item()
    kept.append(part)
    return x
""")
    # THEN the list has numbers: it is filled behind the launch
    assert found.complete, found
    assert "x = x * torch.full((), float(alphas[i]), device=device, dtype=torch.float32)" in lines_of(found)
    assert "def after_f(x, total):  # after each launch" in lines_of(found)


def test_a_branch_that_leaves_a_step_is_taken_behind_the_launch(fixed: Fixed) -> None:
    # GIVEN a step that is left out where its loss is no number, which happens in some steps WHEN rewritten
    found = fixed("""
net = nn.Linear(4, 2).to(device)
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
bad, norms = 0, []
args = (torch.randn(5, 4, device=device), torch.randn(5, 2, device=device))
def feed(i):
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(i))
    x[0, 0] = math.nan if i in (4, 6) else 1.0
    return x.to(device), torch.ones(5, 2, device=device)
def f(x, y):
    global bad
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)
    if math.isnan(loss.item()):
        bad += 1
        return None
    loss.backward()
    norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    norms.append(norm.item())
    opt.step()
    return loss.item()
""")
    # THEN the device leaves the step out, and the host counts and returns as before
    assert found.complete, found
    assert "opt.found_inf = (torch.isnan(loss)).float()" in lines_of(found), found
    assert "return loss.item()" not in lines_of(found), found  # only its place has changed


def test_lists_that_the_host_reduces_are_reduced_on_the_device(fixed: Fixed) -> None:
    # GIVEN numbers of each round in two lists, of which a mean and a largest are returned WHEN rewritten
    found = fixed("""
net = nn.Linear(3, 1).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
args = (torch.randn(3, 4, 3, device=device), torch.randn(3, 4, 1, device=device))
def f(xs, ys):
    losses, norms = [], []
    for x, y in zip(xs, ys):
        loss = F.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(net.parameters(), 1.0).item())
        opt.step()
        losses.append(loss.item())
    return np.mean(losses), max(norms)
""")
    # THEN both are tensors, which the device reduces
    assert found.complete, found
    assert "return torch.stack(losses).mean(), torch.stack(norms).max()" in lines_of(found)


def test_rounds_of_a_solver_that_are_returned_are_counted_on_the_device(fixed: Fixed) -> None:
    # GIVEN a solver that ends by its residual, and returns how many rounds that took WHEN rewritten
    found = fixed("""
args = (torch.rand(4, device=device) + 1,)
def feed(i):
    return (torch.rand(4, generator=torch.Generator().manual_seed(i)).to(device) * 10 ** (i % 4) + 1,)
def f(a):
    x, rounds = torch.ones_like(a), 0
    while rounds < 10:
        rest = x * x - a
        if rest.abs().max() < 1e-3:
            break
        x = x - rest / (2 * x)
        rounds += 1
    return x, rounds
""")
    # THEN all rounds run, and those after the end are not counted
    assert found.complete, found
    assert "rounds = torch.where(done, rounds, rounds + 1)" in lines_of(found)


CUT = """
args = (torch.randn(2, 8, 20, device=device),)
def f(spec):
    spec = spec.clone()
    for _ in range(2):
        t = int(torch.randint(0, 5, (1,)))
        t0 = int(torch.randint(0, 20 - t, (1,)))
        CUTS
    return spec
"""


def test_parts_that_each_round_draws_are_taken_by_a_mask(fixed: Fixed) -> None:
    # GIVEN rounds that draw where a part begins, and how wide it is WHEN rewritten
    found = fixed(CUT.replace("CUTS", "spec[:, :, t0 : t0 + t] = 0"))
    # THEN it is drawn before the launch, and a mask takes the part
    assert found.complete, found
    assert "spec.masked_fill_((at >= t0) & (at < t0 + t), 0)" in lines_of(found)


def test_parts_of_another_size_in_each_round_are_left(fixed: Fixed) -> None:
    # GIVEN rounds that go on with a part of the size that they have drawn WHEN rewritten THEN no graph has that
    for cut in ("spec = spec + spec[:, :, t0 : t0 + t].mean()", "spec = spec + spec[:, :, t0:].mean()"):
        assert not any("masked_fill" in line for line in lines_of(fixed(CUT.replace("CUTS", cut))))


@pytest.mark.parametrize("ends", ["", "        if x.max() < 0.3:\n            break\n"], ids=["all rounds", "some"])
def test_a_row_and_a_column_of_a_place_stay_on_the_device(ends: str, fixed: Fixed) -> None:
    # GIVEN pairs that are picked by their place in a table, as many as there are or until one is small WHEN rewritten
    found = fixed(f"""
args = (torch.rand(4, 3, device=device),)
def f(given):
    x, out = given.clone(), torch.full((4,), -1, device=device)
    for _ in range(3):
{ends}        at = x.argmax().item()
        i, j = divmod(at, x.size(1))
        out[i] = j
        x[i] = -1
        x[:, j] = -1
    return out
""")
    # THEN the device divides
    assert found.complete, found
    assert "i, j = (at // x.size(1), at % x.size(1))" in lines_of(found), found
