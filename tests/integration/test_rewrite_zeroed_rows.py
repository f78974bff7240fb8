"""Fixes of training steps that leave rows out: what such a row holds, inf or nan, never comes back by a gradient."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.rewritten import lines_of, rewritten

HEAD = """\
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=1e-2)
args = (torch.randn(8, 4, device=device), torch.randint(0, 3, (8,), device=device), torch.rand(8, device=device))
def feed(i):
    g = torch.Generator().manual_seed(i)
    x, y, hard = torch.randn(8, 4, generator=g), torch.randint(0, 3, (8,), generator=g), torch.rand(8, generator=g)
    if i % 3 == 2:
        x[0], hard[0] = BAD, 0.9
    return x.to(device), y.to(device), hard.to(device)
def f(x, y, hard):
    keep = hard <= 0.7
    opt.zero_grad()
"""
END = "    loss.backward()\n    opt.step()\n    return loss.detach()\n"
LOSSES = {
    "rows with names": (
        "    xs, ys = x[keep], y[keep]\n    loss = F.cross_entropy(net(xs), ys)\n",
        "xs, ys = torch.where(keep[..., None], x, 0), y",
    ),
    "rows within the call": (
        "    loss = F.cross_entropy(net(x[keep]), y[keep])\n",
        "net(torch.where(keep[..., None], x, 0))",
    ),
}


@pytest.mark.parametrize("bad", ["float('inf')", "float('nan')"])
@pytest.mark.parametrize(("lines", "written"), LOSSES.values(), ids=LOSSES)
def test_a_row_that_is_left_out_gives_the_weights_no_nan(lines: str, written: str, bad: str, tmp_path: Path) -> None:
    # GIVEN a step that drops rows by a mask, and calls whose dropped row has no number
    fix = rewritten(HEAD.replace("BAD", bad) + lines + END, tmp_path)
    # WHEN it is rewritten for all rows THEN the row is zero ahead of the weights; ten captured steps equal eager's
    assert fix.complete, fix
    assert any(written in line for line in lines_of(fix)), fix
