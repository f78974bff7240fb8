"""What is said of lines that belong around a launch: before it, behind it, between two of them, or once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import rewritten, run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

MIDDLE = """
src, dst, n = nn.Linear(3, 3).to(device), nn.Linear(3, 3).to(device), 0
opt = torch.optim.SGD(src.parameters(), lr=0.1)
args = (torch.randn(4, 3, device=device),)
def f(x):
    global n
    n += 1
    HEAD
    if n % 3 == 0:
        dst.load_state_dict(src.state_dict())
    return dst(y)
"""
BETWEEN = {
    "y = src(x)": "line 20 goes on with what it writes: do it before each launch, with line 16, which counts for it",
    "y = src(x); opt.step()": "line 20 goes on with what it writes, behind line 17: capture what stands before line 18",
}


@pytest.mark.parametrize("head", BETWEEN)
def test_what_the_step_goes_on_with_is_not_told_to_be_done_behind_it(tmp_path: Path, head: str) -> None:
    # GIVEN weights that a step copies now and then, and goes on with
    names = run(MIDDLE.replace("HEAD", head), tmp_path)
    # WHEN it is asked about, without a trial
    told = {failure.frame.text: failure for failure in pgk.diagnose(names["f"], *names["args"]) if failure.frame}
    # THEN it goes before the launch, or between two, and what it counts on goes with it
    assert BETWEEN[head] in str(told["if n % 3 == 0:"].fix)
    assert (
        "before each launch, with line 18, which reads it" if "; opt" not in head else "belongs where line 18 goes"
    ) in str(told["n += 1"].fix)


def test_a_rate_of_dropout_that_moves_is_a_mask_that_is_drawn_with_a_tensor(tmp_path: Path) -> None:
    # GIVEN dropout whose rate the host finds anew in each call
    text = "args = (torch.ones(4, 3, device=device),)\nrates, n = [0.1, 0.2, 0.3], [0]\n"
    text += "def f(x):\n    p = rates[n[0] % 3]\n    n[0] += 1\n    return F.dropout(x, p=p)\n"
    # WHEN a fix is asked for
    said = str(rewritten(text, tmp_path))
    # THEN it is told what stands in its place, as dropout takes no tensor
    assert "`kept * (torch.rand_like(kept) >= p_in) / (1 - p_in)`, which draws other numbers at the same rate" in said


def test_places_that_a_tensor_around_the_function_decides_are_told_to_be_found_once(tmp_path: Path) -> None:
    # GIVEN places in a tensor that no call is given
    text = "anchors, args = torch.rand(20, 4, device=device), (torch.rand(20, device=device),)\n"
    body = "    inside = anchors[:, 3] < 0.8\n    idx = torch.where(inside)[0]\n    s = x[idx]\n"
    body = f"def f(x):\n{body}    return anchors[idx[s.topk(min(3, len(idx))).indices]].mean(0)\n"
    # WHEN a fix is asked for THEN these lines go before the function, but not where something writes the tensor
    told = "as long as `anchors` stays as it is, once before the function `inside = anchors[:, 3] < 0.8; idx ="
    assert told in str(rewritten(text + body, tmp_path))
    assert told not in str(rewritten(f"{text}{body}def move():\n    anchors.add_(1)\n", tmp_path))


def test_the_decay_of_one_group_is_told_in_lines_for_that_group(tmp_path: Path) -> None:
    # GIVEN a step that gives one of two groups another decay each time
    text = """
net, it, args = nn.Linear(4, 1).to(device), 0, (torch.randn(8, 4, device=device),)
groups = [{"params": [net.weight]}, {"params": [net.bias], "weight_decay": 0.0}]
opt = torch.optim.AdamW(groups, lr=1e-3, capturable=True)
def f(x):
    global it
    opt.param_groups[0]["weight_decay"] = 0.01 + 0.1 * it
    it += 1
    opt.zero_grad()
    net(x).mean().backward()
    opt.step()
"""
    # WHEN a fix is asked for
    said = str(rewritten(text, tmp_path))
    # THEN it is told in what stands around the step, and in it
    assert 'for group in (opt.param_groups[0],): group["decay"].fill_(0.01 + 0.1 * it)' in said
    assert 'if p.grad is not None: p.mul_(1 - group["lr"] * group["decay"])' in said


WINDOW = """
from collections import deque
window, args = deque(maxlen=8), (torch.randn(4, 6, device=device),)
def f(x):
    err = x.pow(2).mean(1)
    limit = np.mean(window) + 3 * np.std(window) if len(window) > 3 else float("inf")
    flags = err > limit
    window.extend(err.tolist())
    return flagsMORE
"""


def test_what_numpy_makes_of_a_window_goes_before_the_launch_or_is_told_to(tmp_path: Path) -> None:
    # GIVEN a limit that numpy makes of what the steps before have found WHEN a fix is asked for
    fix = rewritten(WINDOW.replace("MORE", ""), tmp_path)
    # THEN it is written before each launch
    assert fix.complete, fix
    assert "limit_in.fill_(limit)" in fix.diff
    # AND where it is returned, too, that is told
    said = str(rewritten(WINDOW.replace("MORE", ", limit"), tmp_path))
    assert "before each launch `limit_in.fill_(np.mean(window)" in said


def test_what_is_kept_of_an_object_of_the_step_leaves_the_graph_under_a_name(tmp_path: Path) -> None:
    # GIVEN a step that keeps what a distribution of its own says
    text = "net, saved, args = nn.Linear(4, 3).to(device), [], (torch.randn(4, device=device),)\n"
    text += "def f(x):\n    dist = torch.distributions.Categorical(logits=net(x))\n    a = dist.sample()\n"
    text += (
        "    saved.append((dist.log_prob(a), a))\n    if len(saved) > 20:\n        saved.clear()\n    return a.item()\n"
    )
    # WHEN a fix is asked for THEN the distribution is not needed behind the launch
    told = "return `kept = dist.log_prob(a)`, `a`, and behind each launch `saved.append((kept.clone(), a.clone()))`"
    assert told in str(rewritten(text, tmp_path))


def test_rounds_as_many_as_the_device_says_are_told_to_be_given_as_a_number(tmp_path: Path) -> None:
    # GIVEN a loop over the groups that a tensor names, which works on the device
    text = "args = (torch.randn(9, 3, device=device), torch.arange(9, device=device) % 3)\ndef f(x, groups):\n"
    text += "    out = torch.zeros_like(x)\n    for g in range(int(groups.max()) + 1):\n        m = groups == g\n"
    text += "        out[m] = (x[m] - x[m].mean()) / (x[m].std() + 1e-5)\n    return out\n"
    # WHEN a fix is asked for THEN the loop stays where it is
    said = str(rewritten(text, tmp_path))
    assert "`for g in range(n):`, and keep a graph for each, `graphs[n]`" in said
    assert "the loop belongs before each launch" not in said


ROWS = "args = (torch.rand(6, 2, device=device), torch.rand(6, device=device))\n"
# Programs whose sizes the device decides, or whose host brings something back, and what is said of them.
SIZES = {
    "a list of which the first go": (
        """
kept, args = [], (torch.randn(2, 3, device=device),)
def f(x):
    kept.append(x * 2)
    if len(kept) > 3:
        kept.pop(0)
    return torch.stack(kept, 1).sum(1)
""",
        [
            "call the step without a graph until `kept` is as long as it gets; then `kept_in = torch.stack(kept, 1)`",
            "before each launch `kept_in.copy_(torch.stack(kept, 1))`, and here `kept_in` for `torch.stack(kept, 1)`",
        ],
    ),
    "rows of which each round leaves fewer": (
        f"""
{ROWS}def f(rows, score):
    keep = score > 0.3
    rows, score = rows[keep], score[keep]
    order = score.argsort()
    rows, score = rows[order], score[order]
    out = []
    while len(rows) > 0:
        out.append(rows[0])
        far = (rows[:1] - rows[1:]).abs().sum(1) > 0.5
        rows, score = rows[1:][far], score[1:][far]
    return torch.stack(out)
""",
        [
            "`score.argsort` behind it takes `torch.where(keep, score, torch.inf)`",
            "and `keep = keep[order]` goes with line 16",
            "`left = torch.ones(len(rows), dtype=torch.bool, device=device)` before the loop",
            "| ~left[n] | (far))`",
        ],
    ),
    "a list that the step goes on with, and rows that are told apart": (
        """
blocks, kept, args = torch.zeros(9, 3, device=device), [], (torch.randint(0, 4, (7, 3), device=device),)
def f(x):
    near = x.sum(1)
    if near.sum() > 3:
        kept.append(len(kept) % 9)
    rows, at = torch.unique(x, dim=0, return_inverse=True)
    sums = torch.zeros(rows.size(0), device=x.device).index_add_(0, at, near * 1.0)
    return rows, sums, blocks[kept[-1] if kept else 0]
""",
        [
            "end what is captured before line 14",
            "`code = (x * n ** torch.arange(x.shape[1] - 1, -1, -1, device=device)).sum(1)`",
            "`at = torch.empty_like(order).scatter_(0, order, first.cumsum(0) - 1)`",
            "behind the launch `rows = x[order][first]`",
        ],
    ),
    "numbers at places that the device finds": (
        """
kept, args = torch.zeros(3, 4, device=device), (torch.randn(6, 4, device=device), torch.arange(6, device=device) % 3)
counts = [0, 0, 0]
def f(z, y):
    for c in y.unique():
        c = c.item()
        counts[c] += 1
        kept[c] += (z[y == c].mean(0) - kept[c]) / counts[c]
    return kept * 2
""",
        ["`counts = torch.tensor(counts, device=device)` once"],
    ),
    "a part that is drawn of what a mask marks": (
        f"""
{ROWS}def f(rows, score):
    pos = torch.nonzero(score > 0.3).squeeze(1)
    pos = pos[torch.randperm(pos.numel(), device=pos.device)[:2]]
    return rows[pos].sum()
""",
        [
            "`pos_there = score > 0.3`",
            "torch.where(pos_there, torch.rand(pos_there.shape, device=device), 2.0).argsort(-1).argsort(-1)`",
            "`pos = torch.where(pos_there, torch.rand(pos_there.shape, device=device), 2.0).argsort(-1)[:n]`",
        ],
    ),
    "a tensor that grows and is cut further down": (
        """
class Cache:
    k = None
cache, args = Cache(), (torch.randn(2, 1, 3, device=device),)
def f(x):
    if cache.k is None:
        cache.k = x
    else:
        cache.k = torch.cat([cache.k, x], 1)
        if cache.k.size(1) > 4:
            cache.k = torch.cat([cache.k[:, :1], cache.k[:, -3:]], 1)
    return cache.k.sum(1)
""",
        [
            "from line 18 to line 20 write `new_k` for what the step makes of `cache.k`",
            "`new_k = torch.cat([new_k[:, :1], new_k[:, -3:]], 1)`",
            "`cache.k = cache.k.copy_(new_k) if cache.k.shape == new_k.shape else new_k`",
        ],
    ),
    "parts of which each is made one size": (
        """
args = (torch.rand(2, 6, device=device), torch.tensor([1, 2], device=device))
def f(x, ends):
    parts = []
    for end in ends:
        n = int(end)
        part = x[:, : n + 1]
        parts.append(F.interpolate(part[None], size=4)[0])
    return torch.stack(parts)
""",
        ["how large `x[:, : n + 1]` is decides what `F.interpolate` does"],
    ),
    "a function that only reads": (
        """
args = (torch.rand(6, device=device),)
def f(scores):
    ranked = sorted(scores.flatten().tolist())
    return ranked[len(scores) // 2]
""",
        ["`f` reads `scores`, and computes on the host: a graph would hold nothing of it"],
    ),
    "marks that the host makes of what is given": (
        """
args = (torch.randint(0, 9, (2, 4), device=device),)
def f(ids):
    labels = ids.clone()
    marks = [[t < 3 for t in row] for row in labels.tolist()]
    p = torch.full(labels.shape, 0.5).masked_fill_(torch.tensor(marks), 0.0)
    masked = torch.bernoulli(p).bool()
    labels[masked.to(device)] = 0
    return labels
""",
        ["line 17 copies what is made of it back: take lines 14 to 16"],
    ),
}


@pytest.mark.words
@pytest.mark.parametrize("name", SIZES)
def test_what_has_no_size_of_its_own_is_told_in_lines_that_have_one(name: str, tmp_path: Path) -> None:
    # GIVEN a program that no rule rewrites WHEN a fix is asked for THEN it says what to write in the user's names
    text, told = SIZES[name]
    said = str(rewritten(text, tmp_path))
    for each in told:
        assert each in said, said


def test_a_branch_that_no_call_takes_and_that_changes_what_the_step_wrote_is_in_the_graph(tmp_path: Path) -> None:
    # GIVEN a number that the host counts, and a branch that changes what the step has written before it
    text = """
class Env:
    def __init__(self):
        self.state, self.count = torch.zeros(6, 4, device=device), 0
    def step(self, x):
        self.state = torch.stack([self.state[:, 0] + x[:, 0], *self.state.unbind(1)[1:]], dim=1)
        self.count += 1
        if self.count % 4 == 0:
            self.state[:, 1] += 0.1
        return self.state.clone()
env, args = Env(), (torch.randn(6, 4, device=device),)
def f(x):
    return env.step(x)
"""
    # WHEN a fix is asked for
    found = rewritten(text, tmp_path)
    # THEN the number lives in a tensor, and what is added hangs on it, also in calls that no trial made
    assert found.complete, found
    assert "+        self.state[:, 1] += torch.where(self.count % 4 == 0, 0.1, 0)" in found.diff.splitlines()


SLOW = """
class Learner:
    def __init__(self):
        self.online, self.target = nn.Linear(3, 3).to(device), nn.Linear(3, 3).to(device)
        self.opt = torch.optim.SGD(self.online.parameters(), lr=0.1)
        self.seen, self.it = [], 0
    def now(self):
        return 1 - 0.1 * math.cos(math.pi * self.it / 100)
    @torch.no_grad()
    def follow(self):
        m = self.now()
        for p, q in zip(self.online.parameters(), self.target.parameters()):
            q.data = q.data * m + p.data * (1 - m)
    def step(self, rows):
        self.it += 1
        x = torch.FloatTensor(rows).to(device)
        loss = (self.online(x) - self.target(x).detach()).square().mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.follow()
        if self.it % 5 == 0:
            self.seen.append(loss.item())
        return loss.detach()
import math
learner = Learner()
f = learner.step
args = ([[0.1, 0.2, 0.3]] * 4,)
"""


def test_a_line_beside_one_that_is_rewritten_and_a_number_behind_the_launch_have_words_of_their_own(
    tmp_path: Path,
) -> None:
    # GIVEN a count beside a line that reads a tensor by the diff, and an average that goes behind the launch by it
    names = run(SLOW, tmp_path)
    # WHEN it is rewritten
    told = [f for f in pgk.diagnose(names["f"], *names["args"], fix=True) if f.frame is not None]
    count = next(str(failure.fix) for failure in told if failure.frame.text == "self.it += 1")  # type: ignore[union-attr]
    # THEN the count is not said to be what its neighbour becomes, and the number is said to be in no graph
    assert "FloatTensor" not in count, count
    frozen = [str(f.fix) for f in told if f.code == "scalar-frozen"]
    assert all("launch" in words for words in frozen), frozen


MASKED = """
net, mask = nn.Linear(4, 2).to(device), torch.rand(20, device=device) < 0.5
x, y = torch.randn(20, 4, device=device), torch.randint(0, 2, (20,), device=device)
args = ()
def f():
    out = CALL
    loss = F.cross_entropy(out[mask], y[mask])
    return loss * 2
"""


@pytest.mark.parametrize("call", ["net(x)", "torch.randn_like(x)[:, :2]", "x[:, :2] * 2"])
def test_what_a_net_or_a_draw_gives_is_not_told_to_be_found_once(tmp_path: Path, call: str) -> None:
    # GIVEN a loss of the nodes of a mask that stays, of what a net gives, a draw, or neither WHEN asked about
    names = run(MASKED.replace("CALL", call), tmp_path)
    told = "; ".join(str(each.fix) for each in pgk.diagnose(names["f"]))
    # THEN only what nothing moves is told to be found before the function
    assert ("once before the function `out = " in told) == (call == "x[:, :2] * 2"), told
