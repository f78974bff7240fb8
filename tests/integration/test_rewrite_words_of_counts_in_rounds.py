"""Counts that each round of a loop keeps for itself: no line before a launch has them at hand, the device counts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device")
_ZERO = 'torch.zeros((), dtype=torch.float64, device="sim")'


class _Corrected(torch.optim.Optimizer):
    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"] = 0
                state["step"] += 1
                bias = 1 - 0.9 ** state["step"]
                by = (p.grad.abs().sqrt() / math.sqrt(bias)).add_(1.0)
                p.data.addcdiv_(p.grad, by, value=-0.1 / bias)


class _Rectified(torch.optim.Optimizer):
    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state["step"] = 0
            state["step"] += 1
            rate = 0.1 if state["step"] > 100 else 0.01 * state["step"]
            p.data.sub_(p.grad * rate)


class _Trainer:
    def __init__(self, kind: type[_Corrected | _Rectified]) -> None:
        self.w = torch.ones(3).to(pgk.device()).requires_grad_()
        self.opt = kind([self.w])

    def train(self, x: torch.Tensor) -> torch.Tensor:
        loss = (x * self.w).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        self.opt.step()
        self.opt.zero_grad()
        return loss.detach()


class _Smoothed:
    def __init__(self) -> None:
        self.w = torch.zeros(3).to(pgk.device())
        self.n = 0

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        bias = 1 - 0.9**self.n
        for w in self.w.unbind():
            w.add_(x.sum() / math.sqrt(bias))
        return self.w


class _Counted(_Smoothed):
    def __init__(self) -> None:
        super().__init__()
        self.state = [{"step": torch.zeros(()).to(pgk.device())} for _ in range(2)]

    def step(self, x: torch.Tensor) -> torch.Tensor:
        for state in self.state:
            state["step"] += 1
            self.w.add_(x / torch.sqrt(1 - 0.9 ** state["step"]))
        return self.w


class _Bounded(_Smoothed):
    def __init__(self) -> None:
        super().__init__()
        self.state = [{"step": 0}, {"step": 7}]

    def step(self, x: torch.Tensor) -> torch.Tensor:
        for state in self.state:
            state["step"] += 1
            rate = min(0.01 * state["step"], 1.0)
            self.w.add_(x * rate)
        return self.w


def _told(function: Any) -> str:
    return " ".join(str(pgk.diagnose(function, torch.ones(3).to(pgk.device()))).split())


def test_a_count_of_each_parameter_is_a_tensor_with_torch_for_math() -> None:
    # GIVEN an optimizer of the user's own, which counts in each parameter's state and computes with that by `math`
    # WHEN its step is diagnosed
    found = _told(_Trainer(_Corrected).train)

    # THEN that count is a tensor, which no line ahead of a launch fills, and no function of `math` is given one
    assert f'line 26 begins it, `state["step"] = {_ZERO}`' in found
    assert '`by = (p.grad.abs().sqrt() / torch.sqrt(bias)).add_(1.0)` once `state["step"]` is a tensor' in found
    assert '`p.data.addcdiv_(p.grad * (-0.1 / bias), by)` once `state["step"]` is a tensor' in found
    assert "fill_(" not in found


def test_what_asks_for_such_a_count_goes_behind_the_launch_with_its_optimizer() -> None:
    # GIVEN one that asks how often each parameter was stepped
    # WHEN its step is diagnosed
    found = _told(_Trainer(_Rectified).train)

    # THEN the whole of it is behind the launch, where gradients keep their memory
    assert "goes behind the launch with line 55, `self.opt.step()`" in found
    assert "behind it `self.opt.zero_grad(set_to_none=False)` for line 56" in found
    assert "state[" not in found.partition("fill_(")[2]


def test_a_number_within_math_is_filled_with_all_of_it() -> None:
    # GIVEN a step whose rounds compute with the root of one number of its own count, by `math`
    # WHEN it is diagnosed
    found = _told(_Smoothed().step)

    # THEN the tensor has the root, as `math.sqrt` would ask a tensor for its value
    assert "bias_in.fill_(math.sqrt(1 - 0.9**self.n))`, here `bias_in` for `math.sqrt(bias)`" in found


def test_a_count_on_the_device_is_none() -> None:
    # GIVEN a step whose rounds count on the device
    # WHEN it is diagnosed
    # THEN nothing is told
    assert "no problems" in _told(_Counted().step)


def test_a_number_of_one_round_has_an_element_of_its_own() -> None:
    # GIVEN a step whose rounds each bound a number of a count of their own
    # WHEN it is diagnosed
    found = _told(_Bounded().step)

    # THEN no single tensor is filled with what only a round has
    assert "fill_(" not in found
    assert "has its own `rate`" in found
    assert "`rate_in[k] = rate` in round `k`" in found
