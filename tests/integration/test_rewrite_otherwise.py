"""What is said where no rewrite is safe: parts that the device bounds, and layers that chance drops."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest
import torch

from paramgraph_kit.rewrite.advised.host.from_host import decided
from paramgraph_kit.rewrite.advised.otherwise import at_least
from paramgraph_kit.rewrite.expressions.picks.picked import sliced
from paramgraph_kit.rewrite.source.edits import Source
from paramgraph_kit.rewrite.source.place import Place
from paramgraph_kit.trace.model import Failure
from tests.integration.rewritten import Fixed, lines_of, rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

LENGTHS = """
emb = nn.Embedding(9, 4).to(device)
args = (torch.randint(0, 9, (2, 6), device=device), torch.tensor([3, 6], device=device))
def f(ids, lengths):
    BODY
"""
SAID = {
    "n = lengths.max().item()\n    return emb(ids[:, :n]).mean(1)": "leave the cut out, `n = ids.shape[1]`",
    "some = lengths.argsort()\n    n = lengths.max().item()\n    return emb(ids[some, :n]).mean(1)": (
        "leave the cut out, `n = ids.shape[1]`"
    ),
    "rows = [emb(ids[b, :n]).median(0)[0] for b, n in enumerate(lengths.tolist())]\n    return torch.stack(rows)": (
        "`at = torch.arange(ids[b].shape[0], device=ids[b].device)` and `inside = (at < n)` mark what `ids[b, :n]` is"
    ),
}
DROPPED = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.p = nn.Linear(3, 3), 0.3
    def forward(self, x):
        if self.training and random.random() < self.p:
            return x
        return x + self.fc(x)
net = nn.Sequential(Block(), Block()).to(device)
args = (torch.randn(2, 3, device=device),)
def f(x):
    return net(x)
"""
HEADS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 2), nn.Linear(4, 2)
    def forward(self, x):
        if x.sum() > 0:
            return self.a(x)
        return self.b(x)
net, args = Net().to(device), (torch.randn(3, 4, device=device),)
@torch.no_grad()
def f(x):
    return net(x)
"""

AND_BACK = """\
args = (torch.randn(3, 4, device=device),)
def f(x):
    mean = torch.tensor(x.mean().item()).to(x.device)
    return x - mean
"""


@pytest.mark.parametrize("body", SAID)
def test_a_part_that_the_device_bounds_is_told_with_what_marks_it(body: str, tmp_path: Path) -> None:
    # GIVEN a part of a tensor up to a length of the device WHEN told THEN what marks it, in the user's names
    fix = rewritten(LENGTHS.replace("BODY", body), tmp_path)
    assert any(SAID[body] in line for line in fix.instead), fix


def test_a_layer_that_chance_drops_is_told_to_be_chosen_before_each_launch(tmp_path: Path) -> None:
    # GIVEN layers of which each draws for itself WHEN told THEN all draw before the launch, and the branch is gone
    fix = rewritten(DROPPED, tmp_path)
    told = "here, without the branch of line "
    assert any(told in line and "m.left_out.fill_(bool(m.training and " in line for line in fix.instead), fix


def test_a_layer_that_asks_the_device_takes_both_ways(tmp_path: Path) -> None:
    # GIVEN a module that asks the device which of its layers to take WHEN rewritten THEN it is whole
    fix = rewritten(HEADS, tmp_path)
    assert fix.complete, fix
    assert lines_of(fix) == ["return torch.where(x.sum() > 0, self.a(x), self.b(x))"]


def test_a_number_that_becomes_a_tensor_again_is_the_tensor(tmp_path: Path) -> None:
    # GIVEN a number that goes to the host and back WHEN rewritten THEN torch does not warn
    fix = rewritten(AND_BACK, tmp_path)
    assert fix.complete, fix
    assert lines_of(fix) == ["mean = x.mean().detach().to(x.device)"]


NUMBERS = """
def f(q, low):
    a = self.alpha()
    y = self.scale * q.clamp(self.low, self.high)
    return a * y
def h(batch):
    rows, rewards = torch.cat(batch.state), torch.cat(batch.reward)
    there = torch.cat([s for s in batch.next_state if s is not None])
def g(model, batches):
    for batch in batches:
        out = model(**{k: v.to(device) for k, v in batch.items()})
def k(x, n):
    for each in range(n):
        b = self.alpha(each)
        x = b * x
def m(x):
    c = self.alpha()
    n = int(4 * c)
    c = 1 - n / 4
    return c * x
"""
PICKED = "cat read a tensor that was another one in the next call"
SAID_OF_NUMBERS = {
    "a line before it": (
        5,
        "scalar-frozen",
        "mul got 0.5 in one call and 0.25 in the next",
        "`a_in.fill_(a)`, with line 3 (`a = self.alpha()`) done before that, and here `a_in` for `a`",
    ),
    "the last of two lines before it": (
        20,
        "scalar-frozen",
        "mul got 0.5 in one call and 0.25 in the next",
        "`c_in.fill_(c)`, with line 19 (`c = 1 - n / 4`) and what it comes of done before that, and here `c_in`",
    ),
    "a round": (
        15,
        "scalar-frozen",
        "mul got 0.5 in one call and 0.25 in the next",
        "make one round of the loop of line 13 what is captured: the host gives `b` other values",
    ),
    "attributes": (
        4,
        "scalar-frozen",
        "clamp got 0 in one call and -7.5 in the next",
        "before each launch `low_in.fill_(self.low)`, `high_in.fill_(self.high)`, and here `low_in` for `self.low`",
    ),
    "tensors that are drawn": (
        7,
        "host-random",
        PICKED,
        "before each launch, and there `rows_in.copy_(torch.cat(batch.state))`, `rewards_in.copy_(torch.cat(",
    ),
    "tensors that are drawn, or None": (
        8,
        "host-random",
        PICKED,
        "[s if s is not None else torch.zeros_like(next(row for row in batch.next_state if row is not None)) for s in",
    ),
    "tensors of a batch": (11, "copy-to-gpu", "", "into tensors of the device that stay, one for each of `batch`"),
}


@pytest.mark.parametrize("name", SAID_OF_NUMBERS)
def test_numbers_that_the_host_moves_have_tensors_and_tensors_of_a_batch_are_told_by_its_name(
    name: str, tmp_path: Path
) -> None:
    # GIVEN a number that is another one in each step, or a batch that is moved part by part
    line, code, message, wanted = SAID_OF_NUMBERS[name]
    file = tmp_path / "program.py"
    file.write_text(NUMBERS)
    source = Source.of(str(file))
    assert source is not None
    statement = source.statement(line)
    assert statement is not None
    # WHEN it is told what to write THEN the number is in a tensor, not one of a graph for each value
    held = {"scale": 2.0, "low": 0.0, "high": 1.0}
    place = Place(source, statement, Failure(code, "", message), "device", attributes=held, plain=["a", "b", "c"])
    assert wanted in at_least(place), at_least(place)
    assert "scale_in" not in at_least(place)


TOLD = {
    "torch.repeat_interleave(x, y.abs().long(), dim=0)": "`rows = y.abs().long().sum()` before the launch",
    "torch.repeat_interleave(x, y.long(), 0)": "`rows = y.long().sum()` before the launch",
    "x.repeat_interleave(y.long(), 0)": "`rows = y.long().sum()` before the launch",
    "torch.repeat_interleave(y.long())": "`rows = y.long().sum()` before the launch",
    "x.exp()[:y.long().max()].amax(0)": "mask it with `torch.arange(x.exp().shape[0], device=device) < y.long().max()`",
    "torch.linalg.lstsq(x, y[:, None]).solution": "`torch.linalg.solve_triangular(r, q.mH @ y[:, None], upper=True)`",
    "torch.linalg.pinv(x)": "`q, r = torch.linalg.qr(x)` with `torch.linalg.solve_triangular(r, q.mH, upper=True)`",
}


@pytest.mark.parametrize("call", TOLD)
def test_what_a_size_or_a_rank_needs_is_told(fixed: Fixed, call: str) -> None:
    # GIVEN an operation with a size, a cut or a rank of the device's WHEN a fix is asked for THEN what to write is told
    given = "args = (torch.randn(5, 3, device=device), torch.rand(5, device=device) * 3)\n"
    fix = fixed(f"{given}def f(x, y):\n    x = x * 2\n    return {call}\n")
    assert TOLD[call] in str(fix), fix


@pytest.mark.parametrize("call", ["x[:, :n].mean(0)", "x[:n].sum(1)", "x[:, :n, m:].sum(1)"])
def test_a_part_that_is_not_what_is_reduced_is_no_sum_with_zeros(call: str) -> None:
    # GIVEN a cut along another dimension, or two cuts WHEN read THEN it is left
    node = ast.parse(call, mode="eval").body
    assert isinstance(node, ast.Call)
    assert sliced(node) is None


def test_a_matrix_of_full_rank_is_solved_by_its_qr_factors() -> None:
    # GIVEN what is told for a tall matrix WHEN it is computed THEN it is what lstsq and pinv give
    x, y = torch.randn(8, 3, dtype=torch.float64), torch.randn(8, 2, dtype=torch.float64)
    q, r = torch.linalg.qr(x)
    solved = torch.linalg.solve_triangular(r, q.mH @ y, upper=True)
    torch.testing.assert_close(solved, torch.linalg.lstsq(x, y).solution)
    torch.testing.assert_close(torch.linalg.solve_triangular(r, q.mH, upper=True), torch.linalg.pinv(x))


def test_a_loss_of_a_part_keeps_nan_of_the_rest_out_of_the_gradients(fixed: Fixed) -> None:
    # GIVEN a loss of what a mask picks, in a step that trains WHEN a fix is asked for
    given = "args = (torch.randn(5, 3, device=device), torch.randn(5, 3, device=device))\n"
    step = "    p, m = net(x), y > 0\n    loss = F.mse_loss(p[m], y[m]) + ((p[m] - y[m]) ** 2).sum()\n"
    step += "    loss = loss + (p[m] - y[m]).sum()\n"
    fix = fixed(
        f"net = nn.Linear(3, 3).to(device)\n{given}def f(x, y):\n{step}    loss.backward()\n    return loss.detach()\n"
    )
    # THEN what is squared is zero where the mask does not hold, and what is only added up needs no zeros below
    kept, sum_of = "torch.where(m, p, 0)", "torch.where(m, p - y, 0).sum()"
    assert str(fix.diff).count(kept) == 2, fix
    assert sum_of in str(fix.diff), fix
    # and nan among what is left out is in no gradient
    p, y = torch.zeros(2, requires_grad=True), torch.tensor([1.0, torch.nan])
    m = y > 0
    loss = torch.where(m, (torch.where(m, p, 0) - torch.where(m, y, 0)) ** 2, 0).sum()
    assert torch.autograd.grad(loss, p)[0].tolist() == [-2.0, 0.0]


OF_NO_NUMBER = """\
def f(x):
    steps = random.randint(2, 5)
    tau = days() / 365
    bad = x <= (3 - x * math.exp(-tau)).clamp(min=0)
    for _ in range(steps):
        x = x * math.exp(-0.5 * tau) - math.pi * x
    return x.masked_fill(bad, 0)
"""


@pytest.mark.parametrize(
    ("line", "code", "message", "wrong"),
    [
        (5, "branch-frozen", "", "draws in each round"),
        (6, "scalar-frozen", "mul got 0.5 in one call and 0.25 in the next", "math.pi"),
        (6, "scalar-frozen", "mul got 0.5 in one call and 0.25 in the next", "`tau_in` for `tau`"),
        (7, "branch-frozen", "", "bad_in"),
    ],
    ids=["how many rounds there are", "a constant", "what the host makes of a number", "a mask of the device"],
)
def test_what_is_no_number_of_the_line_is_put_in_no_tensor(
    line: int, code: str, message: str, wrong: str, tmp_path: Path
) -> None:
    # GIVEN how many rounds a loop has, a constant, a number in what the host computes, and a mask of the device
    file = tmp_path / "program.py"
    file.write_text(OF_NO_NUMBER)
    source = Source.of(str(file))
    assert source is not None
    statement = source.statement(line)
    assert statement is not None
    place = Place(source, statement, Failure(code, "", message), "device", {"math": math}, plain=["tau", "steps"])
    # WHEN it is told what to write THEN none of them is filled before a launch, where a tensor would not do
    assert wrong not in f"{decided(place)} {at_least(place)}"
