"""Masks of several dimensions, also those that were made as wide as what they pick from: detection's losses."""

from __future__ import annotations

import pytest
import torch

from tests.integration.rewritten import Fixed

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

BOXES = """
body = nn.Linear(6, 10 * 7).to(device)
def f(x, boxes, labels):
    out = body(x).view(len(x), 10, 7)
    found, scores = out[..., :4], out[..., 4:]
    pos = labels > 0
    {more}
    near = {near}
    wanted = {wanted}
    box_loss = F.smooth_l1_loss(near, wanted, reduction="{way}")
    neg = scores[..., 0] > 0
    wide, other = pos.unsqueeze(2).expand_as(scores), neg.unsqueeze(2).expand_as(scores)
    picked = scores[(wide + other).gt(0)].view(-1, 3)
    given = labels[(pos + neg).gt(0)]
    loss = F.cross_entropy(picked, given, reduction="{way}")
    return box_loss, loss
def feed(i):
    g = torch.Generator().manual_seed(i)
    labels = torch.randint(0, 3, (2, 10), generator=g)
    labels[:, 0] = 1
    return tuple(t.to(device) for t in (torch.randn(2, 6, generator=g), torch.randn(2, 10, 4, generator=g), labels))
args = feed(0)
"""
AS = "mask = pos.unsqueeze(pos.dim()).expand_as(found)"
WIDE = {"more": AS, "near": "found[mask].view(-1, 4)", "wanted": "boxes[mask].view(-1, 4)", "way": "sum"}
CASES = {
    "as wide as what is picked": WIDE,
    "a mean of rows": {"more": "pass", "near": "found[pos]", "wanted": "boxes[pos]", "way": "mean"},
    "widened by an index": WIDE | {"more": "mask = pos[:, :, None].expand(-1, -1, 4)", "way": "mean"},
}


@pytest.mark.parametrize("parts", CASES.values(), ids=CASES.keys())
def test_rows_of_a_mask_of_two_dimensions_are_left_out(parts: dict[str, str], fixed: Fixed) -> None:
    # GIVEN losses of what masks of boxes pick WHEN rewritten
    found = fixed(BOXES.format(**parts))
    # THEN all of it is in the graph: every box is computed, and the others add nothing
    assert found.complete, str(found)
    assert "after_f" not in found.diff
    assert "torch.where(pos.flatten(), F.smooth_l1_loss(near, wanted" in found.diff


@pytest.mark.parametrize(
    "parts", [WIDE | {"more": AS + "; pos = labels > 1"}, WIDE | {"more": AS.replace("pos.dim()", "0")}]
)
def test_a_mask_that_is_no_row_of_what_it_picks_is_not_narrowed(parts: dict[str, str], fixed: Fixed) -> None:
    # GIVEN a mask that was widened before its rows got other values, and one that was widened in front
    text = BOXES.format(**parts)
    if ".unsqueeze(0)" in text:
        text = text.replace("pos.unsqueeze(0).expand_as(found)", "pos.unsqueeze(0).expand(2, 2, 10)")
        text = text.replace("found[mask].view(-1, 4)", "found.movedim(-1, 1)[:, :2][mask].view(-1, 4)")
        text = text.replace("boxes[mask].view(-1, 4)", "boxes.movedim(-1, 1)[:, :2][mask].view(-1, 4)")
        text = text.replace("labels[:, 0] = 1", "labels[:] = 1")
    # WHEN rewritten THEN that line is as it was
    assert "near = found\n" not in fixed(text).diff
