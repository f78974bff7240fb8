"""Cells that are loops over loaders, as notebooks have them: a round is cut out, as a function of the cell."""

from __future__ import annotations

import re

import pytest
import torch

from tests.integration.shells import Session

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator's numbers")

MADE = """import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
device = x.device
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
loader = DataLoader(TensorDataset(torch.randn(24, 4), torch.randint(0, 3, (24,))), batch_size=8)
"""
LOOP = """losses = []
for epoch in range(2):
    for rows, labels in loader:
        rows, labels = rows.to(device), labels.to(device)
        opt.zero_grad()
        loss = F.cross_entropy(model(rows), labels)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    print(epoch, sum(losses) / len(losses))
"""


def test_a_round_of_a_cells_loop_is_cut_out_in_front_of_it(session: Session) -> None:
    # GIVEN a model of another cell, and names that a run of the cell before has left WHEN the loop is to be fixed
    session.good(MADE)
    session.good(LOOP)
    session.good(f"%%paramgraph diagnose --fix -o why\n{LOOP}")
    # THEN one round is a function ahead of the cell's lines, tried in a graph, and the optimizer's cell is mended
    fix = session["why"].fix
    assert fix.alone == "cell_round", session["why"]
    wrote = [line[1:] for line in fix.diff.splitlines() if re.match(r"\+(\w| )", line)]
    assert "def cell_round(rows, labels):  # one round of a loop of cell" in wrote
    assert "        loss = cell_round(rows, labels)" in wrote
    assert "opt = torch.optim.Adam(model.parameters(), lr=1e-2, capturable=True)" in wrote
    assert any("with rounds from graphs, gives the original's results and state" in line for line in fix.verified)
    # AND written so, the cell prints what it printed
    rewritten = apply(LOOP, fix.diff)
    session.good(MADE)
    eager = [float(number) for number in session.good(LOOP).out.split()]
    session.good(MADE.replace("lr=1e-2", "lr=1e-2, capturable=True"))
    rounds = [float(number) for number in session.good(rewritten).out.split()]
    assert rounds == pytest.approx(eager, abs=1e-5)
    assert len(eager) == 4


WITH_A_HELPER = """def train_step(rows, labels):
    opt.zero_grad()
    loss = F.cross_entropy(model(rows), labels)
    loss.backward()
    opt.step()
    return loss.item()

for rows, labels in loader:
    running += train_step(rows.to(device), labels.to(device))
print(running)
"""
TEST = """model.eval()
with torch.no_grad():
    correct = 0
    for rows, labels in loader:
        logits = model(rows.to(device))
        correct += (logits.argmax(1).cpu() == labels).sum().item()
correct / 24
"""


@pytest.mark.parametrize(("cell", "line"), [(WITH_A_HELPER, "running += running_now.item()"), (TEST, "correct_now")])
def test_a_cells_own_functions_and_copies_stand_ahead_of_its_rounds(session: Session, cell: str, line: str) -> None:
    # GIVEN a cell that begins with a function, and one whose rounds copy to the device WHEN they are to be fixed
    session.good(MADE + "running = 0.0")
    session.good(f"%%paramgraph diagnose --fix -o why\n{cell}")
    # THEN a round is cut out, which is given what is on the device
    fix = session["why"].fix
    assert fix.alone == "cell_round", session["why"]
    assert "+def cell_round(rows_there" in fix.diff
    assert line in fix.diff
    assert any("from graphs, gives the original's results and state" in each for each in fix.verified)


def apply(text: str, diff: str) -> str:
    """The cell with those hunks of a diff that are its own."""
    parts = re.split(r"^--- ", diff, flags=re.M)
    own = next(part for part in parts if "+def cell_round" in part).split("\n", 2)[2]
    lines, at, new = ["", *text.splitlines()], 0, list[str]()  # the magic has the first
    for hunk in re.split(r"^(?=@@ )", own, flags=re.M)[1:]:
        head, *rows = hunk.rstrip("\n").split("\n")
        begin = int(head.split()[1].lstrip("-").split(",")[0]) - 1
        new += lines[at:begin]
        new += [row[1:] for row in rows if row[:1] in ("+", " ", "")]
        at = begin + sum(row[:1] in ("-", " ", "") for row in rows)
    return "\n".join([*new, *lines[at:]]) + "\n"
