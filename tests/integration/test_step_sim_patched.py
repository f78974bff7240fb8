"""Functions of torch's that are replaced between steps: the new one runs, and the old one again once it is back."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paramgraph_kit as pgk

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")


def doubled(real: Any) -> Any:
    return lambda *args, **named: torch.mul(real(*args, **named), 2)


def nothing(real: Any) -> Any:
    return lambda *args, **named: None


def of_three_times(real: Any) -> Any:
    return lambda tensor, *args, **named: real(tensor * 3, *args, **named)


def doubled_each(real: Any) -> Any:
    return lambda *args, **named: tuple(x if x is None else x * 2 for x in real(*args, **named))


REPLACED: dict[str, tuple[Any, str, Any]] = {
    "a method of tensors": (Tensor, "backward", of_three_times),
    "what that calls": (torch.autograd, "backward", of_three_times),
    "a function that the step names": (torch.autograd, "grad", doubled_each),
    "one that this calls": (torch.autograd, "_make_grads", doubled_each),
    "a method that C has": (Tensor, "relu", doubled),
    "of parameters alone": (nn.Parameter, "mul", doubled),
    "an operator": (Tensor, "__sub__", doubled),
    "the call of modules": (nn.Module, "__call__", doubled),
    "what that calls itself": (nn.Module, "_call_impl", doubled),
    "a method of optimizers": (torch.optim.Optimizer, "zero_grad", nothing),
    "what clips": (sys.modules["torch.nn.utils.clip_grad"], "_clip_grads_with_norm_", nothing),
    "of torch's own, in an optimizer": (torch, "_foreach_addcdiv_", nothing),
}


def trained(parameterized: bool) -> tuple[Any, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).to(pgk.device())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, capturable=True)
    parameters = list(model.parameters())

    def step(x: Tensor) -> Any:
        optimizer.zero_grad()
        loss = (model(x).relu() - parameters[3].mul(0.5)).square().mean()
        loss.backward(inputs=parameters[:2], retain_graph=True)
        for each, gradient in zip(parameters[2:], torch.autograd.grad(loss, parameters[2:]), strict=True):
            each.grad = gradient
        nn.utils.clip_grad_norm_(parameters, 0.1)
        optimizer.step()
        return loss.detach()

    return pgk.parameterize(step, state=(model, optimizer)) if parameterized else step, model


@pytest.mark.parametrize("first", [False, True], ids=["later", "at first"])
@pytest.mark.parametrize("which", REPLACED)
def test_a_function_of_torchs_that_is_replaced_is_heard(
    which: str, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a whole step and the same code, and a function of torch's that it runs, replaced now or later
    owner, name, make = REPLACED[which]
    calls = [trained(parameterized) for parameterized in (True, False)]
    for n in range(12):
        # WHEN it is replaced, and later put back
        if (n in (0, 9) and first) or (n == 5 and not first):
            monkeypatch.setattr(owner, name, make(getattr(owner, name)), raising=False)
        if (n == 5 and first) or (n == 9 and not first):
            monkeypatch.undo()
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(n)).to(pgk.device())
        # THEN each call is what eager code computes
        (step, model), (plain, same) = calls
        assert torch.equal(step(x), plain(x)), n
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), same.parameters(), strict=True)), n
    # AND there are launches of both, and nothing is refused
    report = pgk.report(calls[0][0])
    assert report.rows
    assert sum(row.launches for row in report.rows) >= 6
    assert report.reasons == ()


def test_a_module_of_torchs_that_is_written_elsewhere_keeps_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a captured step
    step, _ = trained(True)
    x = torch.ones(3, 4).to(pgk.device())
    for _ in range(3):
        step(x)
    # WHEN somebody writes other names of torch's modules before each call, as imports do
    for n in range(6):
        monkeypatch.setattr(torch.autograd, "somebody_counts", n, raising=False)
        step(x)
    # THEN it is launched all the same
    (row,) = pgk.report(step).rows
    assert row.launches == 7
