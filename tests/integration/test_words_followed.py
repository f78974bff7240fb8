"""What is said of a problem that no diff has, followed to the letter: with these lines it is right from a graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.rewriting import rewrite
from tests.integration.rewritten import run
from tests.programs.running import captured, differences, eager

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

# A program, the line that something is said of, and lines that are said, with what they take the place of; the words
# ``before`` and ``behind`` stand for what goes around the launch. ``~`` stands before what is
# said in general, as of all means.
FOLLOWED: dict[str, tuple[str, str, list[tuple[str, str]]]] = {
    "layers that a loop leaves out by chance, and counts": (
        """
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.p, self.skipped = 0.5, 0
    def forward(self, x):
        for layer in self.layers:
            chance = torch.rand([])
            if self.training and chance < self.p:
                self.skipped += 1
                continue
            x = x + layer(x)
        return x
enc = Encoder().to(device)
args = (torch.randn(4, 4, device=device),)
@torch.no_grad()
def f(x):
    return enc(x)
""",
        "for layer in self.layers:",
        [
            ("@torch.no_grad()", "left_out = torch.zeros(len(enc.layers), dtype=torch.bool, device=device)"),
            (
                "before",
                (
                    "left_out.copy_(torch.tensor([bool(enc.training and torch.rand([]) < enc.p) "
                    "for layer in enc.layers]))"
                ),
            ),
            ("        for layer in self.layers:", "for n, layer in enumerate(self.layers):"),
            ("            chance = torch.rand([])", ""),
            ("            if self.training and chance < self.p:", "x_before = x"),
            ("                self.skipped += 1", ""),
            ("                continue", ""),
            ("+            x = x + layer(x)", "x = torch.where(left_out[n], x_before, x)"),
            ("behind", "enc.skipped += int(left_out.sum())"),
        ],
    ),
    "blocks of which each leaves itself out": (
        """
class Block(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.fn, self.p = nn.Linear(4, 4), p
    def forward(self, x):
        if self.training and random.random() < self.p:
            return x
        return x + torch.relu(self.fn(x))
net = nn.Sequential(Block(0.3), Block(0.6)).to(device)
args = (torch.randn(4, 4, device=device),)
@torch.no_grad()
def f(x):
    return net(x)
""",
        "if self.training and random.random() < self.p:",
        [
            (
                "@torch.no_grad()",
                (
                    "for m in [m for m in net.modules() if isinstance(m, Block)]: m.left_out = torch.zeros((), "
                    "dtype=torch.bool, device=device)"
                ),
            ),
            (
                "before",
                (
                    "for m in [m for m in net.modules() if isinstance(m, Block)]: "
                    "m.left_out.fill_(bool(m.training and random.random() < m.p))"
                ),
            ),
            ("        if self.training and random.random() < self.p:", ""),
            ("            return x", ""),
            (
                "        return x + torch.relu(self.fn(x))",
                "return torch.where(self.left_out, x, x + torch.relu(self.fn(x)))",
            ),
        ],
    ),
    "a weight decay that a count of the host's sets": (
        """
net = nn.Linear(4, 1).to(device)
opt = torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.1, capturable=True)
count = 0
args = (torch.randn(4, 4, device=device),)
def f(x):
    global count
    for group in opt.param_groups:
        group["weight_decay"] = 0.1 * (1 + count)
    opt.zero_grad()
    net(x).square().mean().backward()
    opt.step()
    count += 1
    with torch.no_grad():
        return net(x) * net(x - 1) + net(x + 1) * net(x + 2) - net(x * 2)
""",
        'group["weight_decay"] = 0.1 * (1 + count)',
        [
            (
                "+opt = torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.1, capturable=True)",
                (
                    'for group in opt.param_groups: group["decay"], group["weight_decay"] = '
                    'torch.tensor(float(group["weight_decay"]), device=device), 0.0'
                ),
            ),
            ("    for group in opt.param_groups:", ""),
            ('        group["weight_decay"] = 0.1 * (1 + count)', ""),
            ("before", 'for group in opt.param_groups: group["decay"].fill_(0.1 * (1 + count))'),
            ("+    net(x).square().mean().backward()", "with torch.no_grad():"),
            ("+    with torch.no_grad():", "    for group in opt.param_groups:"),
            ("+        for group in opt.param_groups:", '    for p in group["params"]:'),
            (
                '+            for p in group["params"]:',
                '    if p.grad is not None: p.mul_(1 - group["lr"] * group["decay"])',
            ),
            ("    count += 1", ""),
            ("behind", "count += 1"),
        ],
    ),
    "ragged rows that are packed, and added up by segments": (
        """
emb = nn.Embedding(9, 3).to(device)
args = (torch.randint(0, 9, (4, 6), device=device), torch.tensor([6, 1, 3, 2], device=device))
@torch.no_grad()
def f(ids, lengths):
    mask = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
    packed = emb(ids)[mask]
    seg = torch.arange(4, device=ids.device).repeat_interleave(lengths)
    total = torch.zeros(4, 3, device=ids.device).index_add_(0, seg, packed)
    return total / lengths[:, None]
""",
        "",
        [
            ("    packed = emb(ids)[mask]", "packed = emb(ids).flatten(0, 1)"),
            (
                "    seg = torch.arange(4, device=ids.device).repeat_interleave(lengths)",
                (
                    "seg = torch.where(mask.flatten(), "
                    "torch.arange(4, device=ids.device).repeat_interleave(mask.shape[1]), 4)"
                ),
            ),
            (
                "    total = torch.zeros(4, 3, device=ids.device).index_add_(0, seg, packed)",
                "total = torch.zeros(4 + 1, 3, device=ids.device).index_add_(0, seg, packed)[:4]",
            ),
        ],
    ),
    "edges that are left out before layers get them": (
        """
lin = nn.Linear(4, 4).to(device)
def gcn(x, edges):
    src, dst = edges
    deg = torch.ones(x.size(0), device=x.device).index_add_(0, dst, torch.ones(dst.numel(), device=x.device))
    messages = lin(x)[src] * (deg[src] * deg[dst]).rsqrt()[:, None]
    return x + torch.zeros_like(x).index_add_(0, dst, messages)
args = (torch.randn(5, 4, device=device), torch.randint(0, 5, (2, 12), device=device))
@torch.no_grad()
def f(x, edges):
    keep = edges[0] != edges[1]
    edges = edges[:, keep]
    h = gcn(x, edges).relu()
    h = gcn(h, edges)
    return h.softmax(-1)
""",
        "edges = edges[:, keep]",
        [
            ("+    keep = edges[0] != edges[1]", "n_nodes = x.shape[0]"),
            ("+    n_nodes = x.shape[0]", "x = torch.cat([x, x.new_zeros(1, *x.shape[1:])])"),
            ("    edges = edges[:, keep]", "edges = torch.where(keep, edges, n_nodes)"),
            ("+    h = gcn(h, edges)", "h = h[:n_nodes]"),
        ],
    ),
    "edges that are left out before the function adds them up": (
        """
lin = nn.Linear(4, 4).to(device)
args = (torch.randn(5, 4, device=device), torch.randint(0, 5, (2, 12), device=device))
@torch.no_grad()
def f(x, edges, drops=True):
    n = x.size(0)
    if drops:
        edges = edges[:, edges[0] != edges[1]]
    loops = torch.arange(n, device=x.device).repeat(2, 1)
    edges = torch.cat([edges, loops], 1)
    row, col = edges
    norm = torch.bincount(row, minlength=n).float().pow(-0.5)
    return torch.zeros_like(x).index_add_(0, row, norm[row, None] * lin(x)[col])
""",
        "edges = edges[:, edges[0] != edges[1]]",
        [
            ("+        edges = edges[:, edges[0] != edges[1]]", "edges = edges"),
            ("        edges = edges[:, edges[0] != edges[1]]", "kept = edges[0] != edges[1]"),
            (
                "+    edges = torch.cat([edges, loops], 1)",
                "kept = torch.cat([kept, torch.ones((loops).shape[-1], dtype=torch.bool, device=device)])",
            ),
            (
                "    norm = torch.bincount(row, minlength=n).float().pow(-0.5)",
                (
                    "norm = torch.zeros(n, dtype=torch.long, device=device).scatter_add_(0, row, kept.long())"
                    ".float().pow(-0.5)"
                ),
            ),
            (
                "+    return torch.zeros_like(x).index_add_(0, row, norm[row, None] * lin(x)[col])",
                (
                    "return torch.zeros_like(x).index_add_(0, row, torch.where(kept.view(-1, *[1] * (messages.dim() - "
                    "1)), messages, 0))"
                ),
            ),
            (
                "    return torch.zeros_like(x).index_add_(0, row, norm[row, None] * lin(x)[col])",
                "messages = norm[row, None] * lin(x)[col]",
            ),
        ],
    ),
    "unique values that a function goes over": (
        """
n = 4
args = (torch.randn(8, 3, device=device), torch.randint(0, 4, (8,), device=device))
@torch.no_grad()
def f(z, y):
    classes = torch.unique(y)
    classes = classes[classes != 0]
    means = torch.stack([z[y == c].mean(0) for c in classes])
    return torch.cdist(z, means).min(1).values.sum()
""",
        "",
        [
            ("+    classes = torch.unique(y)", "classes = torch.arange(n, device=device)"),
            (
                "    classes = torch.unique(y)",
                "classes_there = torch.zeros(n, dtype=torch.bool, device=device).index_fill_(0, y.flatten(), True)",
            ),
            ("    classes = classes[classes != 0]", "classes_there = classes_there & (classes != 0)"),
            (
                "~    means = torch.stack([z[y == c].mean(0) for c in classes])",
                "means = torch.stack([(z * (y == c)[:, None]).sum(0) / (y == c).sum().clamp(min=1) for c in classes])",
            ),
            (
                "~    return torch.cdist(z, means).min(1).values.sum()",
                "return torch.where(classes_there, torch.cdist(z, means), torch.inf).min(1).values.sum()",
            ),
        ],
    ),
    "unique values with what each is one of, and how many": (
        """
n = 4
args = (torch.randn(8, 3, device=device), torch.randint(0, 4, (8,), device=device))
@torch.no_grad()
def f(z, y):
    ids, at, counts = torch.unique(y, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(ids), 3, device=z.device).index_add_(0, at, z)
    mean = sums / counts.clamp(min=1)[:, None]
    return (z - mean[at]).square().sum() / len(ids)
""",
        "",
        [
            (
                "+    ids, at, counts = torch.unique(y, return_inverse=True, return_counts=True)",
                "ids_there = torch.zeros(n, dtype=torch.bool, device=device).index_fill_(0, y.flatten(), True)",
            ),
            (
                "~    return (z - mean[at]).square().sum() / len(ids)",
                "return (z - mean[at]).square().sum() / ids_there.sum()",
            ),
            (
                "+    ids, at, counts = torch.unique(y, return_inverse=True, return_counts=True)",
                (
                    "counts = torch.zeros(n, dtype=torch.long, device=device).scatter_add_(0, y.flatten(), "
                    "torch.ones_like(y.flatten()))"
                ),
            ),
            ("+    ids, at, counts = torch.unique(y, return_inverse=True, return_counts=True)", "at = y"),
            (
                "    ids, at, counts = torch.unique(y, return_inverse=True, return_counts=True)",
                "ids = torch.arange(n, device=device)",
            ),
        ],
    ),
    "a loop over unique values": (
        """
n = 4
args = (torch.randint(0, 4, (8,), device=device), torch.randint(0, 4, (8,), device=device))
@torch.no_grad()
def f(pred, y):
    found = []
    for c in torch.unique(y):
        found.append((pred == y)[y == c].float().mean())
    return torch.stack(found).mean()
""",
        "",
        [
            (
                "+    found = []",
                "there = torch.zeros(n, dtype=torch.bool, device=device).index_fill_(0, y.flatten(), True)",
            ),
            ("    for c in torch.unique(y):", "for c in range(n):"),
            (
                "~        found.append((pred == y)[y == c].float().mean())",
                "found.append(((pred == y) & (y == c)).sum() / (y == c).sum().clamp(min=1))",
            ),
            (
                "~    return torch.stack(found).mean()",
                "return torch.where(there, torch.stack(found), 0).sum() / there.sum()",
            ),
        ],
    ),
    "ranks among those that a mask keeps": (
        """
args = (torch.rand(8, device=device), (torch.rand(8, device=device) > 0.4).long())
def f(scores, target):
    target = target[torch.argsort(scores, descending=True)]
    places = torch.arange(1, len(target) + 1, device=target.device, dtype=torch.float32)[target > 0]
    ranks = torch.arange(len(places), device=places.device, dtype=torch.float32) + 1
    return torch.div(ranks, places).mean()
""",
        "[target > 0]",
        [
            (
                "    places = torch.arange(1, len(target) + 1, device=target.device, dtype=torch.float32)[target > 0]",
                (
                    "places = torch.where(target > 0, "
                    "torch.arange(1, len(target) + 1, device=target.device, dtype=torch.float32), 1)"
                ),
            ),
            (
                "~    ranks = torch.arange(len(places), device=places.device, dtype=torch.float32) + 1",
                "ranks = ((target > 0).cumsum(0) - 1) + 1",
            ),
            (
                "~    return torch.div(ranks, places).mean()",
                "return torch.where((target > 0), torch.div(ranks, places), 0).sum() / (target > 0).sum()",
            ),
        ],
    ),
}


class _Around:
    """What goes around each launch, in the program's names."""

    def __init__(self, names: dict[str, Any], before: str, behind: str) -> None:
        self.names, self.before, self.behind = names, before, behind

    def prepare(self, _: object) -> None:
        exec(self.before, self.names)

    def finish(self, _: object, out: Any) -> Any:
        exec(self.behind, self.names)
        return out


@pytest.mark.parametrize("name", FOLLOWED)
def test_words_that_are_followed_to_the_letter_give_a_graph_with_eager_s_numbers(name: str, tmp_path: Path) -> None:
    # GIVEN a program with a problem that no diff has
    text, line, said = FOLLOWED[name]
    truth, names = eager(run(text, tmp_path), "f"), run(text, tmp_path)
    fix = rewrite(names["f"], names["args"], {}, pgk.diagnose(names["f"], *names["args"]).failures)
    told = "\n".join(each for each in fix.instead if line in each)
    around, shown = {"before": "", "behind": ""}, fix.diff
    for old, new in said:
        # WHEN what is said of it is written where it is said to be
        assert not new or old.startswith("~") or new.strip() in told or new in shown, str(fix)
        if old in around:
            around[old] = new
            continue
        old = old.removeprefix("~")
        kept, add = old.removeprefix("+"), old.startswith(("+", "@"))
        at = f"{kept[: len(kept) - len(kept.lstrip())]}{new}\n" if new else ""
        lines = (f"{kept}\n{at}" if old.startswith("+") else f"{at}{kept}\n") if add else at
        assert f"{kept}\n" in text
        text = text.replace(f"{kept}\n", lines, 1)
    # THEN it captures, and its replays give eager's results and state
    names = run(text, tmp_path)
    seen = captured(names, "f", _Around(names, around["before"], around["behind"]))  # type: ignore[arg-type]
    assert not differences(truth, seen, set()), text


ROUNDS = """
V, B = 8, 3
emb, cell, out = nn.Embedding(V, 6).to(device), nn.GRUCell(6, 6).to(device), nn.Linear(6, V).to(device)
args = (torch.randn(1, 6, device=device),)
@torch.no_grad()
def f(h0):
    h, finished = h0.expand(B, -1).contiguous(), []
    scores = torch.zeros(B, device=device)
    tokens = torch.ones(B, 1, dtype=torch.long, device=device)
    for t in range(4):
        h = cell(emb(tokens[:, -1]), h)
        best, idx = (scores[:, None] + out(h).log_softmax(-1)).view(-1).topk(B)
        parent, tok = idx // V, idx % V
        tokens = torch.cat([tokens[parent], tok[:, None]], dim=1)
        h, scores = h[parent], best
        for b in range(B):
            if tok[b].item() == 2:
                finished.append((best[b].item(), tokens[b].tolist()))
                scores[b] = -1e9
        if len(finished) >= B:
            break
    return len(finished), tokens
"""


def test_a_round_of_another_size_each_time_is_told_in_lines_that_launch_it(tmp_path: Path) -> None:
    # GIVEN a beam search whose tokens grow, and whose host asks about them
    truth, names = eager(run(ROUNDS, tmp_path), "f"), run(ROUNDS, tmp_path)
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    told = "\n".join(fix.instead)
    # WHEN what is said of it is written where it is said to be
    head, begin = ROUNDS.split("@torch.no_grad()\n")
    first, last = begin.index("        h = cell("), begin.index("        for b in range(B)")
    made, call = "def f_round(h, scores, tokens):", "best, h, scores, tok, tokens = run(h, scores, tokens)"
    given, once = "return best, h, scores, tok, tokens", "run = pgk.parameterize(f_round)"
    assert all(f"`{line}`" in told for line in (made, given, once, call)), str(fix)
    lines = begin[first:last].replace("        ", "    ")
    text = f"{head}@torch.no_grad()\n{made}\n{lines}    {given}\n{once}\n@torch.no_grad()\n"
    names = run(f"{text}{begin[:first]}        {call}\n{begin[last:]}", tmp_path)
    # THEN the loop gives what it gave
    assert not differences(truth, eager(names, "f"), set())
