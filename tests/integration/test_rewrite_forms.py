"""Small forms that anybody writes: a number of the device's that a tensor, an operation or a branch is given."""

from __future__ import annotations

import pytest
import torch

from tests.integration.rewritten import Fixed, lines_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

HEAD = """
w = torch.eye(4, device=device) + 0.1
args = (torch.randn(4, 4, device=device),)
@torch.no_grad()
def f(x):
    x = torch.tanh(x @ w) + x
"""
# what follows, with the lines that stand there then
FORMS = {
    "tensors that are made of it": (
        """\
    s, n = x.abs().max().item(), int((x > 0).sum())
    a = torch.tensor(s, device=x.device)
    b = torch.as_tensor(n, device=x.device)
    c = torch.full((4,), s / 2, device=x.device)
    d = torch.full((4,), n, device=x.device)
    return a, b, c, d, x * torch.full_like(x, s), x.new_full((2,), fill_value=s), x.new_tensor(s) * x
""",
        [
            "a = s.to(x.device, torch.float32, copy=True)",
            "b = n.to(x.device, torch.int64, copy=True)",
            "c = torch.empty((4,), device=x.device).copy_(s / 2)",
            "d = torch.empty((4,), device=x.device, dtype=torch.long).copy_(n)",
        ],
    ),
    "a tensor of several numbers, and one that goes up to it": (
        """\
    s = x.abs().max().item()
    t = torch.tensor([s, 1.0], device=x.device)
    return x.sum() * t, torch.linspace(0, s, 4, device=x.device) * x
""",
        [
            (
                "t = torch.stack([s.to(x.device, torch.float32), "
                "torch.full((), 1.0, dtype=torch.float32, device=x.device)])"
            ),
            "return x.sum() * t, (torch.linspace(0, 1, 4, device=x.device) * s) * x",
        ],
    ),
    "arithmetic of several, rounded as the host does it": (
        """\
    low, span = x.min(), x.max() - x.min()
    scale = (span / 255).item()
    zero = int(round(-low.item() / scale))
    half = round(low.item() * 4 + 0.5)
    return ((x / scale).round() + zero) * scale + half
""",
        [
            "zero = (-low.detach().double() / scale.double()).round().long()",
            "half = (low.detach().double() * 4 + 0.5).round().long()",
        ],
    ),
    "operations that take a number": (
        """\
    s = x.abs().max().item()
    a = (x @ w).masked_fill(x > 0, s)
    b = torch.add(x, w, alpha=s)
    c = x.clamp(0, s) + torch.addcmul(x, w, x, value=s)
    d = F.leaky_relu(x, s) + F.threshold(x, s / 2, 0.0)
    return a, b, c, d
""",
        [
            "a = torch.where(x > 0, s, (x @ w))",
            "b = torch.add(x, w * s)",
            "c = x.clamp(min=0).clamp(max=s) + torch.addcmul(x, w * s, x)",
            "d = torch.where(x > 0, x, x * s) + torch.where(x <= s / 2, 0.0, x)",
        ],
    ),
    "draws that take a number as a bound": (
        """\
    s = x.abs().max().item()
    a = torch.zeros_like(x).uniform_(-s, s)
    b = torch.empty_like(x).normal_(0, 2 * s) + torch.empty_like(x).uniform_(1, s + 1)
    return a, b
""",
        [
            "a = torch.zeros_like(x).uniform_().mul_(s - (-s)).add_(-s)",
            "b = torch.empty_like(x).normal_().mul_(2 * s) + torch.empty_like(x).uniform_().mul_((s + 1) - 1).add_(1)",
        ],
    ),
    "losses and limits that take a number": (
        """\
    s = (x - w).abs().median().item()
    a = F.huber_loss(x, w, delta=max(s, 1e-3))
    b = F.smooth_l1_loss(x @ w, w, beta=s / 2)
    c = F.triplet_margin_loss(x, x * 2, w, margin=math.exp(-s) / math.sqrt(2 * math.pi))
    d = F.softplus(x, s) + F.elu(x, alpha=s)
    e = x / (math.exp(-w.max().item()) / math.sqrt(2 * math.pi))
    w.grad = x.cos()
    n = torch.nn.utils.clip_grad_norm_([w], 0.5 * s)
    return a, b, c, d, e, n, w.grad
""",
        [
            (
                "a = ((x - w).abs().clamp(max=s.clamp(min=1e-3))"
                " * ((x - w).abs() - 0.5 * (x - w).abs().clamp(max=s.clamp(min=1e-3)))).mean()"
            ),
            "d = (torch.nn.functional.softplus(x * s) / s) + torch.where(x > 0, x, s * torch.expm1(x.clamp(max=0)))",
            "n = torch.nn.utils.get_total_norm(grads)",
            "grad.mul_(((0.5 * s) / (n + 1e-6)).clamp(max=1.0))",
        ],
    ),
    "what a mask picks, counted, sorted and compared": (
        """\
    keep, per = x[:, 0] < 1.5, x.square().sum(-1)
    seen = x.argmax(-1)
    counts = torch.bincount(4 * seen[keep] + seen[keep], minlength=16)
    k = int(keep.sum().item() / 2)
    hard = per[keep]
    hard, _ = hard.sort(descending=True)
    hard = hard[:k]
    out = x.new_zeros(())
    if keep.any():
        kl = F.kl_div(x[keep].log_softmax(-1), w[keep].softmax(-1), reduction="batchmean")
        out = out + 0.5 * kl
    return counts, hard.sum(), torch.topk(per[keep], 1).values.sum(), out
""",
        [
            (
                "counts = torch.zeros(16, dtype=torch.long, device=seen.device)"
                ".scatter_add_(0, torch.where(keep, 4 * seen + seen, 0).long(), keep.long())"
            ),
            (
                'kl = torch.where(keep, F.kl_div(x.log_softmax(-1), w.softmax(-1), reduction="none")'
                ".movedim(0, -1), 0).sum() / keep.sum()"
            ),
        ],
    ),
    "rows that are put in order where a mask is, and parts that end where the device says": (
        """\
    bad, fresh = x[:, 0] > 0.5, x.sin()
    out = x.clone()
    out[bad] = fresh[: bad.sum()]
    n = bad.sum().item()
    fresh = fresh + 1
    out[bad] = fresh[:n]
    ends = (x > 0).sum(-1).clamp(min=1)
    last = torch.stack([x[b, at - 1] for b, at in enumerate(ends.tolist())])
    k = int((x[0] > 0).sum())
    spec = torch.fft.rfft(x)
    spec[:, k:] = 0
    w[..., :k] *= 0.9
    w[k:] += 0.1
    return out, torch.view_as_real(spec), w, last
""",
        [
            "out.masked_scatter_(bad[..., None], fresh)",
            "last = x[torch.arange(len(ends), device=ends.device), ends - 1]",
            "spec.masked_fill_(torch.arange(spec.shape[1], device=spec.device) >= k, 0)",
            "w.copy_(torch.where(torch.arange(w.shape[-1], device=w.device) < k, w * 0.9, w))",
            (
                "w.copy_(torch.where(torch.arange(w.shape[0], device=w.device).view(-1, *[1] * (w.dim() - 1)) >= k, "
                "w + 0.1, w))"
            ),
        ],
    ),
    "read in other ways": (
        """\
    s = x.abs().max().cpu().item()
    t = float(np.sqrt(x.pow(2).sum().item()))
    u = x.mean().tolist()
    v = x.std().cpu()
    y = x.cpu()
    y += 1
    return (x - u) / v * s + t, x * sum(x[0].tolist()), y.to(x.device)
""",
        [
            "s = x.abs().max().detach()",
            "t = torch.sqrt(x.pow(2).sum().detach())",
            "u = x.mean().detach()",
            "v = x.std()",
            "y = x.clone()",
            "return (x - u) / v * s + t, x * x[0].sum().detach(), y.to(x.device)",
        ],
    ),
    "counts, arrays, the largest of several, and a rotation": (
        """\
    n = len((x > 0).nonzero())
    p = (x > 1).nonzero()
    m = np.mean(x.cpu().numpy())
    k = max(x.min().item(), x.max().item(), 1.0)
    a = x.mean().item()
    c, s = math.cos(a), math.sin(a)
    r = torch.tensor([[c, -s], [s, c]], device=x.device)
    return x[:, :2] @ r * max(n, 1) / k - m, x * len(p)
""",
        [
            "n = torch.count_nonzero(x > 0)",
            "p = torch.count_nonzero(x > 1)",
            "m = x.mean().detach()",
            "k = torch.maximum(x.min().detach(), x.max().detach()).clamp(min=1.0)",
            "c, s = torch.cos(a), torch.sin(a)",
        ],
    ),
    "constants like another tensor, or beside one": (
        """\
    return torch.where(x > 0, x, torch.tensor(0.5)) * x.new_tensor(2.0) * x.new_tensor([1.0, 2.0, 3.0, 4.0])
""",
        [],
    ),
    "numbers that tensors of another type have": (
        """\
    x = x.double()
    s = x.max().item()
    a = torch.tensor(x.min().item(), device=x.device)
    b = torch.full((2,), s, device=x.device)
    return a, b
""",
        [
            "a = x.min().detach().to(device=x.device, dtype=torch.float32)",
            "b = torch.empty((2,), device=x.device).copy_(s)",
        ],
    ),
    "indexes": (
        """\
    i = x.sum(1).argmax().item()
    y = x.clone()
    y[i] = 0
    y[:, i] = 2.0
    y[i, 0] = 5.0
    y[1, i] += 3
    order = x.sum(1).argsort().tolist()
    row = x.index_select(0, torch.tensor([i], device=x.device))
    return x[order], x[:, i], x[0, i], x[..., i], x.select(1, i), x[i : i + 1], row, y
""",
        [
            "y.index_fill_(0, i.reshape(1), 0)",
            "y.index_fill_(1, i.reshape(1), 2.0)",
            "y.select(1, 0).index_fill_(0, i.reshape(1), 5.0)",
            "y[1, i.reshape(1)] += 3",
            "order = x.sum(1).argsort()",
        ],
    ),
    "places that a tensor has, one by one": (
        """\
    top, y, z = x.argmax(0), x.clone(), x.amax(1)
    which = torch.zeros_like(top)
    for j in range(4):
        z[top[j]] = 1.0
        which[top[0]] = j
        y[top[j], 1] = 2.0
        y[top[-1]] = x[j]
    return y, z, which
""",
        [
            "z.index_fill_(0, top[j].reshape(1), 1.0)",
            "which.index_fill_(0, top[0].reshape(1), j)",
            "y.select(1, 1).index_fill_(0, top[j].reshape(1), 2.0)",
            "y.index_put_((top[-1].reshape(1),), x[j])",
        ],
    ),
    "an index that is read where it is used": (
        """\
    best = x.sum(1).argmax()
    row = x[int(best)] * 2
    return row, x[(best - len(x)).item()]
""",
        ["row = x[best.reshape(1)][0] * 2", "return row, x[(best - len(x)).reshape(1)][0]"],
    ),
    "a chain of branches": (
        """\
    m = x.mean().item()
    if m > 0.05:
        y = x
    elif m > -0.05:
        y = x * 2
    else:
        y = -x
    if math.isnan(m):
        return torch.zeros_like(y), y.sum()
    if y.sum() > 0:
        if y.max() > 2:
            return y * 3, y.sum()
        return y * 2, y.sum()
    return y - 1, y.sum()
""",
        [
            "y = torch.where(m > 0.05, x, torch.where(m > -0.05, x * 2, -x))",
            (
                "return torch.where(torch.isnan(m), torch.zeros_like(y), "
                "torch.where(y.sum() > 0, torch.where(y.max() > 2, y * 3, y * 2), y - 1)), y.sum()"
            ),
        ],
    ),
    "what is true, by a name": (
        """\
    a = x.std().item()
    fine = bool(torch.isfinite(x).all())
    assert not math.isnan(a)
    return x * a if fine else x
""",
        [
            "fine = (torch.isfinite(x).all()).bool()",
            "torch._assert_async(torch.logical_not(torch.isnan(a)))",
            "return torch.where(fine, x * a, x)",
        ],
    ),
    "several numbers of one branch, and several names that it gives": (
        """\
    big = (x > 1).any().item()
    small = (x < -1).any().item()
    worst = max(x[i].norm().item() for i in range(4))
    if worst > 1:
        a, b = x * 2, x + 1
    else:
        a, b = x, x - 1
    if big and small:
        return a / 2
    if big:
        return b.clamp(max=1)
    return a
""",
        [
            "small = (x < -1).any().detach()",
            "worst = torch.stack([x[i].norm().detach() for i in range(4)]).max()",
            "a, b = x * 2, x + 1",
            "return torch.where((big) & (small), a / 2, torch.where(big, b.clamp(max=1), a))",
        ],
    ),
    "results between other lines": (
        """\
    m = x.mean().item()
    if m < 0:
        return -x
    y = x * 2
    if y.max() > 3:
        return y / 3
    z = y + 1
    return z
""",
        [
            "early = -x",
            "chosen_2 = y.max() > 3",
            "return torch.where(chosen, early, torch.where(chosen_2, early_2, z))",
        ],
    ),
    "ways that go on where they do not return": (
        """\
    a, b = x.mean().item(), x.std().item()
    k = int(round(x.std().item()))
    if a > 0 and b > 1:
        return x - a
    elif b > 1:
        return x / b
    return x * k
""",
        [
            "k = x.std().detach().round().long()",
            "return torch.where((a > 0) & (b > 1), x - a, torch.where(b > 1, x / b, x * k))",
        ],
    ),
    "branches in branches that do more than one thing": (
        """\
    m = x.mean().item()
    y = x
    if m > 0:
        z = y + 1
        if m > 0.1:
            y = x * 3
    else:
        z = y - 1
        y = y * z
    return y + z
""",
        ["chosen = m > 0", "z = y + 1", "chosen_2 = chosen & (m > 0.1)", "y = torch.where(chosen_2, x * 3, y)"],
    ),
}


def test_a_number_that_an_object_notes_is_noted_behind_the_launch_while_the_step_goes_on(fixed: Fixed) -> None:
    # GIVEN a step that computes with what it has just noted
    kept = "class Scaler:\n    pass\nscaler = Scaler()\nscaler.scale = 1.0\n"
    found = fixed(
        kept
        + HEAD
        + """\
    scaler.scale = x.abs().max().item()
    if scaler.scale > 1:
        x = x / scaler.scale
    return x + 1
"""
    )
    # WHEN rewritten THEN the tensor goes on, and the number is kept late
    assert found.complete, found
    lines = [
        "scale = x.abs().max().detach()",
        "x = torch.where(scale > 1, x / scale, x)",
        "scaler.scale = scale.item()",
    ]
    assert not [line for line in lines if line not in lines_of(found)], found


@pytest.mark.parametrize("title", FORMS)
def test_a_small_form_is_whole_in_one_graph(fixed: Fixed, title: str) -> None:
    # GIVEN lines that hand a number of the device to something WHEN rewritten THEN the device goes on with it
    text, lines = FORMS[title]
    found = fixed(HEAD + text)
    assert found.complete, found
    assert found.around.before is None, found
    assert found.around.after is None, found
    assert not [line for line in lines if line not in lines_of(found)], found


@pytest.mark.parametrize("way", ["if x.mean() > 9:\n        y = x\n    elif x.mean() > -9:\n", "if x.mean() > 9:\n"])
def test_a_choice_is_no_tensor_of_its_own_where_the_other_was_written_by_that_name(fixed: Fixed, way: str) -> None:
    # GIVEN ways of which one, that no trial takes, leaves a name that of another tensor, which is then written in place
    found = fixed(HEAD + f"    y = x\n    {way}        y = x * 2\n    y += 1\n    return x + y\n")
    # WHEN rewritten THEN no choice is made, and behind the launch it is that tensor as well
    assert not [line for line in lines_of(found) if "torch.where" in line or "y = x.clone()" in line], found


def test_what_both_ways_of_a_branch_end_with_is_done_behind_it(fixed: Fixed) -> None:
    # GIVEN a number that both ways read and log, and a sort on the host WHEN rewritten THEN one choice stands there
    found = fixed(
        "temps = []\n"
        + HEAD
        + """\
    s = x.std()
    if s.item() > 1:
        t = 0.5 + s.item()
        temps.append(t)
    else:
        t = 2 - s.item()
        temps.append(t)
    ranked, order = (x / t).cpu().sort(dim=-1, descending=True)
    return torch.zeros_like(x).scatter_(-1, order.to(x.device), ranked.to(x.device))
"""
    )
    assert found.complete, found
    lines = [
        "t = torch.where(s > 1, 0.5 + s.detach(), 2 - s.detach())",
        "ranked, order = (x / t).sort(dim=-1, descending=True)",
    ]
    assert not [line for line in lines if line not in lines_of(found)], found


@pytest.mark.parametrize("index", ["int(best)", "best"])
def test_a_row_of_a_table_that_is_written_is_no_copy(fixed: Fixed, index: str) -> None:
    # GIVEN a row that is held below what no trial comes to WHEN a fix is asked for
    given = "table = torch.rand(5, 3, device=device)\nargs = (torch.randn(5, device=device),)\n"
    lines = f"    best = s.argmax()\n    row = table[{index}]\n    row.clamp_(max=1e9)\n    return table.sum(1) + s\n"
    fix = fixed(f"{given}def f(s):\n{lines}")
    # THEN it stays the table's
    assert not any("best.reshape(1)" in line for line in lines_of(fix)), fix


RING = """
args = (torch.rand(4, device=device),)
class Ring:
    def __init__(self):
        self.at, self.held = 0, torch.zeros(3, device=device)
ring = Ring()
def f(x):
    ring.held[ring.at] = x.sum()
    ring.at = (ring.at + 1) % 3
    n = ring.at if ring.at else 3
    return x * n + ring.held.sum()
"""


def test_a_counter_that_is_asked_whether_it_is_zero_is_asked_on_the_device(fixed: Fixed) -> None:
    # GIVEN a position that lives on in a tensor, and a number that is chosen by whether it is zero WHEN rewritten
    found = fixed(RING)
    # THEN that is a condition of the device's
    assert found.complete, found
    assert "n = torch.where(ring.at.clone().bool(), ring.at.clone(), 3)" in lines_of(found)
