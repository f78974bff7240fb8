"""Branches of chance, what numpy makes of values of the device, and what only some rounds add to."""

from __future__ import annotations

import random

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import Fixed, Program, lines_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

DEVICE = pgk.device()
IMAGES = "import random\nimport numpy as np\nargs = (torch.randn(2, 3, 8, 8, device=device),)\n"
ROWS = (
    "import numpy as np\nargs = (torch.randn(6, 4, device=device), torch.tensor([0, 2, 1, 2, 0, 2], device=device))\n"
)
WHOLE = {
    "a branch that draws and writes in place": (
        IMAGES,
        """\
    if random.random() < 0.5:
        i = random.randint(0, 4); j = random.randint(0, 4)
        x = x.clone()
        x[:, :, i : i + 3, j : j + 3] = 0
    return x * 2
""",
        ["    i = random.randint(0, 4) if chosen else 0", "x = torch.where(x_in, x_then, x)"],
    ),
    "a branch that draws a factor": (
        IMAGES,
        """\
    if random.random() < 0.5:
        s = random.uniform(0.0, 0.2)
        x = x + s * torch.ones_like(x)
    return x
""",
        ["    s = random.uniform(0.0, 0.2) if chosen else 0.0"],
    ),
    "one of several ways": (
        IMAGES,
        """\
    op = random.choice(["flip", "turn", "none"])
    if op == "flip":
        x = x.flip(-1)
    elif op == "turn":
        x = x.rot90(1, (2, 3))
    return x
""",
        ["x = torch.where(given_in, x.flip(-1), x)", "x = torch.where(given_in_2, x.rot90(1, (2, 3)), x)"],
    ),
    "a coin that picks one of two tensors, of which the same operations are made": (
        IMAGES,
        """    a, b = x.flip(-1), x.rot90(1, (2, 3))
    y = a if random.random() < 0.5 else b
    return y
""",
        ["y = torch.where(y_in, a, b)"],
    ),
    "a coin that decides whether a proposal is taken": (
        IMAGES,
        """    for _ in range(3):
        moved = x + torch.randn_like(x)
        if random.random() < 0.5:
            x = moved
    return x * 2
""",
        ["x = torch.where(next(given), moved, x)"],
    ),
    "an order drawn on the CPU": (
        IMAGES,
        """\
    lam = np.random.beta(0.4, 0.4)
    at = torch.randperm(x.size(0))
    return lam * x + (1 - lam) * x[at]
""",
        ["    at_in.copy_(at.view_as(at_in))"],
    ),
    "ranks by numpy": (
        ROWS,
        "    lo, hi = np.percentile(x.detach().cpu().numpy(), [1, 99])\n    return x.clamp(lo, hi)\n",
        ["lo, hi = (torch.quantile(x.detach().flatten(), 0.01), torch.quantile(x.detach().flatten(), 0.99))"],
    ),
    "how many are picked, by both signs": (
        ROWS,
        "    p, n = x[x > 0], x[x < 0]\n    return p.mean() - n.mean(), p.numel() / x.numel()\n",
        ["p = x", "n = x"],
    ),
    "pairs that the host matches by distances": (
        ROWS,
        """\
    left = list(range(6))
    pairs = []
    d = torch.cdist(x, x)
    while len(left) > 1:
        i = left[0]
        j = min(left[1:], key=lambda k: d[i, k].item())
        pairs.append((i, j))
        left.remove(i)
        left.remove(j)
    return torch.tensor(pairs, device=x.device)
""",
        ["return d.detach()", "left = list(range(6))"],
    ),
    "fields of a result under one name": (
        ROWS,
        """\
    top = x.softmax(-1).topk(2)
    return [{"label": f"c{j}", "score": round(s, 4)} for j, s in zip(top.indices[0].tolist(), top[0][0].tolist())]
""",
        ["top_values, top_indices = x.softmax(-1).topk(2)", "return top_indices.detach(), top_values.detach()"],
    ),
    "the hardest of what is farther, of each row": (
        ROWS,
        """\
    d = torch.cdist(x, x.flip(0))
    loss, n = 0.0, 0
    for i in range(6):
        far = d[i][d[i] > d[i, i]]
        if far.numel() == 0: continue
        loss = loss + F.relu(d[i, i] - far.min() + 0.2); n += 1
    return loss / max(n, 1)
""",
        ["far = d[i]", "skipped = (d[i] > d[i, i]).sum() == 0"],
    ),
    "the best of a network for some rows": (
        "tnet = nn.Linear(4, 3).to(device)\n" + ROWS,
        """\
    done = y > 1
    best = torch.zeros(6, device=x.device)
    best[~done] = tnet(x[~done]).max(1)[0].detach()
    return best
""",
        ["best.copy_(torch.where(~done, tnet(x).max(1)[0].detach(), best))"],
    ),
    "a scale that halves where any gradient is infinite": (
        "class S: scale, good = 16.0, 0\nlin = nn.Linear(4, 4).to(device)\n" + ROWS,
        """\
    loss = lin(x).pow(2).mean() * S.scale
    g = torch.autograd.grad(loss, list(lin.parameters()))
    if any(not torch.isfinite(t).all() for t in g):
        S.scale /= 2
    else:
        S.good += 1
        if S.good % 5 == 0: S.scale *= 2
    return [t / S.scale for t in g]
""",
        ["chosen = torch.stack([torch.logical_not(torch.isfinite(t).all()) for t in g]).any()"],
    ),
    "a mean and a spread of an array": (
        ROWS,
        "    a = x.detach().cpu().numpy()\n    m, s = a.mean(), np.std(a)\n    return (x - float(m)) / float(s)\n",
        ["a = x.detach()", "m, s = a.mean(), a.std(correction=0)"],
    ),
    "a distance of two arrays": (
        ROWS,
        "    d = np.mean(np.abs(x.cpu().numpy() - y[:, None].cpu().numpy()))\n    return x / d\n",
        ["d = (x.detach() - y[:, None].detach()).abs().mean()"],
    ),
    "what both ways append": (
        ROWS,
        """\
    rows = []
    for c in range(4):
        m = y == c
        if m.any():
            rows.append(x[m].mean(0))
        else:
            rows.append(torch.zeros(4, device=x.device))
    return torch.stack(rows)
""",
        [],
    ),
    "what some rounds append": (
        ROWS,
        """\
    rows = {}
    for c in range(4):
        m = y == c
        if m.any():
            rows[c] = x[m].mean(dim=0)
    return torch.stack(list(rows.values()))
""",
        ["kept = torch.stack(counts)", "every = torch.stack(list(rows.values()))"],
    ),
    "a spread that some rounds add": (
        ROWS,
        """\
    loss = 0
    for c in range(4):
        m = y == c
        if m.sum() > 0:
            loss = loss + x[m].var(dim=0, unbiased=False).sum()
    return loss
""",
        [],
    ),
    "losses that some rounds go on without": (
        ROWS,
        """\
    losses = []
    for c in range(4):
        m = y == c
        if m.sum() == 0:
            continue
        losses.append(F.mse_loss(x[m], torch.zeros_like(x[m])))
    return torch.stack(losses).mean()
""",
        [],
    ),
}


@pytest.mark.parametrize("title", WHOLE)
def test_it_is_rewritten_whole(fixed: Fixed, title: str) -> None:
    # GIVEN a function as people write it WHEN a fix is asked for THEN all of it is in one graph, in lines as these
    head, body, lines = WHOLE[title]
    fix = fixed(f"{head}def f({'x' if head is IMAGES else 'x, y'}):\n{body}")
    assert fix.complete, fix
    written = [line.strip() for line in lines_of(fix)]
    assert not [line for line in lines if line.strip() not in written], written


EXTREMES = """
class Range:
    def __init__(self):
        self.low, self.high = float("inf"), float("-inf")
    def __call__(self, x):
        self.low = min(self.low, x.min().item())
        self.high = max(self.high, x.max().item())
        s = (self.high - self.low) / 255
        return (x / s).round() + int(round(-self.low / s))
seen = Range()
net = nn.Linear(8, 8).to(device)
def f(x):
    return seen(net(x))
"""


def test_extremes_that_an_object_keeps_are_not_whole_because_none_came(fixed: Fixed) -> None:
    # GIVEN extremes of which later inputs bring no new one: the numbers are right whatever a graph reads
    feed = "def feed(i):\n    return (args[0] / (2 + i),)\n"
    # WHEN a fix is asked for THEN what is exchanged for another tensor is not verified, and how to keep it is told
    fix = fixed(f"{IMAGES}{feed}{EXTREMES}")
    assert not fix.complete, fix
    said = str(fix)
    assert "the numbers would change (whether gradients are kept for seen: they are now)" in said, said
    assert '`self.low = torch.tensor(float("inf"), device=device)` where it begins' in said, said
    assert "`self.low.copy_(torch.minimum(self.low, x.min()))`" in said, said


def test_a_share_that_each_round_computes_is_told_with_what_it_is_of(program: Program) -> None:
    # GIVEN rounds that are left out by a share of their own WHEN diagnosed, and nothing rewritten
    names = program("""
layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)).to(device)
args = (torch.randn(5, 4, device=device),)
def f(x):
    for i, layer in enumerate(layers):
        share = 1 - 0.1 * (i + 1)
        if random.random() < share:
            x = x + layer(x)
    return x
""")
    said = " ".join(str(pgk.diagnose(names["f"], *names["args"])).split())
    # THEN what is drawn before the launch reads nothing that the loop alone has
    assert "[random.random() < (1 - 0.1 * (i + 1)) for i, layer in enumerate(layers)]" in said, said


def test_what_each_round_draws_is_told_in_lines_that_work(fixed: Fixed) -> None:
    # GIVEN images of which each is turned by chance WHEN a fix is asked for THEN lines for all rounds are told
    text = """\
    out = []
    for im in x:
        if random.random() > 0.5:
            im = im.flip(2)
        k = random.randint(1, 3)
        im = torch.rot90(im, k, (1, 2))
        out.append(im)
    return torch.stack(out)
"""
    said = str(fixed(f"{IMAGES}def f(x):\n{text}"))
    assert "before each launch `chosen_in.copy_(torch.tensor([random.random() > 0.5 for _ in range(len(x))]))`" in said
    assert "`im = torch.where(chosen_in[i], im.flip(2), im)`" in said, said
    turned = "torch.stack([torch.rot90(im, k, (1, 2)) for k in range(1, 4)])[k_in[i : i + 1] - 1][0]"
    assert f"`im = {turned}`" in said, said
    # and followed, a graph gives what the host would have drawn
    x = torch.randn(2, 3, 8, 8, device=DEVICE)
    chosen_in = torch.tensor([True, False]).to(DEVICE)
    k_in = torch.tensor([1, 3]).to(DEVICE)

    def followed(x: torch.Tensor) -> torch.Tensor:
        out = []
        for i, im in enumerate(x):
            im = torch.where(chosen_in[i], im.flip(2), im)
            names = {"torch": torch, "im": im, "k_in": k_in, "i": i}
            out.append(eval(turned, names))
        return torch.stack(out)

    followed(x)
    graph = pgk.cuda.CUDAGraph()
    with pgk.cuda.graph(graph):
        result = followed(x)
    chosen_in.copy_(torch.tensor([False, True]))
    k_in.copy_(torch.tensor([2, 1]))
    graph.replay()
    wanted = torch.stack([torch.rot90(x[0], 2, (1, 2)), torch.rot90(x[1].flip(2), 1, (1, 2))])
    torch.testing.assert_close(result.cpu(), wanted.cpu())


def test_a_loop_that_counts_from_one_gives_no_places(fixed: Fixed) -> None:
    # GIVEN rounds whose numbers begin at one WHEN a fix is asked for THEN none of them is told as an element's place
    text = """\
    out = []
    for n, im in enumerate(x, 1):
        k = random.randint(1, 3)
        im = torch.rot90(im, k, (1, 2))
        out.append(im * n)
    return torch.stack(out)
"""
    assert "k_in[n" not in str(fixed(f"{IMAGES}def f(x):\n{text}"))


def test_a_fraction_that_is_drawn_is_told_as_a_tensor_and_not_as_an_argument(fixed: Fixed) -> None:
    # GIVEN changes in an order of chance WHEN a fix is asked for THEN no number of them is told to have its own graph
    text = """\
    order = [0, 1]
    random.shuffle(order)
    for o in order:
        if o == 0: x = x * np.random.uniform(0.8, 1.2)
        else: x = x.clamp(max=1) + np.random.uniform(-0.1, 0.1)
    return x
"""
    said = str(fixed(f"{IMAGES}def f(x):\n{text}"))
    assert ".fill_(np.random.uniform(0.8, 1.2))`, here `drawn_" in said, said


@pytest.mark.parametrize(
    ("mean", "made"),
    [("x.mean()", "torch.stack([*last])"), ("x.mean().item()", "torch.tensor([*last], device=device)")],
)
def test_a_window_over_the_last_steps_is_told_as_one_tensor(mean: str, made: str, fixed: Fixed) -> None:
    # GIVEN a step that keeps its last four means WHEN a fix is asked for THEN the lines for one tensor are told
    text = f"    last.append({mean})\n    return x - sum(last) / len(last)\n"
    fix = fixed(f"from collections import deque\nlast = deque(maxlen=4)\n{IMAGES}def f(x):\n{text}")
    said = str(fix)
    assert f"`window = {made}`" in said, said
    assert "nothing in the step waits for it" not in said, said  # the sum does
    assert "`window.copy_(torch.cat([window[1:], x.mean().detach()[None]]))`" in said, said


def test_a_way_that_chance_takes_rarely_is_waited_for() -> None:
    # GIVEN a layer that is left out in one of twenty calls, of which the first few leave none out
    layer = torch.nn.Linear(4, 4).to(DEVICE)

    def step(x: torch.Tensor) -> torch.Tensor:
        if random.random() < 0.95:
            x = layer(x)
        return x

    random.seed(0)
    # WHEN it is diagnosed THEN the branch is found
    found = pgk.diagnose(step, torch.randn(2, 4, device=DEVICE))
    assert [each.code for each in found] == ["branch-frozen"]


def test_a_way_that_chance_never_takes_is_no_problem() -> None:
    # GIVEN the same with a probability of one WHEN it is diagnosed THEN there is none
    def step(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if random.random() < 1.0 else x

    assert not list(pgk.diagnose(step, torch.randn(2, 4, device=DEVICE)))


RATED = """\
net, seen = nn.Linear(4, 2).to(device), 0
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def f(x):
    global seen
    noise = torch.from_numpy(np.random.rand(2)).float().to(device)
    for group in opt.param_groups:
        group["lr"] = 0.1 * (1 - seen / 400)
    loss = (net(x[0, 0, :, :4]) + noise).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    seen += 16
"""


def test_a_rate_that_is_counted_is_not_told_to_be_drawn_because_other_numbers_are(program: Program) -> None:
    # GIVEN a step with noise of the host, and a rate that falls with what it has seen
    names = program(IMAGES + RATED)
    # WHEN it is looked at THEN its optimizer has a rate that is frozen, and nothing that was drawn
    codes = {f.code for f in pgk.diagnose(names["f"], *names["args"]) if f.frame and f.frame.text == "opt.step()"}
    assert codes == {"learning-rate-frozen"}


PICKED = {
    "a fraction that a helper is given": (
        "def brighter(x, f):\n    return x * f\ndef f(x):\n    return brighter(x, random.uniform(0.5, 1.5)) + 1\n",
        "give `brighter` that tensor",
    ),
    "a module of several": (
        (
            "nets = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)).to(device)\n"
            "def f(x):\n    net = random.choice(nets)\n    return net(x)\n"
        ),
        "pick it before each launch, and give it to `f` among its arguments",
    ),
    "the order of layers": (
        (
            "nets = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)).to(device)\n"
            "def f(x):\n    order = [0, 1, 2]\n    random.shuffle(order)\n"
            "    for i in order:\n        x = nets[i](x)\n    return x\n"
        ),
        "draw `order` before each launch, and give it to `f` among its arguments",
    ),
}


@pytest.mark.parametrize("name", PICKED)
def test_what_the_host_draws_that_no_number_of_the_device_can_be_has_a_graph_for_each(
    name: str, program: Program
) -> None:
    # GIVEN a fraction of a helper's, a module that is picked, or an order
    text, words = PICKED[name]
    names = program(IMAGES + text)
    # WHEN a rewrite is asked for THEN it is told how each gets there
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    assert found.fix is not None
    assert words in "\n".join(found.fix.instead), found


@pytest.mark.sweep
def test_an_order_that_the_host_draws_is_drawn_before_each_launch(program: Program) -> None:
    # GIVEN ways that come in an order of chance WHEN rewritten
    text = "def f(x):\n    order = torch.randperm(2)\n    for i in order:\n        if i == 0:\n            x = x + 1\n"
    names = program(IMAGES + text + "        if i == 1:\n            x = x * 2\n    return x\n")
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN the order is on the device, where each round chooses
    assert fix is not None
    assert fix.complete, fix
    assert "+        x = torch.where(i == 1, x * 2, x)\n" in fix.diff


def test_a_branch_of_chance_is_told_where_something_is_read_back_and_no_branch_that_asks_for_a_round() -> None:
    # GIVEN tensors that a branch exchanges by chance, ahead of a read, and a round that is drawn in a loop
    def flipped(x: torch.Tensor) -> float:
        a, b = x * 2, x + 1
        if random.random() < 0.5:
            a, b = b, a
        return float((a / b).sum().item())

    def mixed(x: torch.Tensor) -> torch.Tensor:
        at = random.randint(0, 2)
        for i in range(3):
            if i == at:
                x = x.flip(0)
            x = x.tanh() if i == 2 else x.relu()
        return x

    # WHEN diagnosed THEN the branch is told, which the device has not decided
    found = pgk.diagnose(flipped, torch.ones(2, device=DEVICE))
    assert [(f.code, f.frame.text) for f in found if f.frame] == [
        ("branch-frozen", "if random.random() < 0.5:"),
        ("sync-item", "return float((a / b).sum().item())"),
    ], str(found)
    # AND what goes another way is the round's own question, not one that each call answers alike
    found = pgk.diagnose(mixed, torch.ones(2, device=DEVICE))
    assert {f.frame.text for f in found if f.frame and f.code == "branch-frozen"} == {"if i == at:"}, str(found)


@pytest.mark.pieces
@pytest.mark.parametrize("draw", ["random.random()", "rng.random()"])
def test_what_captured_lines_still_draw_is_no_fix_where_all_steps_agree_by_chance(draw: str, fixed: Fixed) -> None:
    # GIVEN a choice that hardly ever goes the other way, and a line that is moved behind the launch
    made = "rng, best = np.random.default_rng(0), [0.0]\n"
    body = f"    y = x * 2\n    y = -y if {draw} < 1e-9 else y\n    best[0] = y.mean().item()\n    return y\n"
    # WHEN it is rewritten THEN no diff is shown whose captured lines draw, as no replay does, and pieces do
    fix = fixed(f"{IMAGES}{made}def f(x):\n{body}")
    if fix.complete:  # it is drawn ahead of each launch
        assert f"    y_in.fill_({draw} < 1e-9)" in fix.diff
    else:
        assert not fix.diff
        assert "without changing a line" in fix.pieces
