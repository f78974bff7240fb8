"""Short functions as people ask about them: one line breaks the capture, and what is written instead is known."""

from __future__ import annotations

import pytest
import torch

from tests.integration.rewritten import Fixed, changed, lines_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

ROWS = "args = (torch.randn(6, 4, device=device),)\n"
LENGTHS = """\
args = (torch.randn(3, 5, 4, device=device), torch.tensor([2, 5, 3], device=device))
def feed(i):
    return torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(i)).to(device), args[1].roll(i)
"""
# What is written, what it is given, and lines that stand there then.
SHORT = {
    "a gate that also counts on the host what it left out": (
        """\
    y = state["y"] + x.mean(0)
    far = (y - x[0]).norm()
    if far.item() < 3:
        y = y + 0.5 * (x[0] - y)
        state["missed"] = 0
    else:
        state["missed"] += 1
    state["y"] = y
    return y
""",
        ROWS + 'state = {"y": torch.zeros(4, device=device), "missed": 0}\n',
        ["chosen = far < 3", "if chosen:", 'state["y"].copy_(y)', "y = torch.where(chosen, y + 0.5 * (x[0] - y), y)"],
    ),
    "rows that are listed in one column, if there are any": (
        """\
    out = x * 2
    at = torch.nonzero(x[:, 0] < 0)
    if at.numel() > 0:
        out[at[:, 0]] = x[at[:, 0]] * 3
    return out
""",
        ROWS,
        ["at = x[:, 0] < 0", "out.copy_(torch.where(at[..., None], x * 3, out))"],
    ),
    "two entries that are the same number": (
        """\
    y = torch.eye(4, device=x.device)
    y[0, 2] = y[1, 3] = 0.1
    return x @ y
""",
        ROWS,
        ["y[0, 2] = y[1, 3] = torch.full((), 0.1, dtype=y.dtype, device=y.device)"],
    ),
    "means up to the longest, along another dimension": (
        """\
    longest = int(lengths.max())
    return x[:, :longest].mean(dim=1), (x * 2)[:, lengths.min():].sum()
""",
        LENGTHS,
        [
            "longest = lengths.max().detach().long()",
            (
                "return (torch.where((torch.arange(x.shape[1], device=x.device) < longest), x.movedim(1, -1), 0)"
                ".sum(-1, dtype=torch.float32) / (torch.arange(x.shape[1], device=x.device) < longest).sum())"
                ".type_as(x), torch.where((torch.arange((x * 2)"
                ".shape[1], device=(x * 2).device) >= lengths.min()), (x * 2).movedim(1, -1), 0).sum()"
            ),
        ],
    ),
    "a sum of those that the device wants": (
        """\
    total = sum(w * row.exp().mean() for row, w in zip(x, x[:, 0]) if w > 0)
    return total + sum([1 for w in x[0] if w < 0], 0.5)
""",
        ROWS,
        [
            "total = sum(torch.where(w > 0, w * row.exp().mean(), 0) for row, w in zip(x, x[:, 0]))",
            "return total + sum((torch.where(w < 0, 1, 0) for w in x[0]), 0.5)",
        ],
    ),
    "averages by names that the first step makes": (
        """\
    total = x.sum()
    for i in range(2):
        mean = x[i].mean()
        key = f"mean_{i}"
        logs[key] = 0.9 * logs.get(key, 0.0) + 0.1 * float(mean)
        total = total + mean
    return total
""",
        ROWS + "logs = {}\n",
        ["if isinstance(logs.get(key), torch.Tensor):", "logs[key].copy_(new)"],
    ),
    "rounds that hand on something else, and go on": (
        """\
    out = []
    for i in range(len(x)):
        if x[i].sum() < 0:
            out.append(torch.zeros_like(x[i]))
            continue
        y = x[i] * 2
        out.append(y + 1)
    return torch.stack(out)
""",
        ROWS,
        ["out.append(torch.where(x[i].sum() < 0, torch.zeros_like(x[i]), y + 1))"],
    ),
    "means of parts in a list": (
        """\
    return torch.stack([x[i, :n].mean(0) for i, n in enumerate(lengths.tolist())])
""",
        LENGTHS,
        [],
    ),
    "an order that a loop goes through": (
        """\
    order = sorted(range(len(x)), key=lambda i: -x[i, 0].item())
    total = x.new_zeros(4)
    for rank, i in enumerate(order):
        total = total + x[i] / (rank + 1)
    return total
""",
        ROWS,
        ["order = torch.stack([-x[i, 0] for i in range(len(x))]).argsort(stable=True)"],
    ),
    "a state that is let go of now and then": (
        """\
    global h, n
    out, h = rnn(x, h)
    n += 1
    if n % 3 == 0:
        h = tuple(s.detach() for s in h)
    return out.mean()
""",
        ROWS + "rnn, h, n = nn.LSTM(4, 5).to(device), None, 0\n",
        ["def after_f():  # after each launch"],
    ),
    "labels of rows that a mask keeps, by which others are gathered": (
        """\
    y = (x[:, 0] > 0).long() * 103 - 100
    keep = y != -100
    x = x[keep]
    y = y[keep]
    logp = x.log_softmax(-1)
    return (-logp.gather(1, y.unsqueeze(1)).squeeze(1) - 0.1 * logp.mean(-1)).mean()
""",
        ROWS,
        ["y = torch.where(keep, y, 0)"],
    ),
    "a table of the host's, looked up by numbers of the device": (
        """\
    y = x.argmax(1)
    return x * torch.tensor([weights[i] for i in y.tolist()]).to(x.device)[:, None]
""",
        ROWS + "weights = [0.5, 1.0, 2.0, 0.25]\n",
        ["weights_on_device = torch.tensor(weights, device=device)"],
    ),
    "outliers that a loop clips": (
        """\
    x = x.flatten()
    for _ in range(3):
        z = (x - x.mean()) / x.std()
        x = x[z.abs() < 1.5]
    return x.mean(), x.max(), len(x)
""",
        ROWS,
        [
            "kept = torch.ones_like(x, dtype=torch.bool)",
            "kept = kept & (z.abs() < 1.5)",
            (
                "return (torch.where(kept, x, 0).sum(dtype=torch.float32) / kept.sum()).type_as(x), "
                "torch.where(kept, x, -math.inf).max(), kept.sum()"
            ),
        ],
    ),
    "what numpy draws, of sizes of another tensor": (
        """\
    n = w.shape[1]
    keep = np.random.choice(n, int(n * 0.8), replace=False)
    return x @ w[:, torch.from_numpy(keep).to(x.device)]
""",
        ROWS + "w = torch.randn(4, 10, device=device)\n",
        ["return x @ w[:, given_in]"],
    ),
    "averages that a loop keeps by name": (
        """\
    total = x.sum()
    for k, v in {"a": x.mean(), "b": x.std()}.items():
        avg[k] = 0.9 * avg[k] + 0.1 * v.item()
        total = total + v / avg[k]
    return total
""",
        ROWS + 'avg = {"a": 1.0, "b": 1.0}\n',
        ["avg[k].copy_(0.9 * avg[k] + 0.1 * v.detach())"],
    ),
    "places as numbers, by which rows are written": (
        """\
    out = x.clone()
    for i in (x.sum(1) > 0).nonzero().flatten().tolist():
        out[i] = out[i] / out[i].norm()
    return out
""",
        ROWS,
        ["there = x.sum(1) > 0", "out[i] = torch.where(there[i], out[i] / out[i].norm(), out[i])"],
    ),
    "places under a name, by which rows are added up": (
        """\
    total = torch.zeros(4, device=x.device)
    keep = x[:, 0] > 0
    at = torch.where(keep)[0]
    for i in at:
        y = x[i] * 2
        total += y  # one by one
    return total
""",
        ROWS,
        ["there = keep.clone()", "for i in range(len(there)):"],
    ),
    "two picks in one line": (
        """\
    m = x[:, 0] > 0
    a, b = x[m], x[~m]
    return a.sum(0) - b.sum(0)
""",
        ROWS,
        [],
    ),
    "two draws in one line": (
        """\
    i = random.randint(0, 2); j = random.randint(0, 1)
    return x[i : i + 3, j : j + 3] * 2
""",
        ROWS,
        ["i = random.randint(0, 2)", "j = random.randint(0, 1)"],
    ),
    "what a sample of numbers picks is filled with one": (
        """\
    at = random.sample(range(4), 2)
    x = x.clone()
    x[:, at] = 0
    return x
""",
        ROWS,
        ["at = random.sample(range(4), 2)", "at_in.copy_(torch.as_tensor(at))"],
    ),
    "an order that the host shuffles": (
        """\
    order = list(range(6))
    random.shuffle(order)
    return x[order] - x
""",
        ROWS,
        ["order_in.copy_(torch.as_tensor(order))", "return x[order_in] - x"],
    ),
    "a mask as wide as the longest": (
        """\
    mask = torch.arange(lengths.max().item(), device=x.device)[None, :] < lengths[:, None]
    return (x * mask[..., None]).sum(1) / lengths[:, None]
""",
        LENGTHS,
        [
            "mask = torch.arange(x.shape[1], device=x.device)[None, :] < lengths[:, None]  # padded to the longest",
        ],
    ),
    "means of rows that are alike": (
        """\
    v = (x * 2).floor().long()
    u, inv = torch.unique(v[:, :2], dim=0, return_inverse=True)
    s = torch.zeros(u.shape[0], 4, device=x.device).index_add_(0, inv, x)
    n = torch.bincount(inv)
    return x - (s / n[:, None])[inv]
""",
        ROWS,
        ["u, inv = v[:, :2], (v[:, :2][:, None] == v[:, :2]).all(-1).long().argmax(1)"],
    ),
    "sums by labels, and how many there are of each": (
        """\
    best = x.argmax(1)
    u, inv, c = best.unique(return_inverse=True, return_counts=True)
    s = x.new_zeros((len(u), 4)).index_add(0, inv, x)
    return s[inv] / c[inv].unsqueeze(1)
""",
        ROWS,
        ["u, inv, c = best, (best[:, None] == best).long().argmax(1), (best[:, None] == best).sum(1)"],
    ),
    "heads that are picked by labels that are there": (
        """\
    task = x[:, 0].abs().long().clamp(max=2)
    out = x.new_zeros(6, 2)
    for t in task.unique().tolist():
        m = task == t
        out[m] = heads[t](x[m])
    return out
""",
        f"{ROWS}heads = nn.ModuleList(nn.Linear(4, 2) for _ in range(3)).to(device).requires_grad_(False)\n",
        ["for t in range(len(heads)):  # no number is below zero"],
    ),
    "an average whose rate the host moves, under names": (
        """\
    state.n += 1
    d = min(0.9, (1 + state.n) / (10 + state.n))
    for k, v in net.state_dict().items():
        ema[k].mul_(d).add_(v, alpha=1 - d)
    return net(x), {k: v.clone() for k, v in ema.items()}
""",
        f"""\
{ROWS}class State:
    n = 0
state = State()
net = nn.Linear(4, 2).to(device).requires_grad_(False)
ema = {{k: v.clone() for k, v in net.state_dict().items()}}
""",
        ["ema[k].mul_(d_in).add_(v * (1 - d_in))"],
    ),
    "a table of the CPU that is gathered from there": (
        "    return x * table.gather(-1, x.argmax(1).cpu()).to(x.device)[:, None]\n",
        f"{ROWS}table = torch.linspace(0, 1, 4)\n",
        ["return x * table_on_device.gather(-1, x.argmax(1)).to(x.device)[:, None]"],
    ),
    "points that are found one after the other": (
        """\
    picked = [0]
    d = torch.full((6,), torch.inf, device=x.device)
    for _ in range(3):
        d = torch.minimum(d, (x - x[picked[-1]]).pow(2).sum(1))
        picked.append(d.argmax().item())
    return x[picked], torch.tensor(picked, device=x.device)
""",
        ROWS,
        ["picked.append(d.argmax())", "return x[torch.stack(picked)], torch.stack(picked)"],
    ),
    "a number that a function keeps of itself, by which it averages now and then": (
        """\
    f.n += 1
    if f.n % 2 == 0:
        for a, p in zip(average, net.parameters()):
            a += (p.detach() - a) / (f.n // 2 + 1)
    return net(x), [a.clone() for a in average]
f.n = 0
def other(x):
    other.n += 1
    return x * other.n
other.n = 0
""",
        f"""\
{ROWS}net = nn.Linear(4, 2).to(device).requires_grad_(False)
average = [p.detach().clone() * 0 for p in net.parameters()]
""",
        ["f.n = torch.tensor(0, device=device)"],
    ),
    "a box around what a mask marks": (
        """\
    m = x > -1
    ys, xs = torch.where(m)
    m[:] = False
    return torch.stack([xs.min(), ys.min(), xs.max(), ys.max()]).float() / 8
""",
        ROWS,
        ["there = m.clone()"],
    ),
    "which of several is the smallest": (
        """\
    losses = [((x - i) ** 2).mean().item() for i in range(3)]
    best = losses.index(min(losses))
    others = []
    for i in range(3):
        others.append((x * i).sum().item())
    return x - best, x * int(np.argmax(others))
""",
        ROWS,
        ["best = torch.stack(losses).argmin()"],
    ),
    "orders by what the device has found": (
        """\
    order = sorted(range(6), key=lambda i: -x[i].sum().item())
    best = max(range(len(x)), key=lambda i: float(x[i].norm()))
    last = sorted(range(6), key=lambda i: x[i].max().round().item(), reverse=True)
    return x[order], x * best, x[last]
""",
        ROWS,
        ["order = torch.stack([-x[i].sum() for i in range(6)]).argsort(stable=True)"],
    ),
    "rows that are copied one by one, and go back together": (
        """\
    rows = []
    for r in x:
        rows.append(r.cpu() * 2)
    return torch.stack(rows).to(x.device)
""",
        ROWS,
        ["rows.append(r * 2)"],
    ),
}

LABELLED = {
    "all of a table": "return s.mean(0) * x",
    "the labels themselves": "k = inv.max()\n    return s[inv] * k",
    "how many there are": "return s[inv] / len(u)",
    "what is there": "return s[inv], u",
}


@pytest.mark.parametrize("title", SHORT)
def test_a_short_function_is_whole_in_one_graph(fixed: Fixed, title: str) -> None:
    # GIVEN a function that people ask about
    body, given, lines = SHORT[title]
    # WHEN a fix is asked for
    fix = fixed(f"import random\n{given}def f({'x, lengths' if given is LENGTHS else 'x'}):\n{body}")
    # THEN it is whole, with these lines, and ten other steps agree
    assert fix.complete, fix
    assert {*lines} <= {line.strip() for line in lines_of(fix)}, fix
    assert not any("other.n" in line for line in changed(fix.diff))  # which another function has


def test_a_table_that_the_file_changes_is_not_copied_once(fixed: Fixed) -> None:
    # GIVEN a table of the host's that the file turns around
    title = "a table of the host's, looked up by numbers of the device"
    body, given, lines = SHORT[title]
    # WHEN a fix is asked for THEN the device gets no copy of it for good
    fix = fixed(f"{given}def f(x):\n{body}def turn():\n    weights.reverse()\n")
    assert not {*lines} & {*lines_of(fix)}, fix


@pytest.mark.parametrize("reads", ["weight()", "(state['missed'] + 1)"])
def test_what_is_counted_before_it_is_read_is_not_counted_behind(fixed: Fixed, reads: str) -> None:
    # GIVEN a gate that sets a number first, which what it computes then reads
    body = (
        "if x.sum() > 0:\n        state['missed'] = 0\n        y = y * READ\n    else:\n        state['missed'] += 1\n"
    )
    given = f"{ROWS}state = {{'missed': 0}}\ndef weight():\n    return state['missed'] + 1\n"
    # WHEN a fix is asked for THEN the two stay together
    fix = fixed(f"{given}def f(x):\n    y = x + 1\n    {body.replace('READ', reads)}    return y\n")
    assert not any(line.strip().startswith("chosen = ") for line in lines_of(fix)), fix


@pytest.mark.parametrize("title", LABELLED)
def test_labels_are_listed_where_more_than_sums_is_made_with_them(fixed: Fixed, title: str) -> None:
    # GIVEN what would be another number with other labels, or with more of them
    body = """\
    best = x.argmax(1)
    u, inv = torch.unique(best, return_inverse=True)
    s = torch.zeros(len(u), 4, device=x.device).index_add(0, inv, x)
"""
    # WHEN a fix is asked for THEN no row is labelled by the first that is like it
    assert "best[:, None] ==" not in fixed(f"{ROWS}def f(x):\n{body}    {LABELLED[title]}\n").diff


def test_rows_that_are_compared_with_each_other_are_not_told_to_be_zeros(fixed: Fixed) -> None:
    # GIVEN a smallest distance between rows that two masks pick, which zeros would change
    text = "    pos = x[n > 2]\n    neg = x[n < 3]\n    return torch.cdist(pos, neg).min()\n"
    head = "args = (torch.randn(6, 4, device=device), torch.arange(6, device=device))\n"
    # WHEN a fix is asked for
    fix = fixed(f"{head}def feed(i):\n    return args[0] + i, args[1].roll(i)\ndef f(x, n):\n{text}")
    # THEN all rows are compared, and it is told which pairs count, in lines that give the same when they are followed
    assert "`torch.cdist(x, x)`" in str(fix), fix
    assert "`there = (n > 2)[:, None] & (n < 3)[None, :]`" in str(fix), fix
    x, n = torch.randn(6, 4), torch.arange(6)
    found = torch.cdist(x, x).masked_fill(~((n > 2)[:, None] & (n < 3)[None, :]), torch.inf).min()
    torch.testing.assert_close(found, torch.cdist(x[n > 2], x[n < 3]).min())


def test_what_is_kept_of_arguments_is_told_to_be_copied_behind_each_launch(fixed: Fixed) -> None:
    # GIVEN a step that keeps what it is given, and draws one of what it has kept
    text = "    buffer.append((x, x * 2))\n    a, b = random.choice(buffer)\n    return (a - b).sum()\n"
    # WHEN a fix is asked for THEN the line itself is told, with copies
    fix = fixed(f"import random\nbuffer = []\n{ROWS}def f(x):\n{text}")
    assert "behind each launch `buffer.append((x.clone(), x.clone() * 2))`" in str(fix), fix
