"""Rows that a mask picks are computed with all others only where the code shows that these change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import lines_of, rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

HEAD = "args = (torch.randn(8, 3, device=device),)\n"
# What depends on the rows beside it, under a mask that no trial marks anything with.
TOGETHER = {
    "rows less their mean": "bad = x.abs().amax(1) > 50\n    x[bad] = x[bad] - x[bad].mean(0)",
    "a sum up to each": "bad = x > 100\n    x[bad] = x[bad].cumsum(0)",
    "sorted": "bad = x > 100\n    x[bad] = torch.sort(x[bad]).values",
    "shares": "bad = x[:, 0] > 100\n    x[bad] = x[bad].softmax(0)",
    "two rows as one": (
        "bad = x[:, 0] > 100\n    h = x[bad].view(-1, 6)\n    h = h.softmax(-1)\n    x[bad] = h.view(-1, 3)"
    ),
}
# What does not.
APART = {
    "each element": "bad = x > 0\n    x[bad] = x[bad].exp() * 2",
    "each row in another shape": (
        "bad = x[:, 0] > 0\n    h = x[bad].view(-1, 3, 1)\n    x[bad] = (h.exp() - 2).view(-1, 3)"
    ),
    "each row": "bad = x[:, 0] > 0\n    x[bad] = F.normalize(x[bad], dim=-1)",
}
EXPERTS = """
E = 2
gate = nn.Linear(3, E).to(device)
experts = nn.ModuleList(nn.Linear(3, 3) for _ in range(E)).to(device)
with torch.no_grad():
    gate.bias.copy_(torch.tensor([100.0, -100.0]))  # all rows choose the first
args = (torch.randn(6, 3, device=device),)
@torch.no_grad()
def f(x):
    w, sel = gate(x).softmax(-1).topk(1, -1)
    out = torch.zeros_like(x)
    for e in range(E):
        tok, k = torch.where(sel == e)
        h = x[tok]
        CENTRED
        out.index_add_(0, tok, experts[e](h) * w[tok, k, None])
    return out
"""
UNIQUE = """
emb = nn.Embedding(10, 3).to(device)
args = (torch.arange(6, device=device),)
@torch.no_grad()
def f(ids):
    u, back = torch.unique(ids, return_inverse=True)
    h = emb(u)
    h = MADE
    return h[back]
"""
ACTIVE = """
net, experts = nn.Linear(4, 3).to(device), nn.ModuleList(nn.Linear(4, 4) for _ in range(3)).to(device)
args = (torch.randn(12, 4, device=device),)
@torch.no_grad()
def f(x):
    p = net(x).softmax(-1)
    top = p.argmax(-1)
    out = torch.zeros_like(x)
    kept = []
    for e in torch.unique(top).tolist():
        sel = top == e
        DONE
    return out
"""


# Picks whose rows are read where another mask, or none, has picked them; no trial's mask leaves anything out.
ELSEWHERE = {
    "in the next round of a loop": """
    while len(x) > 2:
        total = total + x[0].sum()
        x = x[1:][x[1:].abs().amax(1) <= 50]
    return total""",
    "in the head of a loop": """
    for i in range(3):
        for row in x.unbind():
            total = total + row.sum()
        keep = x[:, 0] < 50 + i
        x = x[keep]
    return total""",
    "behind a branch": """
    keep = x[:, 0] < 100
    if x.dim() == 2:
        x = x[keep]
        total = total + x.sum()
    return total + x.mean()""",
}


@pytest.mark.parametrize("title", ELSEWHERE)
def test_rows_that_are_read_where_they_may_be_others_stay_picked(title: str, tmp_path: Path) -> None:
    # GIVEN such a pick WHEN rewritten THEN it is not taken out: the trial's masks leave nothing out, others do
    fix = rewritten(f"{HEAD}def f(x):\n    x, total = x.clone(), x.new_zeros(()){ELSEWHERE[title]}\n", tmp_path)
    lines = fix.diff.splitlines()
    kept = {line[1:].strip() for line in lines if line.startswith("+")}  # as it is, behind a launch
    gone = [line for line in lines if line.startswith("-") and ("[keep]" in line or "<= 50]" in line)]
    gone = [line for line in gone if line[1:].strip() not in kept]
    assert not gone, fix


@pytest.mark.parametrize("title", TOGETHER)
def test_rows_that_depend_on_one_another_are_not_computed_with_others(title: str, tmp_path: Path) -> None:
    # GIVEN rows under a mask that nothing in a trial is marked by WHEN rewritten THEN not with all rows in their place
    fix = rewritten(f"{HEAD}def f(x):\n    x = x.clone()\n    {TOGETHER[title]}\n    return x\n", tmp_path)
    assert not fix.complete
    assert not any("torch.where" in line for line in lines_of(fix))


@pytest.mark.parametrize("title", APART)
def test_rows_that_do_not_are(title: str, tmp_path: Path) -> None:
    fix = rewritten(f"{HEAD}def f(x):\n    x = x.clone()\n    {APART[title]}\n    return x\n", tmp_path)
    assert fix.complete, str(fix)


def test_experts_that_centre_their_rows_are_not_given_all(tmp_path: Path) -> None:
    # GIVEN experts of which the first gets all rows in every trial WHEN these depend on one another THEN they are not
    # given all: the lines stay as they are, behind the launch
    found = rewritten(EXPERTS.replace("CENTRED", "h = h - h.mean(0)"), tmp_path)
    assert found.is_little
    assert "tok, k = torch.where(sel == e)" in str(found.diff)
    # WHEN each is computed for itself THEN it is
    assert rewritten(EXPERTS.replace("CENTRED", "h = h * 2"), tmp_path).complete


def test_each_id_is_looked_up_in_place_of_each_kind_of_them(tmp_path: Path) -> None:
    # GIVEN ids of which none comes twice in a trial WHEN rows of kinds depend on one another THEN not rewritten
    assert not rewritten(UNIQUE.replace("MADE", "h - h.mean(0)"), tmp_path).complete
    # WHEN each is computed for itself THEN all ids are looked up
    fix = rewritten(UNIQUE.replace("MADE", "F.normalize(h, dim=-1)"), tmp_path)
    assert fix.complete
    assert lines_of(fix)[0].startswith("u, back = ids.flatten(), torch.arange(ids.numel()")


def test_a_loop_over_those_chosen_goes_through_all_where_others_change_nothing(tmp_path: Path) -> None:
    # GIVEN a loop over the experts that rows have chosen WHEN it only writes their rows THEN it goes through all
    put = "out[sel] = experts[e](x[sel]) * p[sel, e].unsqueeze(-1)"
    fix = rewritten(ACTIVE.replace("DONE", put), tmp_path)
    assert fix.complete, str(fix)
    assert lines_of(fix)[0] == "for e in range(p.shape[-1]):"
    # WHEN it keeps something of each round THEN not
    fix = rewritten(ACTIVE.replace("DONE", "kept.append(x[sel].sum())").replace("return out", "return kept"), tmp_path)
    assert not any("range(" in line for line in lines_of(fix))


# Loops that all values of a trial go through, where a round for one that is not there would change something.
THERE = {
    "what another round has left": "sel = top == e\n        w = w * 0.5\n        out[sel] = x[sel] * w",
    "all that is not marked": "sel = top == e\n        sel = ~sel\n        out[sel] = x[sel] * 2",
    "another number": "sel = top == e\n        e = 0\n        other = top == e\n        out[other] = x[other] * 2",
}


@pytest.mark.parametrize("title", THERE)
def test_a_loop_goes_only_through_what_is_there_where_another_round_would_count(title: str, tmp_path: Path) -> None:
    # GIVEN such a loop WHEN rewritten THEN it does not go through all
    text = ACTIVE.replace("randn(12, 4", "randn(64, 4").replace("kept = []", "w = torch.ones((), device=x.device)")
    fix = rewritten(text.replace("sel = top == e\n        DONE", THERE[title]), tmp_path)
    assert not any("range(" in line for line in lines_of(fix)), fix


@pytest.mark.parametrize(
    ("made", "count"),
    [("p.topk(2, 0).indices", "p.shape[0]"), ("p.topk(2, dim=0).indices", "p.shape[0]"),
     ("p.argmax(0, True)", "p.shape[0]"), ("p.topk(2).indices", "p.shape[-1]"), ("p.argmax()", "")],
)  # fmt: skip
def test_all_that_an_index_can_be_is_told_by_its_dimension(made: str, count: str, tmp_path: Path) -> None:
    # GIVEN indices along one dimension, or in all of a tensor WHEN those that are there are gone through
    text = f"""
args = (torch.randn(5, 7, device=device),)
@torch.no_grad()
def f(p):
    top = {made}
    out = torch.zeros(top.shape, device=p.device)
    for e in torch.unique(top).tolist():
        sel = top == e
        out[sel] = e + 1.0
    return out
"""
    fix = rewritten(text, tmp_path)
    # THEN all along that dimension are
    assert [line for line in lines_of(fix) if "range(" in line] == [f"for e in range({count}):"] * bool(count), fix


def test_a_method_of_rows_is_not_taken_for_a_layer_of_its_name(tmp_path: Path) -> None:
    # GIVEN rows that depend on one another by a method, and a layer that has the method's name
    text = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(3)
net = Net().to(device)
args = (torch.randn(8, 3, device=device),)
@torch.no_grad()
def f(x):
    x = net.norm(x) + x
    bad = x.abs().amax(1) > 50
    h = x[bad]
    x[bad] = MADE
    return x
"""
    # WHEN rewritten THEN not with all others
    fix = rewritten(text.replace("MADE", "h / h.norm()"), tmp_path)
    assert not any("torch.where" in line for line in lines_of(fix)), fix
    # WHEN it is the layer THEN it is
    fix = rewritten(text.replace("MADE", "net.norm(h)"), tmp_path)
    assert any("torch.where" in line for line in lines_of(fix)), fix
