"""Fixes of programs that decode and infer, with what they call: methods, lists of modules, caches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paramgraph_kit.rewrite.advised.state.kept_outside import kept_outside
from tests.integration.rewritten import Fixed, lines_of, run
from tests.programs.running import captured, differences, eager

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

WHOLE = {
    "a filter of the file that writes into the scores of the round": (
        """
net = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11)).to(device)
args = (torch.randint(0, 11, (2, 3), device=device),)
def filtering(logits, top_k=3, filter_value=-float("inf")):
    keep = torch.topk(logits, top_k)[0][..., -1, None]
    logits.masked_fill_(logits < keep, filter_value)
    return logits
@torch.no_grad()
def f(ids):
    for _ in range(5):
        logits = net(ids)[:, -1, :]
        logits = filtering(logits)
        best = filtering(logits / 0.8, top_k=1).argmax(-1, keepdim=True)
        ids = torch.cat((ids, best), dim=1)
        if (best == 10).all():
            break
    return ids
""",
        ["done = done | (best == 10).all()", "ids = ids.narrow(1, 0, ids.shape[1] - int(left))"],
    ),
    "rounds that call a method named step": (
        """
class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(7, 8), nn.GRUCell(8, 8), nn.Linear(8, 7)
    def step(self, tok, h):
        h = self.rnn(self.emb(tok), h)
        return self.out(h), h
lm = LM().to(device)
args = (torch.randint(1, 7, (3,), device=device), torch.randn(3, 8, device=device))
@torch.no_grad()
def f(tok, h):
    out = tok.unsqueeze(1)
    unfinished = torch.ones_like(tok)
    for _ in range(6):
        logits, h = lm.step(tok, h)
        tok = logits.argmax(-1) * unfinished
        out = torch.cat([out, tok[:, None]], dim=-1)
        unfinished = unfinished * (tok != 3)
        if unfinished.max() == 0:
            break
    return out
""",
        ["done = done | (unfinished.max() == 0)", "out = out.narrow(-1, 0, out.shape[-1] - int(left))"],
    ),
    "exits of pairs of modules": (
        """
layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3)).to(device)
heads = nn.ModuleList(nn.Linear(6, 3) for _ in range(3)).to(device)
exits = [0, 0, 0]
args = (torch.randn(1, 6, device=device) * 3,)
@torch.no_grad()
def f(x):
    for i, (layer, head) in enumerate(zip(layers, heads)):
        x = torch.tanh(layer(x))
        best, pred = head(x).softmax(-1).max(-1)
        if best.item() > 0.5:
            exits[i] += 1
            return pred
    exits[-1] += 1
    return pred
""",
        ["done = done | (best > 0.5)", "i = int(i_then)"],
    ),
    "exits of modules in a dictionary, at the first or at none": (
        """
layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)).to(device)
heads = nn.ModuleDict({str(i): nn.Linear(4, 3) for i in range(3)}).to(device)
args = (torch.randn(1, 4, device=device) * 3,)
counts = [0, 0, 0, 0]
def feed(i):
    return (torch.randn(1, 4, generator=torch.Generator().manual_seed(i)).to(device) * (40, 0.1, 3)[i % 3],)
@torch.no_grad()
def f(x):
    for i, layer in enumerate(layers):
        x = layer(x).relu()
        p = heads[str(i)](x).softmax(-1)
        if p.max() > 0.6:
            counts[i] += 1
            return p
    counts[3] += 1
    return p * 0
""",
        ["done = done | (p.max() > 0.6)"],
    ),
    "edges that a mask takes out, counted and added up": (
        """
lin = nn.Linear(4, 4).to(device)
args = (torch.randn(6, 4, device=device), torch.randint(0, 6, (2, 11), device=device))
@torch.no_grad()
def f(x, edge_index):
    src, dst = edge_index
    mask = src != dst
    src, dst = src[mask], dst[mask]
    deg = torch.bincount(dst, minlength=len(x)).float() + 1
    norm = deg.rsqrt()
    for _ in range(2):
        msg = lin(x)[src] * (norm[src] * norm[dst])[:, None]
        x = torch.zeros_like(x).index_add_(0, dst, msg).relu()
    return x
""",
        [
            "src, dst = torch.where(mask, src, 0), torch.where(mask, dst, 0)",
            "x = torch.zeros_like(x).index_add_(0, dst, torch.where(mask[:, None], msg, 0)).relu()",
        ],
    ),
    "edges that are padded with -1, as a pair": (
        """
net = nn.Linear(8, 4).to(device)
args = (torch.randn(5, 4, device=device), torch.randint(0, 5, (2, 9), device=device))
def feed(i):
    made = torch.Generator().manual_seed(i)
    edges = torch.randint(0, 5, (2, 9), generator=made)
    edges[:, 9 - i % 4 :] = -1
    return torch.randn(5, 4, generator=made).to(device), edges.to(device)
@torch.no_grad()
def f(x, edge_index):
    edge_index = edge_index[:, edge_index[0] >= 0]
    row, col = edge_index
    pair = torch.cat([x[row], x[col]], dim=-1)
    out = torch.zeros(x.shape[0], 4, device=x.device)
    out.scatter_add_(0, col[:, None].expand(-1, 4), torch.tanh(net(pair)))
    number = torch.zeros(x.shape[0], device=x.device).scatter_add_(0, col, torch.ones(col.numel(), device=x.device))
    return out / number.clamp(min=1)[:, None]
""",
        [
            "kept = edge_index[0] >= 0",
            "edge_index = torch.where(kept, edge_index, 0)",
        ],
    ),
    "points out of range that a mask takes out of a grid": (
        """
net = nn.Linear(3, 4).to(device)
args = (torch.rand(12, 3, device=device) * 10 - 2,)
def feed(i):
    return (torch.rand(12, 3, generator=torch.Generator().manual_seed(i)).to(device) * 12 - 3 * (i % 2),)
@torch.no_grad()
def f(points):
    mask = (points[:, 0] >= 0) & (points[:, 0] < 8) & (points[:, 1] >= 0) & (points[:, 1] < 8)
    points = points[mask]
    ix, iy = (points[:, 0] / 2).long(), (points[:, 1] / 2).long()
    cell = iy * 4 + ix
    feats = torch.relu(net(points))
    grid = torch.zeros(16, 4, device=points.device)
    grid.index_add_(0, cell, feats)
    count = torch.zeros(16, device=points.device).index_add_(0, cell, torch.ones(len(points), device=points.device))
    return grid / count.clamp(min=1).unsqueeze(-1)
""",
        ["cell = torch.where(mask, iy * 4 + ix, 0)", "grid.index_add_(0, cell, torch.where(mask[:, None], feats, 0))"],
    ),
    "tables of which one is made of another": (
        """
class Scheduler:
    def __init__(self):
        self.betas = torch.linspace(1e-4, 0.05, 10)
        self.alphas = 1 - self.betas
    def step(self, eps, t, x):
        beta, alpha = self.betas[t].to(x.device), self.alphas[t].to(x.device)
        return (x - beta * eps) / alpha.sqrt()
scheduler, net = Scheduler(), nn.Linear(4, 4).to(device)
args = (torch.randn(3, 4, device=device),)
@torch.no_grad()
def f(x):
    for t in reversed(range(0, 10, 3)):
        x = scheduler.step(net(x), t, x)
    return x
""",
        ["self.betas = torch.linspace(1e-4, 0.05, 10, device=device)"],
    ),
    "a place in a tensor of the host's that is made anew": (
        """
pos = torch.tensor([0])
cache = torch.zeros(20, 4, device=device)
args = (torch.randn(1, 4, device=device),)
@torch.no_grad()
def f(x):
    global pos
    p = pos.to(device)
    cache.index_copy_(0, p, x)
    pos = pos + 1
    return cache.sum(0) * p
""",
        ["pos = torch.tensor([0]).to(device)", "p = pos.to(device).clone()", "pos.copy_(pos + 1)"],
    ),
    "lengths of the host's to which a step adds": (
        """
class Cache:
    def __init__(self):
        self.lengths = torch.zeros(3, dtype=torch.long)
        self.store = torch.zeros(3, 16, 4, device=device)
cache = Cache()
args = (torch.randn(3, 4, device=device),)
@torch.no_grad()
def f(x):
    cache.store[torch.arange(3, device=device), cache.lengths.to(x.device)] = x
    where = torch.arange(3) + cache.lengths
    cache.lengths += 1
    mask = torch.arange(16, device=device)[None] < cache.lengths.to(device)[:, None]
    return (cache.store * mask[..., None]).sum(1) + where.to(x.device)[:, None]
""",
        [
            "self.lengths = torch.zeros(3, dtype=torch.long).to(device)",
            "where = torch.arange(3, device=device) + cache.lengths",
        ],
    ),
    "what top-p takes out of the only row, by places of a sort": (
        """
args = (torch.randn(1, 12, device=device),)
@torch.no_grad()
def f(x):
    logits = x.clone()
    s, idx = torch.sort(logits, descending=True)
    remove = s.softmax(-1).cumsum(-1) > 0.8
    remove[..., 1:] = remove[..., :-1].clone()
    remove[..., 0] = 0
    logits[0, idx[remove]] = -float("inf")
    return logits
""",
        ['logits[0].masked_fill_(torch.zeros_like(remove).scatter_(-1, idx, remove)[0], -float("inf"))'],
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_decodes_and_infers_is_rewritten_whole(name: str, fixed: Fixed) -> None:
    # GIVEN such a program WHEN rewritten THEN one graph does what it does, over other steps too
    text, wanted = WHOLE[name]
    found = fixed(text)
    assert found.complete, found
    assert [line for line in wanted if line not in lines_of(found)] == [], found


GROWN = """
class Cache:
    def __init__(self):
        self.keys = [torch.zeros(1, 2, {room}, 4, device=device) for _ in range(2)]
        self.values = [torch.zeros(1, 2, {room}, 4, device=device) for _ in range(2)]
{beside}
    def update(self, k, v, i):
{lines}
cache = Cache()
lins = nn.ModuleList(nn.Linear(8, 24) for _ in range(2)).to(device)
args = (torch.randn(1, 1, 8, device=device),)
ignore = {{"cache"}}
@torch.no_grad()
def f(x):
    for i, lin in enumerate(lins):
        q, k, v = lin(x).view(1, -1, 3, 2, 4).permute(2, 0, 3, 1, 4)
        k, v = cache.update(k, v, i)
        x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, -1, 8)
    return x
"""


def test_a_cache_that_grows_is_told_with_lines_that_are_rewritten_whole(fixed: Fixed) -> None:
    # GIVEN a cache of each layer that is joined with what is new WHEN rewritten
    joined = """\
        self.keys[i] = torch.cat([self.keys[i], k], dim=-2)
        self.values[i] = torch.cat([self.values[i], v], dim=-2)
        return self.keys[i], self.values[i]"""
    found = fixed(GROWN.format(room=1, beside="", lines=joined))
    # THEN it is told how to write it with room for all of it, and a number of how many there are
    told = str(found)
    made = "self.filled = [0] * 2"
    written = "self.keys[i][..., self.filled[i] : self.filled[i] + k.shape[-2], :] = k"
    count, read = "self.filled[i] += k.shape[-2]", "self.keys[i][..., : self.filled[i], :]"
    assert [each for each in (made, written, count, read) if each not in told] == [], told
    # WHEN that is written, as it is told THEN it is rewritten whole, with the number as a tensor
    lines = [written, written.replace("keys", "values").replace("k.", "v.").replace("= k", "= v"), count]
    lines.append(f"return {read}, {read.replace('keys', 'values')}")
    text = GROWN.format(
        room=20, beside=f"        {made.replace('0', '1')}", lines="\n".join(f"        {line}" for line in lines)
    )
    found = fixed(text)
    assert found.complete, found
    assert [line for line in lines_of(found) if "self.keys[i].index_copy_(-2, self.filled[i] + torch.arange(" in line]


def test_a_set_of_tokens_that_a_step_goes_through_is_told_as_a_mask() -> None:
    # GIVEN a penalty for tokens that the host has in a set, which are put there behind the launch
    step = ["def f(x):\n", "    for t in told:\n", "        x[0, t] /= 1.3\n", "    token = x.argmax(-1)\n"]
    lines = [*step, "    return token\n", "def after_f(token):\n", "    told.add(token.item())\n"]
    # WHEN that is told THEN a mask of the device stands for the set, where it is read and where it is filled
    text = kept_outside("told", lines, [*step, "    told.add(token.item())\n"], {"after_f"}, {"f"}, "device")
    assert "line 2 `for t in told:`" in text
    assert "`told_mask = torch.zeros(n, dtype=torch.bool, device=device)` once" in text
    assert "`told_mask.index_fill_(0, token.reshape(-1), True)` in place of `told.add(token.item())`" in text
    assert "let `x = x[0]`" in text


def test_a_list_of_tensors_that_is_joined_is_told_as_one_once_it_is_full(fixed: Fixed) -> None:
    # GIVEN a step that reads what the last two steps have left in a list WHEN a fix is asked for
    found = fixed("""
net, queue = nn.Linear(4, 4).to(device), []
args = (torch.randn(3, 4, device=device),)
def f(x):
    y = net(x)
    seen = torch.cat(queue) if queue else y.detach()
    loss = (y @ seen.T).logsumexp(1).mean()
    net.zero_grad()
    loss.backward()
    queue.append(y.detach())
    if len(queue) > 2:
        queue.pop(0)
    return loss.detach()
""")
    # THEN one tensor is told to stand for all of it, once it has its last size, and told once
    told = "`queue_in.copy_(torch.cat(queue))`, and here `queue_in` for `torch.cat(queue) if queue else y.detach()`"
    assert [told in each for each in found.instead].count(True) == 1, found
    # GIVEN one that fills a list behind the launch, which is as long from the beginning WHEN that is told
    step = ["def f(x):\n", "    y = net(x) @ torch.cat(queue).T\n"]
    lines = [*step, "    return y\n", "def after_f(y):\n", "    queue.append(y.clone())\n    queue.pop(0)\n"]
    text = kept_outside("queue", lines, step, {"after_f"}, {"f"}, "device")
    # THEN it is the same
    assert "`queue_in = torch.cat(queue)` once" in text
    assert "here `queue_in` for `torch.cat(queue)`" in text


def test_a_search_that_the_host_decides_is_told_as_rounds_to_capture(fixed: Fixed) -> None:
    # GIVEN a beam search with scores and tokens of the host's WHEN rewritten
    found = fixed("""
emb, cell, proj = nn.Embedding(7, 6).to(device), nn.GRUCell(6, 6).to(device), nn.Linear(6, 7).to(device)
args = (torch.randn(1, 6, device=device),)
@torch.no_grad()
def f(h0):
    beams = [([0], 0.0, h0)]
    for _ in range(3):
        found = []
        for tokens, score, h in beams:
            x = emb(torch.tensor([tokens[-1]], device=device))
            h = cell(x, h)
            top = proj(h).log_softmax(-1)[0].topk(2)
            for s, t in zip(top.values.tolist(), top.indices.tolist()):
                found.append((tokens + [t], score + s, h))
        beams = sorted(found, key=lambda each: each[1], reverse=True)[:2]
    return beams[0][0]
""")
    # THEN what the host reads stays there, and what it asks for is told as what can be captured
    assert not found.complete
    assert not [line for line in lines_of(found) if "unbind" in line]
    told = str(found)
    assert "`def f_round(h, tokens):` under `@torch.no_grad()`, with these lines and `return h, top`" in told, told


def test_what_picks_by_a_number_of_the_device_at_the_end_is_behind_the_launch(fixed: Fixed) -> None:
    # GIVEN drafted tokens of which as many are returned as the device accepts WHEN rewritten
    found = fixed("""
net = nn.Linear(5, 5).to(device)
args = (torch.randn(4, 5, device=device), torch.rand(4, device=device))
total = 0
@torch.no_grad()
def f(x, u):
    global total
    p = net(x).softmax(-1)
    drafted, n = [row.argmax() for row in p], 0
    for i in range(4):
        if u[i] > 3 * p[i].max():
            break
        n += 1
    total += 1
    return torch.stack(drafted[:n] + [p[0].argmin()])
""")
    # THEN the list is handed over, and what is picked of it is made behind the launch
    assert found.complete, found
    assert "return n.detach(), p.detach(), [each.detach() for each in drafted]" in lines_of(found), found.diff


WINDOW = """
class Context:
    def __init__(self):
        self.frames, self.buf = 5, torch.zeros(1, 0, 6, device=device)
    def __call__(self, x):
{lines}
        return self.buf
context, conv = Context(), nn.Linear(6, 4).to(device)
args = (torch.randn(1, 2, 6, device=device),)
@torch.no_grad()
def f(x):
    return conv(context(x)).mean(dim=1)
"""


def test_a_window_that_fills_is_told_with_lines_of_which_a_graph_is_right(fixed: Fixed, tmp_path: Path) -> None:
    # GIVEN the last frames of what is joined WHEN rewritten
    found = fixed(WINDOW.format(lines="        self.buf = torch.cat([self.buf, x], dim=1)[:, -self.frames :]"))
    # THEN it is told that it has its last size soon, and how it is written then
    told = str(found)
    new = "new = torch.cat([self.buf, x], dim=1)[:, -self.frames :]"
    kept = "self.buf = self.buf.copy_(new) if self.buf.shape == new.shape else new"
    assert new in told
    assert kept in told
    # WHEN that is written THEN a graph that is captured once it is full does what the function does
    text = WINDOW.format(lines=f"        {new}\n        {kept}")
    assert not differences(eager(run(text, tmp_path), "f"), captured(run(text, tmp_path), "f"), set())


LEFT_OVER = """
class Stream:
    def __init__(self):
        self.buf, self.mean, self.frames = torch.zeros(0, device=device), torch.zeros(4, device=device), 0
    def push(self, chunk):
        x = torch.cat([self.buf, chunk])
        n = (len(x) - 4) // 3 + 1
        frames = x.unfold(0, 4, 3)[:n]
{rest}
        self.frames += n
        self.mean = self.mean + n / self.frames * (frames.mean(0) - self.mean)
        return frames - self.mean
f, args = Stream().push, (torch.randn(9, device=device),)
"""


def test_what_a_step_leaves_over_is_no_room_and_what_else_it_moves_is_told_then(fixed: Fixed) -> None:
    # GIVEN what is joined to the rest of the last step, and cut WHEN rewritten
    found = fixed(LEFT_OVER.format(rest="        self.buf = x[n * 3:]"))
    # THEN it is told with lines by which the rest has one memory, and of other lines nothing yet
    new, kept = "new = x[n * 3:]", "self.buf = self.buf.copy_(new) if self.buf.shape == new.shape else new"
    first, *others = found.instead
    assert f"becomes `{new}` and `{kept}`" in first
    assert all("stays as it is until line " in each for each in others)
    # WHEN that is written THEN all else is rewritten
    assert fixed(LEFT_OVER.format(rest=f"        {new}\n        {kept}")).complete


def test_a_number_that_ends_a_loop_is_not_told_to_go_behind_the_launch(fixed: Fixed) -> None:
    # GIVEN tokens that are read one by one, until one ends the loop, by a module that counts WHEN rewritten
    found = fixed("""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.out, self.steps = nn.Embedding(7, 6), nn.Linear(6, 7), 0
    def forward(self, token):
        self.steps += 1
        return self.out(self.emb(token) + self.steps)
net = Net().to(device)
args = (torch.zeros(1, dtype=torch.long, device=device),)
@torch.no_grad()
def f(token):
    tokens, done, n = [], False, 0
    while not done and n < 5:
        token = net(token).argmax(-1)
        t = token.item()
        tokens.append(t)
        done = t == 4
        n += 1
    return tokens
""")
    # THEN a round of it is told as what can be captured
    assert found.complete or found.alone or "make it a function of `token` that returns" in str(found), found


def test_a_method_that_a_branch_calls_is_told_with_what_it_changes(fixed: Fixed) -> None:
    # GIVEN a filter that is updated only where the device has a measurement WHEN rewritten
    found = fixed("""
class Filter:
    def __init__(self):
        self.x, self.hits = torch.zeros(3, device=device), 0
    def update(self, z):
        self.x = 0.9 * self.x + 0.1 * z
kf = Filter()
args = (torch.randn(3, device=device),)
@torch.no_grad()
def f(z):
    y = kf.x * 2
    if torch.isnan(z).any():
        pass
    else:
        kf.update(z)
        kf.hits += 1
    return y + kf.x @ kf.x
""")
    # THEN it is told to be called in any case, with what is kept of it
    told = str(found)
    assert "`x_kept, x_then = kf.x, kf.x.clone()` before `kf.update(z)`" in told
    assert "`x_kept.copy_(torch.where(torch.isnan(z).any(), x_then, kf.x)); kf.x = x_kept`" in told
