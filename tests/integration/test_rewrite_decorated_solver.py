"""A solver whose methods are decorated, and whose network counts its calls: one round of it is what a graph holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.doctor.restore.host_state import HostState
from paramgraph_kit.rewrite.source.reach import of_classes


class _Field(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.nfe = 0
        self.w: torch.Tensor
        self.register_buffer("w", torch.randn(6, 6))

    def forward(self, t: Any, y: torch.Tensor) -> torch.Tensor:
        self.nfe += 1
        return torch.tanh(y @ self.w + torch.sin(torch.full_like(y, t)))


class _Solver:
    def __init__(self, func: torch.nn.Module) -> None:
        self.func = func
        self.accepted = self.rejected = 0

    def trial(self, t: Any, y: torch.Tensor, h: Any) -> tuple[torch.Tensor, torch.Tensor]:
        k1 = self.func(t, y)
        k2 = self.func(t + h, y + h * k1)
        return y + h * (k1 + k2) / 2, ((k2 - k1) * h).pow(2).mean().sqrt()

    @torch.no_grad()
    def integrate(self, y: torch.Tensor, times: list[float]) -> torch.Tensor:
        out = [y]
        t, h = times[0], 0.1
        for target in times[1:]:
            while t < target - 1e-9:
                h = min(h, target - t)
                y_new, off = self.trial(t, y, h)
                err = float(off.item())
                if err <= 1.0:
                    t, y = t + h, y_new
                    self.accepted += 1
                else:
                    self.rejected += 1
                h = h * min(5.0, max(0.2, 0.9 * max(err, 1e-8) ** -0.5))
            out.append(y)
        return torch.stack(out)


def _solver() -> _Solver:
    torch.manual_seed(0)
    return _Solver(_Field().to(pgk.device()))


def test_what_a_decorator_of_torch_makes_of_a_method_is_none_of_the_users() -> None:
    # GIVEN what a solver's method reaches, and its class beside it
    state = HostState(_solver().integrate, (_Solver,), {})

    # WHEN the functions of its classes are asked for
    found = of_classes(state)

    # THEN they are of the program's file
    assert {each.__code__.co_filename for each in found} <= {__file__}, found


@pytest.mark.sweep
def test_what_a_round_can_be_is_told_with_its_numbers_in_tensors() -> None:
    # GIVEN an adaptive solver with two counters of its own, and one of its network's
    y = torch.randn(4, 6).to(pgk.device())

    # WHEN it is diagnosed
    told = str(pgk.diagnose(_solver().integrate, y, [0.0, 0.3], limit_s=4.0))

    # THEN one round is what can be captured, no graph is kept for each time, and nothing ends ahead of the loop
    assert "integrate_round(self, h, t, y)" in told, told
    assert "`torch.empty_like(y).copy_(t)` for `torch.full_like(y, t)`" in told, told
    assert "graphs[times" not in told, told
    assert "end what is captured before" not in told, told
    assert "_in.fill_(y" not in told, told


@pytest.mark.sweep
def test_its_round_is_rewritten_with_what_the_network_counts() -> None:
    # GIVEN the same
    y = torch.randn(4, 6).to(pgk.device())

    # WHEN it is rewritten
    fix = pgk.diagnose(_solver().integrate, y, [0.0, 0.3], fix=True).fix

    # THEN one round is a graph, with what it counts behind each launch
    assert fix is not None
    assert fix.alone == "integrate_round", fix
    assert "self.nfe += 1" in fix.diff, fix
