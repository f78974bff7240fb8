"""Dictionaries and lists of tensors that a step makes anew are written where they lie, in it or behind its launch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.rewritten import rewritten

HEAD = """
net = nn.Linear(4, 2).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
args = (torch.randn(3, 4, device=device),)
"""
PENALTY = """
class Learner:
    def __init__(self):
        self.star, self.n = {BEGIN}, 0
    def step(self, x):
        pull = sum((p - {OLD}).pow(2).sum() for n, p in {PAIRS})
        loss = net(x).pow(2).mean() + 0.5 * pull
        opt.zero_grad()
        loss.backward()
        opt.step()
        self.n += 1
        if self.n % 2 == 0:
            {SET}
        return loss.detach()
f = Learner().step
"""
COPIES = "{n: p.detach().clone() for n, p in net.named_parameters()}"
LISTED = "[p.detach().clone() for p in net.parameters()]"
TABLE = {"BEGIN": COPIES, "OLD": "self.star[n]", "PAIRS": "net.named_parameters()"}
LIST = {"BEGIN": LISTED, "OLD": "self.star[n]", "PAIRS": "enumerate(net.parameters())"}
EACH = "for n, p in net.named_parameters(): self.star[n] = p.detach().clone()"
OF_THE_FILE = """
star = {n: p.detach().clone() for n, p in net.named_parameters()}
def f(x):
    global star
    loss = net(x).pow(2).mean() + sum((p - star[n]).pow(2).sum() for n, p in net.named_parameters())
    opt.zero_grad()
    loss.backward()
    opt.step()
    star = {n: 0.5 * star[n] + 0.5 * p.detach() for n, p in net.named_parameters()}
    return loss.detach()
"""


def program(parts: dict[str, str], line: str) -> str:
    text = PENALTY
    for name, part in {**parts, "SET": line}.items():
        text = text.replace(f"{{{name}}}", part)
    return HEAD + text


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("text", "line"),
    [
        (program(TABLE, f"self.star = {COPIES}"), "self.star[key].copy_(new"),
        (program(TABLE, f"self.star.update({COPIES})"), "self.star[key].copy_(new"),
        (program(TABLE, EACH), "self.star[n].copy_(p.detach().clone()"),
        (program(LIST, f"self.star = {LISTED}"), "held.copy_(new"),
        (HEAD + OF_THE_FILE, "star[key].copy_(new"),
    ],
    ids=["a dictionary", "update", "each entry", "a list", "of the file"],
)
def test_a_table_that_a_step_makes_anew_is_written_where_it_lies(text: str, line: str, tmp_path: Path) -> None:
    # GIVEN a step that reads a table of tensors, and in some steps puts another one there WHEN fixed
    fix = rewritten(text, tmp_path)
    # THEN the graph goes on with the first, which the new numbers are written into
    assert fix.complete, fix
    assert line in fix.diff


@pytest.mark.sweep
@pytest.mark.parametrize(
    "text",
    [
        program(TABLE, f"self.before = self.star; self.star = {COPIES}"),
        program({**TABLE, "BEGIN": COPIES.replace(".clone()", "")}, f"self.star = {COPIES}"),
    ],
    ids=["kept by a name", "begins as the weights"],
)
def test_a_table_that_something_else_has_is_not_written(text: str, tmp_path: Path) -> None:
    # GIVEN such a table, which another name keeps, or whose tensors are the weights themselves WHEN fixed
    fix = rewritten(text, tmp_path)
    # THEN nothing is written into it
    assert "copy_(new" not in fix.diff
