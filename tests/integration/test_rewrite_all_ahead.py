"""Masks behind dimensions that are taken whole, as where a lattice's walls bounce: one graph holds the assignment."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import lines_of, rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

WALLS = """
f_now = torch.rand(3, 4, 5, device=device)
g = torch.rand(3, 4, 5, device=device)
solid = torch.zeros(4, 5, dtype=torch.bool, device=device)
solid[1, 2] = True
solid[3, :2] = True
rows = torch.arange(4, device=device) == 2
opposite = torch.tensor([0, 2, 1], device=device)
args = (torch.rand(3, 4, 5, device=device),)
def f(x):
    f_now.mul_(0.9).add_(x)
    bounced = f_now[opposite]
    LINE
    return f_now.sum(0) + g.sum(0)
"""


@pytest.mark.parametrize(
    ("line", "written"),
    [
        ("f_now[:, solid] = bounced[:, solid]", "f_now.copy_(torch.where(solid, bounced, f_now))"),
        ("f_now[..., solid] = 0.5 * bounced[..., solid]", "f_now.copy_(torch.where(solid, 0.5 * bounced, f_now))"),
        ("g[:, rows] = bounced[:, rows] - 1", "g.copy_(torch.where(rows[..., None], bounced - 1, g))"),
        ("g[:, solid] *= 0.5", "g.copy_(torch.where(solid, g * 0.5, g))"),
    ],
)
def test_a_mask_behind_dimensions_taken_whole_becomes_a_choice(line: str, written: str, tmp_path: Path) -> None:
    # GIVEN a step that assigns through a mask of the last dimensions, or of one in the middle
    # WHEN it is rewritten THEN one graph holds it, and gives eager's numbers over ten other steps
    fix = rewritten(WALLS.replace("LINE", line), tmp_path)
    assert fix.complete, fix
    assert written in lines_of(fix), fix


@pytest.mark.parametrize(
    "line",
    [
        "f_now[:, solid] = bounced[:, solid].mean(1, keepdim=True)",
        "f_now[:, solid] = g[:, :, 0][:, :3]",
        "f_now[:, solid] = bounced[:, solid] * per_wall",
    ],
)
def test_what_is_computed_of_those_picked_together_stays(line: str, tmp_path: Path) -> None:
    # GIVEN values that are one for each that is picked, or of all of these WHEN it is rewritten
    text = WALLS.replace("LINE", line) + "per_wall = torch.arange(3.0, device=device)\n"
    fix = rewritten(text, tmp_path)
    # THEN no choice among all of them is written for it
    assert "torch.where(solid" not in fix.diff, fix
