"""Rewriting a step whose object holds tensors of the host beside its device's, of one shape."""

from __future__ import annotations

from typing import Any

import torch

import paramgraph_kit as pgk


class Calibration:
    """Bins of the host, and weights of as many."""

    def __init__(self) -> None:
        device = pgk.device()
        self.scale = torch.tensor([0.5, 1.0, 2.0, 4.0], device=device)
        self.edges = torch.linspace(0, 1, 4)
        self.precise = torch.tensor([0.5, 1.0, 2.0, 4.0], device=device, dtype=torch.float64)
        self.total = 0.0

    def step(self, x: torch.Tensor) -> torch.Tensor:
        inside = [(x > edge.item()).float().mean() for edge in self.edges]
        self.total += inside[0].item()
        return (torch.stack(inside) * self.scale).sum()


def test_tensors_of_the_host_and_of_the_device_are_not_compared_with_one_another(sim: Any) -> None:
    # GIVEN a host's tensor with the shape of one on the device, and one of another type WHEN rewritten
    step = Calibration().step
    found = pgk.diagnose(step, torch.rand(8, device=pgk.device()), fix=True)
    # THEN it is, and looking for a way did not end with an error
    assert found.fix is not None
    assert found.fix.diff, found
    assert "ended with" not in str(found)
