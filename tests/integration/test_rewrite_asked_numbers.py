"""A number that was read and asked is a tensor in the branch, too: what ``math`` makes of it is torch's there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import lines_of, rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

THERMOSTAT = """
class System:
    pass
system = System()
system.v = torch.zeros(6, 3, device=device)
args = (torch.randn(6, 3, device=device),)
def feed(i):
    force = torch.randn(6, 3, generator=torch.Generator().manual_seed(i))
    return (force.to(device) * (i % 3),)
@torch.no_grad()
def f(force):
    system.v = system.v + 0.01 * force
    heat = (system.v ** 2).sum().item() / 18
    if heat > 1e-4:
        system.v *= math.sqrt(1e-4 / heat)
    return system.v * 2
"""


def test_what_python_computes_of_an_asked_number_is_computed_on_the_device(tmp_path: Path) -> None:
    # GIVEN velocities that are scaled where their heat, which is read, is too much WHEN the step is rewritten
    fix = rewritten(THERMOSTAT, tmp_path)
    # THEN the root is the device's, and ten replays are as eager is
    assert fix.complete, fix
    assert "system.v *= torch.where(heat > 1e-4, torch.sqrt(1e-4 / heat), 1)" in lines_of(fix)
