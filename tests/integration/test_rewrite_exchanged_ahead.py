"""Tensors that lines ahead of a launch exchange for others, in a method that a constructor calls as well."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

TEXT = """\
class System:
    def __init__(self):
        torch.manual_seed(0)
        self.pos, self.vel = torch.randn(8, 3, device=device), torch.randn(8, 3, device=device)
        self.steps, self.near, self.energies = 0, torch.arange(8, device=device), []
        self.last = self.near
        self.build()
    def build(self):
        {sets}
    def forces(self):
        near = self.pos[self.near]
        return torch.zeros_like(self.pos).index_add(0, self.near, -near), (near**2).sum()
    def step(self):
        self.pos += 0.1 * self.vel
        if self.steps % {every} == {every} - 1:
            self.build()
        force, energy = self.forces()
        self.vel += 0.1 * force
        self.energies.append(energy.item())
        self.steps += 1
        return energy
f = System().step
args = ()
"""
ANEW = "self.last, self.near = self.near, torch.where(self.pos[:, 0] > -1e3)[0]"
IN_PLACE = "self.near.copy_(torch.argsort(self.pos[:, 0]))"


@pytest.mark.parametrize("every", [5, pytest.param(20, marks=pytest.mark.sweep)])
def test_a_method_that_a_constructor_calls_too_exchanges_what_a_graph_reads(every: int, tmp_path: Path) -> None:
    # GIVEN neighbours that a method builds anew in each fifth step, or in each twentieth, which no trial comes to,
    # and which are the same as before as long as nothing is far away WHEN
    fix = rewritten(TEXT.format(sets=ANEW, every=every), tmp_path)
    # THEN no graph of all is shown, which would read the first ones
    assert not fix.complete, fix


def test_what_it_writes_in_place_is_read_by_the_graph(tmp_path: Path) -> None:
    # GIVEN the same, which writes where they lie WHEN
    fix = rewritten(TEXT.format(sets=IN_PLACE, every=5), tmp_path)
    # THEN the graph of the step is whole
    assert fix.complete, fix
