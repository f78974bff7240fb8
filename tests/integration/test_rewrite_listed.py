"""Places that a condition lists become the condition as it was then, whatever it is made of."""

from __future__ import annotations

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import Fixed, Program, lines_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

LISTED = {
    "of numbers": (
        """
args = (torch.tensor([0, 2, 1, 0, 1, 1], device=device), torch.randn(6, 3, device=device))
@torch.no_grad()
def f(counts, x):
    keep = counts.nonzero().squeeze(1)
    return x[keep].sum(0)
""",
        "keep = counts != 0",
    ),
    "of a mask that changes later, in no trial": (
        """
args = (torch.randn(6, device=device), torch.randn(6, 3, device=device))
@torch.no_grad()
def f(s, x):
    mask = s > 0
    keep = torch.where(mask)[0]
    mask &= s < 100
    y = x.clone()
    y[keep] = 0
    return y
""",
        "keep = mask.clone()",
    ),
    "of tokens that an expert has room for": (
        """
E, D = 3, 4
gate = nn.Linear(D, E).to(device)
experts = nn.ModuleList(nn.Linear(D, D) for _ in range(E)).to(device)
args = (torch.randn(12, D, device=device),)
dropped = []
@torch.no_grad()
def f(x):
    weight, chosen = gate(x).softmax(-1).max(-1)
    out, n_dropped = torch.zeros_like(x), 0
    for e in range(E):
        idx = (chosen == e).nonzero(as_tuple=True)[0]
        if idx.numel() > 3:
            best = weight[idx].topk(3).indices
            n_dropped += idx.numel() - 3
            idx = idx[best]
        if idx.numel() == 0:
            continue
        y = experts[e](x[idx])
        out[idx] = weight[idx, None] * y
    dropped.append(n_dropped)
    return out
""",
        "idx = idx & torch.zeros_like(idx).index_fill(0, best, True)",
    ),
    "of rows of an expert, counted in a tensor that is asked": (
        """
E, D = 3, 4
gate, load = nn.Linear(D, E).to(device), torch.zeros(3, device=device)
experts = nn.ModuleList(nn.Linear(D, D) for _ in range(E)).to(device)
args = (torch.randn(8, D, device=device),)
@torch.no_grad()
def f(x):
    w, idx = gate(x).softmax(-1).topk(2, dim=-1)
    out = torch.zeros_like(x)
    for e in range(E):
        rows, slot = (idx == e).nonzero(as_tuple=True)
        load[e] += rows.numel()
        if rows.numel() == 0:
            continue
        out.index_add_(0, rows, experts[e](x[rows]) * w[rows, slot, None])
    return out, load.std() / load.mean()
""",
        "load[e] += (idx == e).sum()",
    ),
    "of the first ones": (
        """
args = (torch.randn(8, device=device), torch.randn(8, 3, device=device))
@torch.no_grad()
def f(s, x):
    at = torch.where(s > 0)[0]
    at = at[:2]
    return x[at].sum(0)
""",
        "at = at & (at.cumsum(0) <= 2)",
    ),
    "of rows that a helper puts anew, with as many columns as rows": (
        """
class Env:
    def __init__(self):
        self.start = torch.linspace(-0.05, 0.05, 16, device=device).view(4, 4)
        self.state, self.age = self.start.clone(), torch.arange(4, device=device)
    def reset(self, at):
        self.state[at] = self.start[at] * 2
        self.age[at] = 0
    def step(self, x):
        self.state += x
        self.age += 1
        done = self.age > 5
        at = done.nonzero(as_tuple=False).squeeze(-1)
        if len(at) > 0:
            self.reset(at)
        return self.state.clone()
env, args = Env(), (torch.randn(4, 4, device=device),)
def f(x):
    return env.step(x)
""",
        "self.state.copy_(torch.where(at[..., None], self.start * 2, self.state))",
    ),
    "of a flag that the helper clears first, in no trial": (
        """
start, state = torch.rand(4, 4, device=device), torch.rand(4, 4, device=device)
flag, age = torch.zeros(4, dtype=torch.long, device=device), torch.zeros(4, device=device)
def reset(at):
    flag[at] = 0
    state[at] = start[at]
    age[at] = 0
def f(x):
    at = torch.where(flag)[0]
    if at.numel():
        reset(at)
    age.add_(1)
    flag.copy_((age > 3).long())
    return state.add_(x).sum(1)
args = (torch.randn(4, 4, device=device),)
""",
        "at = flag != 0",
    ),
}


@pytest.mark.parametrize("title", LISTED)
def test_a_list_of_places_becomes_what_it_was_made_of(fixed: Fixed, title: str) -> None:
    # GIVEN places of what is no mask, or is changed WHEN rewritten THEN the mask is that of then
    text, line = LISTED[title]
    found = fixed(text)
    assert found.complete, found
    assert line in lines_of(found), found


def test_places_in_a_list_are_none_of_all(fixed: Fixed) -> None:
    # GIVEN a list that is cut to places of its own, of which each trial has one WHEN rewritten
    found = fixed("""
args = (torch.rand(8, device=device) - 0.1, torch.randn(8, 3, device=device))
@torch.no_grad()
def f(s, x):
    at = torch.where(s > -9)[0]
    best = s.argmax(keepdim=True)
    at = at[best]
    return x[at].sum(0)
""")
    # THEN no mask of all has them
    assert not any("index_fill" in line for line in lines_of(found)), found


def test_what_is_called_max_and_is_the_user_s_reduces_on_the_host(fixed: Fixed) -> None:
    # GIVEN a list of numbers that a function of the user's reduces, as the built-in one of its name does in the trial
    found = fixed("""
args = (torch.randn(6, 4, device=device),)
def max(numbers):
    return sorted(numbers)[-1]
@torch.no_grad()
def f(x):
    sums = []
    for row in x:
        sums.append(row.sum().item())
    return x * max(sums)
""")
    # WHEN rewritten THEN it is not torch's
    assert not any("torch.stack(sums).max()" in line for line in lines_of(found)), found


def test_a_place_in_a_loop_that_the_device_counts_is_told_something(fixed: Fixed) -> None:
    # GIVEN / WHEN / THEN
    found = fixed("""
table = torch.arange(12.0, device=device)
args = (torch.rand(4, device=device),)
@torch.no_grad()
def f(x):
    i = 0
    while i < 10:
        x = x * 1.1 + table[i]
        i += 1
        if (x.sum() > 20).item():
            break
    return x, table[i]
""")
    assert not found.complete
    assert not any(line.rstrip().endswith("rewritten") for line in found.instead), found


@pytest.mark.words
def test_rows_that_a_helper_puts_for_several_callers_are_told_to_be_chosen_by_the_mask(fixed: Fixed) -> None:
    # GIVEN a helper that puts rows at the places that it is given, which others give as numbers WHEN rewritten
    found = fixed("""
start, state = torch.rand(4, 4, device=device), torch.rand(4, 4, device=device)
def reset(at):
    state[at] = start[at]
reset(torch.arange(4, device=device))
def f(x):
    state.add_(x)
    at = (state.sum(1) > 3).nonzero().flatten()
    reset(at)
    return state.clone()
args = (torch.randn(4, 4, device=device),)
""")
    # THEN it is told what stands for its lines, and nothing of sums
    assert "`x[at] = y[at]` is `x.copy_(torch.where(at[:, None], y, x))`" in str(found)


def test_what_is_drawn_only_where_a_row_is_listed_is_left_there(fixed: Fixed) -> None:
    # GIVEN rows that are put anew, by what is drawn where there are any WHEN a fix is asked for
    fix = fixed("""
args = (torch.randn(6, 4, device=device),)
def f(x):
    out = x * 2
    at = torch.nonzero(x[:, 0] < 0)
    if at.numel() > 0:
        out[at[:, 0]] = torch.rand(4, device=x.device)
    return out
""")
    # THEN it is not drawn in all steps, where later numbers would be others
    assert not fix.complete, fix


KEPT = """
score, marks = torch.randn(4, device=device), (torch.rand(6, 4, device=device) > 0.6).float()
marks[:, 1] = 0
args = (score, marks)
def f(score, marks):
    there = [c for c in range(marks.shape[1]) if TEST]
    return READ
"""


@pytest.mark.parametrize(
    ("test", "read", "line"),
    [
        ("marks[:, c].sum() > 0", "1 - score.exp()[there].mean()", "torch.stack([marks[:, c].sum() > 0 for"),
        ("marks[:, c].sum()", "score[there].sum() / max(len(there), 1)", "torch.stack([marks[:, c].sum() != 0 for"),
        ("marks[:, c].any()", "score[there].sum() * 2", "torch.stack([marks[:, c].any() for"),
    ],
)
def test_numbers_that_the_device_leaves_in_a_list_are_a_mask(fixed: Fixed, test: str, read: str, line: str) -> None:
    # GIVEN numbers of which the device tells which are left, by which values are picked WHEN rewritten
    found = fixed(KEPT.replace("TEST", test).replace("READ", read))
    # THEN all of them are asked, and none is left out
    assert found.complete, found
    assert any(line in each for each in lines_of(found)), found


def test_numbers_of_a_list_that_a_loop_goes_through_are_no_mask(fixed: Fixed) -> None:
    # GIVEN the same list, read otherwise than by what picks WHEN a fix is asked for THEN it stays a list
    found = fixed(
        KEPT.replace("TEST", "marks[:, c].any()").replace("READ", "sum(score[c] for c in there) + len(there)")
    )
    assert not any("torch.stack([marks" in each for each in lines_of(found)), found


def test_a_pick_by_what_the_device_leaves_is_told_to_be_by_a_mask(program: Program) -> None:
    # GIVEN such a pick WHEN it is diagnosed and nothing rewritten
    names = program(KEPT.replace("TEST", "marks[:, c].any()").replace("READ", "score[there].mean()"))
    found = " ".join(str(pgk.diagnose(names["f"], *names["args"])).split())
    # THEN its words are those of the mask
    assert "`(torch.where(there, score, 0).sum() / there.sum())` for `score[there].mean()`" in found
