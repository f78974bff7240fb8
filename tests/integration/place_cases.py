"""Programs for ``test_rewrite_places``: loops that decode and stream, each with lines that its rewrite has."""

from __future__ import annotations

CACHE = """
class Cache:
    def __init__(self, size=24):
        self.pos = 0
        self.k, self.v = torch.zeros(2, 2, size, 4, device=device), torch.zeros(2, 2, size, 4, device=device)
cache = Cache()
table = torch.randn(24, 4, device=device)
lin = nn.Linear(4, 4).to(device)
args = (torch.randn(2, 2, 1, 4, device=device),)
"""
WHOLE = {
    "attention over what is written": (
        CACHE
        + """
@torch.no_grad()
def f(x):
    p, t = cache.pos, x.shape[2]
    x = x + table[p : p + t]
    cache.k[:, :, p : p + t] = lin(x)
    cache.v[:, :, p : p + t] = x
    cache.pos += t
    return F.scaled_dot_product_attention(x, cache.k[:, :, : p + t], cache.v[:, :, : p + t])
""",
        [
            "cache.k.index_copy_(2, p + torch.arange(t, device=cache.k.device), lin(x))",
            "there = torch.arange(cache.k.shape[2], device=cache.k.device) < p + t",
            "return F.scaled_dot_product_attention(x, cache.k, cache.v, attn_mask=there[None])",
        ],
    ),
    "scores that a helper makes of keys and values": (
        CACHE
        + """
def attend(q, k, v, scale=0.5):
    w = (q @ k.transpose(-2, -1) * scale).softmax(dim=-1)
    return w @ v
@torch.no_grad()
def f(x):
    cache.k[:, :, cache.pos] = lin(x)[:, :, 0]
    cache.v[:, :, cache.pos] = x[:, :, 0]
    cache.pos += 1
    return attend(x, cache.k[:, :, : cache.pos], cache.v[:, :, : cache.pos])
""",
        [
            "cache.k.index_copy_(2, cache.pos.reshape(1), lin(x)[:, :, 0].unsqueeze(2))",
            "def attend(q, k, v, scale=0.5, there=None):",
            ".masked_fill(~there, -torch.inf))).softmax(dim=-1)",
            "return attend(x, cache.k, cache.v, there=there)",
        ],
    ),
    "a place in each block that a table names": (
        """
class Paged:
    def __init__(self):
        self.k, self.n = torch.zeros(6, 4, 4, device=device), 1
        self.table = torch.arange(6, device=device).view(2, 3)
cache = Paged()
args = (torch.randn(2, 4, device=device),)
def f(x):
    block = cache.table[:, cache.n // 4]
    cache.k[block, cache.n % 4] = x
    cache.n += 1
    k = cache.k[cache.table].flatten(1, 2)
    return k.sum(2).masked_fill(torch.arange(12, device=device) >= cache.n, 0).cumsum(1), cache.k[block, cache.n % 4]
""",
        [
            "block = cache.table[:, (cache.n // 4).reshape(1)].squeeze(1)",
            "cache.k[block, (cache.n % 4).reshape(1)] = x",
            ".cumsum(1), cache.k[block, (cache.n % 4).reshape(1)]",
        ],
    ),
    "a helper that also attends to what does not grow": (
        CACHE
        + """
memory = torch.randn(2, 2, 5, 4, device=device)
def attend(q, k, v):
    return F.softmax(q @ k.mT, -1) @ v
@torch.no_grad()
def f(x):
    cache.k[:, :, cache.pos : cache.pos + 1] = lin(x)
    cache.pos += 1
    k = cache.k[:, :, : cache.pos]
    return attend(x, k, k) + attend(x, memory, memory)
""",
        [
            "def attend(q, k, v, there=None):",
            "return attend(x, k, k, there=there) + attend(x, memory, memory)",
            "masked_fill(~there, -torch.inf)), -1) @ v",
        ],
    ),
    "a cache that hands out what it has": (
        CACHE
        + """
class Ring:
    def __init__(self, size):
        self.size, self.seen, self.rows = size, 0, torch.zeros(size, 4, device=device)
    def put(self, row):
        self.rows[self.seen % self.size] = row
        self.seen += 1
        return self.rows[: min(self.seen, self.size)]
ring = Ring(4)
def f(x):
    rows = ring.put(x[0, 0, 0])
    return (rows * 2).sum(0), rows.mean(0), rows.amax(0), (rows @ x[0, 0, 0]).logsumexp(0)
""",
        [
            "self.rows.index_copy_(0, (self.seen % self.size).reshape(1), row.unsqueeze(0))",
            "there = torch.arange(self.rows.shape[0], device=self.rows.device) < self.seen.clamp(max=self.size)",
            "return self.rows, there",
            "rows, there = ring.put(x[0, 0, 0])",
            "rows.masked_fill(~there[:, None], 0).sum(0) / there.sum()",
        ],
    ),
    "a mask of the user's own, and heads that share keys": (
        CACHE
        + """
causal = torch.ones(24, 24, dtype=torch.bool, device=device).tril()
@torch.no_grad()
def f(x):
    p = cache.pos
    end = p + 1
    cache.k[:, :, p:end] = lin(x)
    k = cache.k[:, :1, :end].repeat_interleave(2, dim=1)
    att = torch.einsum("bhqd,bhkd->bhqk", x, k).masked_fill(~causal[p:end, :end], -1e9)
    cache.pos = end
    return torch.einsum("bhqk,bhkd->bhqd", torch.softmax(att.float(), dim=-1).to(x.dtype), k)
""",
        [
            "k = cache.k[:, :1].repeat_interleave(2, dim=1)",
            ".masked_fill(~causal[p.reshape(1)], -1e9)",
            "torch.softmax(att.float().masked_fill(~there, -torch.inf), dim=-1)",
            "cache.pos.fill_(end)",
        ],
    ),
    "tensors made of the position": (
        CACHE
        + """
emb = nn.Embedding(24, 4).to(device)
@torch.no_grad()
def f(x):
    b, t = x.shape[0], 1
    at = torch.arange(cache.pos, cache.pos + t, device=device)
    one = torch.full((b, 1), cache.pos, dtype=torch.long, device=device)
    last = torch.tensor([cache.pos], device=device)
    cache.pos += t
    return x + emb(at) + emb(one).mean() + emb(last)
""",
        [
            "at = cache.pos + torch.arange(t, device=device)",
            "one = cache.pos.repeat(b, 1)",
            "last = cache.pos.repeat(1)",
        ],
    ),
    "beams that reorder what they keep": (
        CACHE
        + """
scores = torch.zeros(3, device=device)
rows = torch.zeros(3, 24, dtype=torch.long, device=device)
step = 0
args = (torch.randn(3, 5, device=device),)
@torch.no_grad()
def f(x):
    global scores, rows, step
    total = (scores[:, None] + x.log_softmax(-1)).flatten()
    scores, flat = total.topk(3)
    rows = rows[flat // 5]
    rows[:, step] = flat % 5
    step += 1
    return rows[:, :step].float().sum(1)
""",
        [
            "rows.index_copy_(1, step.reshape(1), (flat % 5).unsqueeze(1))",
            "return rows.float().masked_fill(~there, 0).sum(1)",
        ],
    ),
    "positions of several requests, in a list": (
        CACHE
        + """
lengths = [0, 3]
args = (torch.randn(2, 4, device=device),)
@torch.no_grad()
def f(x):
    at = torch.tensor(lengths, device=device)
    rows, k = [], cache.k[:, 0]
    for b in range(2):
        n = lengths[b]
        k[b, n] = x[b]
        rows.append((k[b, : n + 1] @ x[b]).softmax(0) @ k[b, : n + 1])
        lengths[b] += 1
    return torch.stack(rows) + table[at]
""",
        [
            "lengths = list(torch.tensor([0, 3], device=device))",
            "at = torch.stack(lengths)",
            "n = lengths[b].clone()",
            "k[b].index_copy_(0, n.reshape(1), x[b].unsqueeze(0))",
        ],
    ),
    "a field of a dataclass, and a dictionary that is called": (
        CACHE
        + """
from dataclasses import dataclass
@dataclass
class Slot:
    row: int
    at: int = 0
slots = [Slot(0), Slot(1, 2)]
state = dict(i=0, last=torch.zeros(2, 24, device=device))
args = (torch.randn(2, 4, device=device),)
@torch.no_grad()
def f(x):
    i = state["i"]
    before = state["last"][:, i - 1] if i > 0 else torch.zeros(2, device=device)
    state["last"][:, i] = x.sum(1)
    state["i"] += 1
    out = []
    for slot in slots:
        cache.k[0, slot.row, slot.at] = x[slot.row]
        slot.at += 1
        out.append(cache.k[0, slot.row, : slot.at].sum(0))
    return torch.stack(out) + before[:, None]
""",
        [
            "self.at = torch.tensor(self.at, device=device)",
            "state = dict(i=torch.tensor(0, device=device), ",
            'before = torch.where(i > 0, state["last"][:, (i - 1).reshape(1)].squeeze(1), torch.zeros(2,',
            "cache.k[0, slot.row].index_copy_(0, slot.at.reshape(1), x[slot.row].unsqueeze(0))",
        ],
    ),
    "buffers of whatever their memory holds, and a place that the file sets": (
        """
class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.pos = 0
        self.register_buffer("k", torch.empty(2, 24, 4))
        self.v = torch.empty((2, 24, 4), device=device)
cache = Cache().to(device)
cache.k.zero_()
cache.v.zero_()
cache.pos = 2
args = (torch.randn(2, 1, 4, device=device),)
@torch.no_grad()
def f(x):
    n = x.size(1)
    cache.k[:, cache.pos : cache.pos + n] = x
    cache.v[:, cache.pos : cache.pos + n] = x + 1
    cache.pos += n
    w = torch.bmm(x, cache.k[:, : cache.pos].transpose(1, 2)).softmax(-1)
    return torch.bmm(w, cache.v[:, : cache.pos])
""",
        [
            'self.register_buffer("k", torch.zeros(2, 24, 4))',
            "self.v = torch.zeros((2, 24, 4), device=device)",
            "cache.pos.fill_(2)",
        ],
    ),
    "a mask that is opened up to a place": (
        CACHE
        + """
closed = torch.full((2, 1, 1, 24), -1e9, device=device)
open_ = torch.zeros(2, 24, 1, dtype=torch.bool, device=device)
@torch.no_grad()
def f(x):
    cache.k[..., cache.pos, :] = x[:, :, 0]
    cache.pos += 1
    closed[:, :, :, : cache.pos] = 0.0
    open_[1, : cache.pos] = True
    att = torch.matmul(x, cache.k.transpose(-2, -1)) + closed
    return torch.matmul(att.softmax(-1), cache.k) * open_.sum()
""",
        [
            "cache.k.index_copy_(-2, cache.pos.reshape(1), x[:, :, 0].unsqueeze(-2))",
            "closed.masked_fill_(torch.arange(closed.shape[3], device=closed.device) < cache.pos, 0.0)",
            "open_[1].masked_fill_((torch.arange(open_[1].shape[0], device=open_.device) < cache.pos)[:, None], True)",
        ],
    ),
    "what was there joined to what is new": (
        CACHE
        + """
@torch.no_grad()
def f(x):
    q, k = x, lin(x)
    n = cache.pos
    keys = torch.cat([cache.k[:, :, :n], k], dim=2)
    cache.k[:, :, n : n + k.shape[2]] = k
    cache.pos = n + k.shape[2]
    return (q @ keys.transpose(2, 3)).softmax(-1) @ keys
""",
        [
            "keys = cache.k.index_copy(-2, n + torch.arange(k.shape[-2], device=cache.k.device), k)",
            "there = torch.arange(cache.k.shape[2], device=cache.k.device) < n + k.shape[-2]",
        ],
    ),
    "attention of a module": (
        """
attention = nn.MultiheadAttention(8, 2, batch_first=True).to(device)
memory, pos = torch.zeros(3, 20, 8, device=device), 0
args = (torch.randn(3, 1, 8, device=device),)
@torch.no_grad()
def f(x):
    global pos
    memory[:, pos : pos + 1] = x
    pos += 1
    out, weights = attention(x, memory[:, :pos], memory[:, :pos])
    return out, (weights @ memory[:, :pos]).sum(1)
""",
        ["attention(x, memory, memory, key_padding_mask=(~there).expand(3, -1))", "(weights @ memory).sum(1)"],
    ),
    "a cache with properties, which a method sets up and writes in place": (
        """
class Cache:
    def setup(self, size):
        self.k, self.v = torch.zeros(size, 4, device=device), torch.zeros(size, 4, device=device)
        self.length = 0
    def push(self, k, v):
        self.k[self.length].copy_(k)
        self.v[self.length], self.k[self.length] = v, k * 2
        self.length += 1
    @property
    def keys(self):
        return self.k[: self.length]
    def values(self):
        return self.v[: self.length]
cache = Cache()
cache.setup(24)
args = (torch.randn(4, device=device),)
def f(x):
    cache.push(x, x + 1)
    w = F.softmax(cache.keys @ x, dim=0)
    return w @ cache.values()
""",
        [
            "self.length = torch.tensor(0, device=device)",
            "self.k.index_copy_(0, self.length.reshape(1), k.unsqueeze(0))",
            "self.v.index_copy_(0, self.length.reshape(1), v.unsqueeze(0))",
            "self.k.index_copy_(0, self.length.reshape(1), (k * 2).unsqueeze(0))",
            "there = torch.arange(cache.k.shape[0], device=cache.k.device) < cache.length",
            "w = F.softmax((cache.keys @ x).masked_fill(~there, -torch.inf), dim=0)",
        ],
    ),
    "a position of the function around it": (
        """
def made():
    pos, rows = 0, torch.zeros(2, 16, 4, device=device)
    def step(x):
        nonlocal pos
        rows[:, pos : pos + 1] = x
        pos += 1
        return F.scaled_dot_product_attention(x, rows[:, :pos], rows[:, :pos])
    return step
f = made()
args = (torch.randn(2, 1, 4, device=device),)
""",
        ["pos, rows = torch.tensor(0, device=device), torch.zeros(2, 16, 4, device=device)"],
    ),
    "a cache that is not always there": (
        CACHE
        + """
class Layer(nn.Module):
    def forward(self, x, kept=None):
        k = x
        if kept is not None:
            kept.k[:, :, kept.pos : kept.pos + 1] = x
            kept.pos += 1
            k = kept.k[:, :, : kept.pos]
        return F.scaled_dot_product_attention(x, k, k)
layer = Layer()
@torch.no_grad()
def f(x):
    return layer(x, cache) + layer(x)
""",
        ["there = None", "F.scaled_dot_product_attention(x, k, k, attn_mask=None if there is None else there[None])"],
    ),
    "a penalty for what was there, until the end": (
        CACHE
        + """
ids, n, ended = torch.ones(2, 24, dtype=torch.long, device=device), 1, torch.zeros(2, dtype=torch.bool, device=device)
args = (torch.randn(2, 7, device=device),)
@torch.no_grad()
def f(logits):
    global n, ended
    seen = ids[:, :n]
    logits = logits.scatter(1, seen, logits.gather(1, seen) / 1.5)
    token = logits.argmax(-1)
    ids[:, n] = token
    n += 1
    ended = ended | (token == 3)
    if ended.all():
        return None
    return token
""",
        ["seen = torch.where(there, ids, ids[..., :1])", "ids.index_copy_(1, n.reshape(1), token.unsqueeze(1))"],
    ),
    "as many of what is drafted as the device accepts": (
        """
class State:
    def __init__(self):
        self.tokens, self.length = torch.zeros(64, 3, device=device), 1
state = State()
args = (torch.randn(4, 3, device=device), torch.randn(4, device=device))
@torch.no_grad()
def f(draft, score):
    n = int((score > 0.0).long().cumprod(0).sum())
    state.tokens[state.length : state.length + n] = draft[:n]
    state.tokens[state.length + n] = draft.mean(0)
    state.length += n + 1
    return state.tokens.sum()
""",
        [
            "at = torch.arange(state.tokens.shape[0], device=state.tokens.device) - state.length",
            "torch.where(((at >= 0) & (at < n))[:, None], draft[at.clamp(0, draft.shape[0] - 1)], state.tokens)",
        ],
    ),
}
