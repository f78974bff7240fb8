"""Rows that a mask keeps and that are then picked by their places: zeros in between would take these places."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import rewritten, run
from tests.programs.running import differences, eager

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")
TEXT = """
kinds = torch.arange(3).repeat(4).to(device)
args = (torch.randn(12, 4, device=device),)
def f(z):
    labels = kinds
    protos = []
    for c in range(3):
        members = z[labels == c]
        protos.append({}.mean(0))
    return torch.stack(protos)
"""
FIRST = "members = z[(~(labels == c)).byte().argsort(stable=True)]"
LAST = "members = z[(labels == c).byte().argsort(stable=True)]"


@pytest.mark.parametrize(
    ("picked", "line"),
    [
        ("members[:2]", FIRST),
        ("members[1:4]", FIRST),
        ("members[0:3:2]", FIRST),
        ("members[3][None]", FIRST),
        ("members[:2, 1:]", FIRST),
        ("members[-3:]", LAST),
        ("members[-3:-1]", LAST),
        ("members[-2][None]", LAST),
    ],
)
def test_those_that_are_kept_come_at_the_end_that_is_picked_from(tmp_path: Path, picked: str, line: str) -> None:
    # GIVEN a mask's rows of which some are picked by their places
    text = TEXT.format(picked)
    # WHEN the advice is asked THEN no zeros stand between them
    advice = str(rewritten(text, tmp_path))
    assert "zeros elsewhere" not in advice
    assert line in advice
    # AND the line that it gives has the same numbers, in another order of rows
    changed = text.replace("members = z[labels == c]", line)
    assert not differences(eager(run(text, tmp_path), "f"), eager(run(changed, tmp_path), "f"), set())


@pytest.mark.parametrize("picked", ["members[1:]", "members[:-1]", "members[::2]", "members[1:-1]"])
def test_up_to_where_they_end_is_not_advised(tmp_path: Path, picked: str) -> None:
    # GIVEN rows up to the last of those that are kept, which is where the others begin
    advice = str(rewritten(TEXT.format(picked), tmp_path))
    # THEN neither order nor zeros are advised
    assert "argsort" not in advice
    assert "zeros elsewhere" not in advice


@pytest.mark.parametrize("picked", ["members[:, 1:]", "members[members > 0]"])
def test_columns_and_values_of_them_are_no_places(tmp_path: Path, picked: str) -> None:
    # GIVEN a column of all that are kept, and those of another mask THEN no order is needed
    assert "argsort" not in str(rewritten(TEXT.format(picked), tmp_path))


LISTED = {
    "asked for before any is found, and filled": (
        """
    picked = []
    for _ in range(3):
        d = x.sum(1)
        if picked:
            d = d - (x @ x[picked].T).max(1).values
            d[picked] = -9.0
        picked.append(d.argmax().item())
    return torch.tensor(picked, dtype=torch.long, device=x.device)
""",
        ["d[torch.stack(picked)] = torch.full((), -9.0, dtype=d.dtype, device=d.device)", "return torch.stack(picked)"],
    ),
    "followed back through tables": (
        """
    back = [(x @ x.T).roll(i).argmax(0) for i in range(3)]
    path = [int(x.sum(1).argmax())]
    for table in reversed(back):
        path.append(int(table[path[-1]]))
    return torch.as_tensor(path[::-1]).to(x.device)
""",
        ["path.append(table[path[-1].reshape(1)][0])", "return torch.stack(path[::-1]).to(x.device)"],
    ),
}


@pytest.mark.parametrize("name", LISTED)
def test_places_in_a_list_stay_on_the_device(tmp_path: Path, name: str) -> None:
    # GIVEN places that are found one after the other, kept in a list and picked by
    text, lines = LISTED[name]
    # WHEN a fix is asked for THEN the list keeps tensors, and all of it is one graph
    fix = rewritten(f"args = (torch.randn(6, 4, device=device),)\ndef f(x):{text}", tmp_path)
    assert fix.complete, str(fix)
    assert all(line in fix.diff for line in lines), fix.diff


@pytest.mark.parametrize("use", ["4 in picked", "sum(picked)", "[x[i] for i in picked]"])
def test_a_list_whose_numbers_the_host_uses_is_left(tmp_path: Path, use: str) -> None:
    # GIVEN such a list of which numbers are asked, too
    text = f"    picked = [0]\n    picked.append(x.sum(1).argmax().item())\n    return x[picked], {use}\n"
    # WHEN / THEN the rule leaves it: what such a number does with a tensor nobody knows
    fix = rewritten(f"args = (torch.randn(6, 4, device=device),)\ndef f(x):\n{text}", tmp_path)
    assert "x[torch.stack(picked)]" not in fix.diff


TAGGED = """
head, totals = nn.Linear(4, 3).to(device), {"right": 0}
opt = torch.optim.SGD(head.parameters(), lr=0.1)
args = (torch.randn(2, 5, 4, device=device), torch.randint(0, 3, (2, 5), device=device))
def f(x, tags):
    logits = head(x)
    mask = x[..., 0] > -0.5
    active = logits[mask]
    gold = tags[mask]
    loss = F.cross_entropy(active, gold)
    opt.zero_grad()
    loss.backward()
    opt.step()
    totals["right"] += (active.argmax(1) == gold).sum().item()
    return loss.detach()
"""


def test_rows_of_a_loss_are_told_to_be_left_out_by_their_labels(tmp_path: Path) -> None:
    # GIVEN scores and labels that a mask of two dimensions picks, also for a count behind the launch
    advice = str(rewritten(TAGGED, tmp_path))
    # WHEN it is told how to keep all THEN the lines that are told give the same numbers
    lines = "active = logits.flatten(0, -2)", "gold = torch.where(mask, tags, -100).flatten()"
    assert all(line in advice for line in lines), advice
    changed = TAGGED.replace("active = logits[mask]", lines[0]).replace("gold = tags[mask]", lines[1])
    assert not differences(eager(run(TAGGED, tmp_path), "f"), eager(run(changed, tmp_path), "f"), set())
