"""The hardest examples of a batch: their number is the device's, or moves with the steps; none may be there at all."""

from __future__ import annotations

import pytest
import torch

from tests.integration.rewritten import Fixed, lines_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

TRAIN = """
net = nn.Linear(4, 3).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
epoch, hits, total = 0, 0, 0
args = (torch.randn(12, 4, device=device), torch.randint(0, 3, (12,), device=device))
def f(x, y):
    global epoch, hits, total
    out = net(x)
    losses = F.cross_entropy(out, y, reduction="none")
    {number}
    {loss}
    opt.zero_grad()
    loss.backward()
    opt.step()
    {end}
"""
NUMBERS = {
    "the device's": "k = max(int((losses > 1.0).sum()), 4)",
    "moved by the steps": "k = int(max(0.25, 1 - 0.1 * epoch) * x.size(0))",
}
LOSSES = {
    "two names": "hard, _ = losses.topk(k)\n    loss = hard.mean()",
    "its values": "loss = torch.topk(losses, k).values.mean()",
    "the first": "loss = losses.topk(k)[0].sum() / 12",
    "the smallest": "easy, _ = torch.topk(losses, k=k, largest=False)\n    loss = easy.mean()",
    "of a row": "both = torch.stack([losses, losses])\n    loss = both[0].topk(k, -1).values.mean()",
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("number", NUMBERS)
def test_the_largest_whose_number_moves_are_picked_of_all(fixed: Fixed, number: str, loss: str) -> None:
    # GIVEN a loss of the largest, of which the number of them is no constant WHEN rewritten
    found = fixed(TRAIN.format(number=NUMBERS[number], loss=LOSSES[loss], end="epoch += 1\n    return loss.detach()"))
    # THEN all are sorted, and the device leaves out the others
    assert found.complete, found
    falls = "" if loss == "the smallest" else "descending=True"
    assert any(f"sort({falls}).values" in line for line in lines_of(found)), found


def test_rows_of_a_matrix_and_places_are_not_picked_so(fixed: Fixed) -> None:
    # GIVEN the largest of each row, and places that are read WHEN rewritten THEN nothing is sorted
    for loss in ("loss = out.topk(k).values.mean()", "best, at = losses.topk(k)\n    loss = losses[at].mean()"):
        text = TRAIN.format(number="k = max(int((losses > 9.0).sum()), 2)", loss=loss, end="return loss.detach()")
        assert not any("sort(" in line for line in lines_of(fixed(text)))


def test_a_loss_that_is_zero_where_nothing_is_picked_is_chosen_on_the_device(fixed: Fixed) -> None:
    # GIVEN places that a condition lists, whose number decides what the loss is, and is kept WHEN rewritten
    loss = "\n    ".join(
        [
            "at = torch.nonzero(losses > 1.0).squeeze(1)",
            "counts.append(len(at))",
            "if len(at) == 0:",
            "    loss = out.sum() * 0.0",
            "else:",
            "    loss = losses[at].mean()",
        ]
    )
    found = fixed("counts = []" + TRAIN.format(number="pass", loss=loss, end="return loss.detach()"))
    # THEN it is a mask, the device takes one of both, and the count is kept behind the launch
    assert found.complete, found
    lines = lines_of(found)
    assert "at = losses > 1.0" in lines, found
    assert any(line.startswith("loss = torch.where(at.sum() == 0,") for line in lines), found
    assert lines[-1] == "counts.append(int(at.sum()))", found


def test_what_is_cut_to_a_whole_number_before_it_is_compared_is_left(fixed: Fixed) -> None:
    # GIVEN a branch on the whole part of a mean WHEN rewritten THEN it is not taken by the mean itself
    found = fixed(
        TRAIN.format(
            number="pass",
            loss="loss = losses.mean()\n    if int(losses.mean()) == 1:\n        loss = loss * 2",
            end="return loss.detach()",
        )
    )
    assert not any("losses.mean() == 1" in line for line in lines_of(found)), found


def test_what_a_branch_compares_with_stays_a_number(fixed: Fixed) -> None:
    # GIVEN a minimum that begins at infinity WHEN rewritten
    found = fixed("""
lo = torch.tensor(float("inf"), device=device)
args = (torch.randn(4, 6, device=device),)
def f(x):
    if float(lo) == float("inf"):
        lo.copy_(x.min())
    else:
        lo.lerp_(x.min(), 0.1)
    return x - lo
""")
    # THEN the device asks whether it still is that
    assert found.complete, found
    assert 'chosen = lo == float("inf")' in lines_of(found), found


def test_those_above_a_limit_or_else_the_first_are_picked_by_one_mask(fixed: Fixed) -> None:
    # GIVEN losses of which those above a limit count, or the largest where these are too few WHEN rewritten
    found = fixed(
        TRAIN.format(
            number="losses, _ = losses.sort(descending=True)",
            loss="""\
if losses[4] > 1.2:
        losses = losses[losses > 1.2]
    else:
        losses = losses[:4]
    loss = losses.mean()""",
            end="return loss.detach()",
        )
    )
    # THEN the device chooses which mask it is
    line = "kept = torch.where(losses[4] > 1.2, losses > 1.2, torch.arange(len(losses), device=losses.device) < 4)"
    assert found.complete, found
    assert line in lines_of(found), found


def test_a_name_that_keeps_all_of_itself_is_no_line_of_a_diff(fixed: Fixed) -> None:
    # GIVEN rows that a mask picks of a tensor, under its own name WHEN all of them stay THEN no `x = x` does
    found = fixed("""
args = (torch.randn(8, device=device),)
def f(x):
    x = x * 2
    x = x[x > 0.1]
    return x.sum() / x.numel()
""")
    assert found.complete, found
    assert "x = x" not in lines_of(found), found.diff
    assert any("torch.where(x > 0.1" in line for line in lines_of(found)), found.diff


WITH_HELPERS = """
class Trainer:
    def __init__(self):
        self.net = nn.Linear(4, 3).to(device)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        self.n, self.losses = 0, []
    def weight(self):
        return min(1.0, self.n / 8)
    def penalty(self, out):
        return {penalty}
    def f(self, x, y):
        out = self.net(x)
        each = F.cross_entropy(out, y, reduction="none")
        hard = each > 1.2
        loss = each[hard].mean() if hard.any() else each.mean()
        weight = self.weight()
        loss = loss + {weight}self.penalty(out)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.n += 1
        self.losses.append(loss.detach())
        return out.argmax(1).eq(y).float().mean()
args = (torch.randn(12, 4, device=device), torch.randint(0, 3, (12,), device=device))
f = Trainer().f
"""


@pytest.mark.parametrize("weight", ["", "weight * "])
@pytest.mark.parametrize("penalty", ["out.pow(2).mean()", "F.softmax(out / 4.0, 1).pow(2).mean() * 16.0"])
def test_gradients_are_not_zeroed_behind_their_backward_pass(fixed: Fixed, penalty: str, weight: str) -> None:
    # GIVEN a step that ends with counting and keeping, and whose loss asks the device and helpers WHEN rewritten
    found = fixed(WITH_HELPERS.format(penalty=penalty, weight=weight))
    # THEN these alone go behind the launch: the step of the optimizer stays with its zeros
    assert found.complete, found
    lines = lines_of(found)
    behind = lines[next(n for n, line in enumerate(lines) if line.startswith("def after_")) :]
    assert not [line for line in behind if "self.opt." in line], found
