"""Fixes of loops that decode: a position in a tensor, buffers read as a whole with a mask of what is written."""

from __future__ import annotations

import pytest
import torch

from tests.integration.rewritten import Fixed, lines_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

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
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_grows_is_read_as_a_whole(name: str, fixed: Fixed) -> None:
    # GIVEN a step whose cache is written at a position of the host's, and read up to there
    text, expected = WHOLE[name]
    # WHEN it is rewritten
    found = fixed(text)
    # THEN all of it is in one graph, whose replays give eager's numbers and state
    assert found.complete, found
    assert not found.is_little, found
    assert not found.usage or "return None" in text, found
    for line in expected:
        assert any(line in each for each in lines_of(found)), found


GIVEN = """
args = (torch.randn(2, 2, 1, 4, device=device), 3)
@torch.no_grad()
def f(x, pos):
    cache.k[:, :, pos : pos + 1] = lin(x)
    k = cache.k[:, :, : pos + 1]
    return F.scaled_dot_product_attention(x + table[pos], k, k)
"""


def test_a_place_that_is_given_as_a_number_has_to_come_in_a_tensor(fixed: Fixed) -> None:
    # GIVEN a step that is given its position as a number WHEN it is rewritten
    found = fixed(CACHE + GIVEN)
    # THEN its lines take a tensor, as was tried with other positions, and the caller is told to give one
    lines = lines_of(found)
    assert "cache.k.index_copy_(2, pos.reshape(1), lin(x))" in lines, found
    assert "return F.scaled_dot_product_attention(x + table[pos.reshape(1)][0], k, k, attn_mask=there[None])" in lines
    assert any("replays of one graph give eager's results" in line for line in found.verified)
    assert not found.complete
    assert "`pos.fill_(...)` before each launch" in found.instead[-1]


def test_parts_that_cannot_be_a_whole_leave_the_others_rewritten(fixed: Fixed) -> None:
    # GIVEN a step that writes at its position, and joins what is before it with something
    text = """
def f(x):
    k = torch.cat([x, cache.k[:, :, : cache.pos]], 2)
    cache.k[:, :, cache.pos] = x[:, :, 0]
    cache.pos += 1
    return (x @ k.mT).softmax(-1) @ k
"""
    # WHEN it is rewritten
    found = fixed(CACHE + text)
    # THEN what can be written is, and the other line is told with what a mask of it is
    assert "cache.k.index_copy_(2, cache.pos.reshape(1), x[:, :, 0].unsqueeze(2))" in lines_of(found), found
    assert not found.complete
    assert any("torch.cat([x, cache.k" in line and "inside = (at < cache.pos)" in line for line in found.instead), found


NOT_SURE = {
    "what was never written is no number": """
cache.k[:, :, 8:] = math.nan
def f(x):
    cache.k[:, :, cache.pos] = x[:, :, 0]
    cache.pos += 1
    k = cache.k[:, :, : cache.pos]
    return (x @ k.mT).softmax(-1) @ k
""",
    "a part that is joined to others": """
def f(x):
    cache.k[:, :, cache.pos] = x[:, :, 0]
    cache.pos += 1
    return torch.cat([x, cache.k[:, :, : cache.pos]], 2).softmax(2).sum()
""",
    "the first and the last place of a part": """
def f(x):
    cache.k[:, :, cache.pos] = x[:, :, 0]
    cache.pos += 1
    return cache.k[:, :, : cache.pos][:, :, -1] + x[:, :, 0]
""",
    "places that are laid together": """
def f(x):
    cache.k[:, :, cache.pos] = x[:, :, 0]
    cache.pos += 1
    return cache.k[:, :, : cache.pos].reshape(4, -1).softmax(-1).amax(-1)
""",
    "how many there are": """
def f(x):
    cache.k[:, :, cache.pos] = x[:, :, 0]
    cache.pos += 1
    k = cache.k[:, :, : cache.pos]
    return (x @ k.mT).softmax(-1) @ k * k.shape[2]
""",
    "a part that is written into": """
def f(x):
    cache.k[:, :, cache.pos] = x[:, :, 0]
    cache.pos += 1
    k = cache.k[:, :, : cache.pos].mul_(0.9)
    return (x @ k.mT).softmax(-1) @ k
""",
    "parts with two ends": """
def f(x):
    cache.k[:, :, cache.pos] = x[:, :, 0]
    old = cache.k[:, :, : cache.pos]
    cache.pos += 1
    new = cache.k[:, :, : cache.pos]
    return (x @ old.mT).softmax(-1) @ old + (x @ new.mT).softmax(-1) @ new
""",
}


@pytest.mark.parametrize("name", NOT_SURE)
def test_what_depends_on_the_size_is_not_read_as_a_whole(name: str, fixed: Fixed) -> None:
    # GIVEN a part of a cache with which something is done that all of the cache would not give
    # WHEN it is rewritten THEN whatever is said to be whole gives eager's numbers (which the fixture compares)
    found = fixed(CACHE + NOT_SURE[name])
    # AND the mask stands for no part that it does not stand for
    assert not any("there" in line for line in lines_of(found)) or name == "parts with two ends", found
