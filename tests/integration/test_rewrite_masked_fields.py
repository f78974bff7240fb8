"""A network of one's own that is given the rows of a mask, put back there: it computes all rows in one graph."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.rewritten import rewritten

FIELD = """
class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.sigma, self.color = nn.Linear(16, 1), nn.Linear(19, 3)
    def forward(self, x, d):
        h = self.trunk(x)
        sigma = F.softplus(self.sigma(h)).squeeze(-1)
        rgb = torch.sigmoid(self.color(torch.cat([h, d], dim=-1)))
        return rgb, {sigma}
torch.manual_seed(0)
field = Field().to(device)
def f(o, d):
    t = torch.linspace(0.1, 1.0, 6, device=device)
    pts = o[:, None] + d[:, None] * t[None, :, None]
    occ = pts.norm(dim=-1) < 1.2
    dirs = d[:, None].expand_as(pts)
    rgb = torch.zeros_like(pts)
    sigma = torch.zeros(pts.shape[:-1], device=device)
    out, dens = field(pts[occ], dirs[occ])
    rgb[occ] = out
    sigma[occ] = dens
    return (rgb * sigma[..., None]).sum(1)
args = (torch.randn(16, 3).to(device) * 0.5, torch.randn(16, 3).to(device))
"""


@pytest.mark.sweep
def test_a_network_with_two_results_computes_all_rows(tmp_path: Path) -> None:
    # GIVEN points along rays of which a mask picks some for a network that joins and squeezes along the last dimension
    # WHEN fixed
    fix = rewritten(FIELD.format(sigma="sigma"), tmp_path)
    # THEN all are computed in one graph, and put back by the same mask
    assert fix.complete, fix
    assert "sigma.copy_(torch.where(occ, dens, sigma))" in fix.diff


@pytest.mark.sweep
def test_a_network_that_weighs_its_rows_by_one_another_does_not(tmp_path: Path) -> None:
    # GIVEN the same with a softmax over the rows that the mask picks, which has the last dimension by then WHEN fixed
    fix = rewritten(FIELD.format(sigma="sigma.softmax(-1)"), tmp_path)
    # THEN no diff computes others beside them
    assert "field(torch.where" not in fix.diff
    assert not fix.complete
