"""Fixes of loops that generate, sample and solve, as people write them for one model or another."""

from __future__ import annotations

import pytest
import torch

from tests.integration.rewritten import Fixed, lines_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

WHOLE = {
    "tokens of a model whose attention goes through a generator expression": (
        """
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (each.view(b, t, 2, 4).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        return x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
emb, att, head = nn.Embedding(9, 8).to(device), Attention().to(device), nn.Linear(8, 9).to(device)
args = (torch.randint(0, 9, (1, 3), device=device),)
@torch.no_grad()
def f(ids):
    for _ in range(4):
        token = head(att(emb(ids)))[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, token], dim=1)
        if token.item() == 4:
            break
    return ids
""",
        ["done = done | (token == 4)", "ids = ids.narrow(1, 0, ids.shape[1] - int(left))"],
    ),
    "a penalty for each token of a set, by its sign": (
        """
emb, head = nn.Embedding(9, 8).to(device), nn.Linear(8, 9).to(device)
args = (torch.randint(0, 9, (2, 3), device=device),)
@torch.no_grad()
def f(ids):
    scores = head(emb(ids).mean(1))
    for row in range(ids.shape[0]):
        for token in set(ids[row].tolist()):
            if scores[row, token] > 0:
                scores[row, token] /= 1.2
            else:
                scores[row, token] *= 1.2
    return scores.argmax(-1)
""",
        ["there = there.index_fill(0, ids[row].flatten(), True)"],
    ),
    "tokens that are there, each once, by unique": (
        """
head = nn.Linear(4, 9).to(device)
args = (torch.randn(4, device=device), torch.randint(0, 9, (5,), device=device))
@torch.no_grad()
def f(x, ids):
    scores = head(x)
    for token in torch.unique(ids):
        scores[token] -= 0.5 * scores[token].abs()
    return scores.softmax(-1)
""",
        ["scores.copy_(torch.where(there, scores - (0.5 * scores.abs()), scores))"],
    ),
    "rays that go on until none is left, with a mask that loses those that have met something": (
        """
sdf = nn.Sequential(nn.Linear(3, 8), nn.Softplus(), nn.Linear(8, 1)).to(device)
args = (torch.randn(6, 3, device=device), torch.randn(6, 3, device=device))
@torch.no_grad()
def f(o, d):
    depth = torch.zeros(6, device=device)
    on = torch.ones_like(depth, dtype=torch.bool)
    for n in range(6):
        if not on.any():
            break
        dist = sdf(o[on] + depth[on, None] * d[on]).squeeze(-1)
        depth[on] += dist
        on[on.clone()] = (dist.abs() > 0.1) & (depth[on] < 2)
    return o + depth[:, None] * d, depth < 2
""",
        ["depth.copy_(torch.where(on, depth + dist, depth))"],
    ),
    "a while loop whose mask is joined with what still moves": (
        """
net = nn.Linear(3, 3).to(device)
args = (torch.randn(5, 3, device=device),)
@torch.no_grad()
def f(x):
    on, n = torch.ones(5, dtype=torch.bool, device=device), 0
    while on.any() and n < 5:
        new = torch.tanh(net(x[on]))
        moved = (new - x[on]).abs().amax(1)
        x[on] = new
        still = torch.zeros_like(on)
        still[on] = moved > 0.2
        on = on & still
        n += 1
    return x * 2
""",
        ["x.copy_(torch.where(on[..., None], new, x))"],
    ),
    "a power iteration whose first value is None, with a list of what it goes on with": (
        """
net = nn.Linear(4, 2).to(device)
weights = list(net.parameters())
args = (torch.randn(5, 4, device=device),)
def f(x):
    grads = torch.autograd.grad(torch.tanh(net(x)).pow(2).mean(), weights, create_graph=True)
    v, largest = [torch.ones_like(p) for p in weights], None
    for i in range(5):
        hv = torch.autograd.grad(grads, weights, grad_outputs=v, retain_graph=True)
        now = sum((a * b).sum() for a, b in zip(hv, v)).cpu().item()
        norm = sum((a * a).sum() for a in hv).sqrt()
        v = [a / (norm + 1e-6) for a in hv]
        if largest is None:
            largest = now
        else:
            if abs(largest - now) / (abs(largest) + 1e-6) < 0.02:
                break
            largest = now
    return largest, v
""",
        ["largest = torch.where(done, largest, now)"],
    ),
    "k means until labels stay, with centers that a loop below writes": (
        """
args = (torch.randn(20, 2, device=device),)
def f(x):
    centers, labels = x[:3].clone(), None
    for _ in range(5):
        now = torch.cdist(x, centers).argmin(1)
        if labels is not None and torch.equal(now, labels):
            break
        labels = now
        for c in range(3):
            rows = x[labels == c]
            if len(rows) > 0:
                centers[c] = rows.mean(0)
    return labels, centers
""",
        ["labels = now if labels is None else torch.where(done, labels, now)"],
    ),
    "conjugate gradients that write in place, and end in an if, in an elif, or with a value of the first round": (
        """
args = (torch.randn(5, device=device), torch.randn(5, 5, device=device))
@torch.no_grad()
def f(g, m):
    dot, h, most = torch.dot, m @ m.T + 0.3 * torch.eye(5, device=device), False
    x, r, p = torch.zeros_like(g), g.clone(), g.neg()
    rs = dot(r, r)
    for n in range(6):
        if r.norm() < 0.1:
            break
        hp = h.mv(p)
        curv = dot(p, hp)
        if curv < 0.5:
            if n == 0:
                x = g * (rs / curv)
            break
        elif curv > 400:
            break
        x.addcmul_(rs / curv, p)
        r.addcmul_(rs / curv, hp)
        new = dot(r, r)
        p.mul_(new / rs).sub_(r)
        rs = new
    else:
        most = True
    return x, n, most
""",
        ["x.copy_(torch.where(done, x, x.addcmul(rs / curv, p)))", "x = torch.where(hit, g * (rs / curv), x)"],
    ),
    "beams of a batch, of which each sample's best is listed": (
        """
emb, cell, head = nn.Embedding(7, 8).to(device), nn.GRUCell(8, 8).to(device), nn.Linear(8, 7).to(device)
args = (torch.randn(2, 8, device=device),)
@torch.no_grad()
def f(ctx):
    b = ctx.size(0)
    state = ctx.repeat_interleave(2, 0)
    seqs = torch.zeros(b * 2, 1, dtype=torch.long, device=device)
    scores = torch.zeros(b, 2, device=device)
    for _ in range(4):
        state = cell(emb(seqs[:, -1]), state)
        total = (scores.view(-1, 1) + head(state).log_softmax(-1)).view(b, -1)
        scores, flat = total.topk(2, dim=-1)
        beam = (flat // 7 + torch.arange(b)[:, None].to(device) * 2).view(-1)
        token = (flat % 7).view(-1)
        seqs = torch.cat([seqs[beam], token[:, None]], 1)
        state = state[beam]
        if (token == 3).all():
            break
    best = scores.argmax(-1)
    return [seqs.view(b, 2, -1)[i, best[i]].tolist() for i in range(b)]
def seen(out):
    return [each for row in out for each in row]
""",
        [
            "beam = (flat // 7 + torch.arange(b, device=device)[:, None] * 2).view(-1)",
            "seqs = torch.cat([torch.where(done, seqs, seqs[beam]), token[:, None]], 1)",
        ],
    ),
    "a rotation by an angle of the device, written as a list of lists": (
        """
args = (torch.randn(6, 2, device=device),)
def f(x):
    a = torch.atan2(x[:, 1].sum(), x[:, 0].sum())
    c, s = torch.cos(a), torch.sin(a)
    r = torch.tensor([[c, -s], [s, c]]).to(device)
    return x @ r + torch.tensor([c, 0.5]).to(x.device)
""",
        [
            "r = torch.stack([c, -s, s, c]).view(2, 2)",
            "return x @ r + torch.stack([c, torch.full_like(c, 0.5)])",
        ],
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_it_is_rewritten_whole_with_its_rounds_in_the_graph(name: str, fixed: Fixed) -> None:
    # GIVEN a loop that generates or solves WHEN rewritten THEN one graph has its rounds, with these lines
    text, wanted = WHOLE[name]
    found = fixed(text)
    assert found.complete, found
    assert [line for line in wanted if line not in lines_of(found)] == [], found


LEFT = {
    "a list that may have a token twice": "for token in ids.tolist():\n        scores[token] /= 1.2",
    "what is done with the number itself": "for token in set(ids.tolist()):\n        scores[token] /= 1 + token",
}


@pytest.mark.parametrize("name", LEFT)
def test_a_set_of_tokens_is_no_mask_where_the_rounds_are_not_alike(name: str, fixed: Fixed) -> None:
    # GIVEN rounds that do more than change one of a row WHEN rewritten THEN no mask stands for them
    found = fixed(f"""
head = nn.Linear(4, 9).to(device)
args = (torch.randn(4, device=device), torch.tensor([1, 1, 3], device=device))
@torch.no_grad()
def f(x, ids):
    scores = head(x)
    {LEFT[name]}
    return scores
""")
    assert "index_fill" not in found.diff


def test_a_mask_that_may_have_something_again_is_asked_for_in_each_round(fixed: Fixed) -> None:
    # GIVEN a loop that ends once a mask is empty, which the next round would fill again WHEN rewritten
    found = fixed("""
net = nn.Linear(3, 3).to(device)
args = (torch.randn(5, 3, device=device),)
@torch.no_grad()
def f(x):
    x = x.clone()
    on = x[:, 0] > 1.5
    for _ in range(4):
        if not on.any():
            break
        x[on] *= 0.5
        on = x[:, 0] > 0.1
    return x
""")
    # THEN what is whole gives eager's numbers, and otherwise no round writes by the mask alone
    assert found.complete or "torch.where(on[..., None]" not in found.diff


def test_a_tensor_that_something_behind_the_loop_shares_is_written_in_no_round_after_its_end(fixed: Fixed) -> None:
    # GIVEN a loop that writes in place what another name, which is returned, has too WHEN rewritten
    found = fixed("""
args = (torch.rand(4, device=device) + 0.5,)
@torch.no_grad()
def f(g):
    r = g.clone()
    best = r.view(-1)
    for n in range(5):
        if r.norm() < 0.7:
            break
        r.addcmul_(r, r, value=-0.3)
    return best
""")
    # THEN all is right that is whole, and no round writes it as it did
    assert found.complete or "done" not in found.diff


def test_a_branch_of_sizes_is_told_as_one_of_the_number_that_decides_them(fixed: Fixed) -> None:
    # GIVEN rounds, as many as an argument says, that crop what has grown too long WHEN rewritten
    found = fixed("""
net = nn.Embedding(7, 7).to(device)
args = (torch.randint(0, 7, (1, 2), device=device), 4)
@torch.no_grad()
def f(ids, n):
    for _ in range(n):
        seen = ids if ids.size(1) <= 4 else ids[:, -4:]
        scores = net(seen).cumsum(1)[:, -1]
        scores[:, [1]] = -1e9
        ids = torch.cat([ids, scores.argmax(-1, keepdim=True)], dim=1)
    return ids
""")
    # THEN no value of the device chooses between two of other sizes
    told = str(found)
    assert "chosen_in" not in told, told
    assert "keep a graph for each value that comes, `graphs[n]`" in told


def test_what_an_inner_loop_asks_of_an_outer_ones_module_is_told_as_a_round_of_that(fixed: Fixed) -> None:
    # GIVEN rounds that go on while the host accepts what a module has computed before them WHEN rewritten
    found = fixed("""
large = nn.Linear(4, 4).to(device)
args = (torch.randn(1, 4, device=device), torch.rand(4, 2, device=device))
@torch.no_grad()
def f(x, u):
    n = 0
    while n < 4:
        p = large(x).softmax(-1)
        for i in range(2):
            if u[n, i] < 1.5 * p[0, i]:
                x = x + 0.1
            else:
                x = x - p
                break
        n += 1
    return x
""")
    # THEN the module's line is what can be captured, and not what comes before both loops, which is nothing
    told = str(found)
    assert "line 17, is a function of its own that is launched in the loop: `def f_round(x):`" in told, told
    assert "`p = run(x)`" in told, told
    assert "end what is captured before the loop" not in told
