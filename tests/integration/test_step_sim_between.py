"""What a training loop does between whole steps: gradients that it keeps, hooks that it registers."""

# mypy: disable-error-code="no-untyped-call, index, union-attr, no-any-return, unused-ignore"
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import paramgraph_kit as pgk
from paramgraph_kit.step import kept
from tests.integration.test_step_sim_use import alike, made


def dropped(weight: nn.Parameter) -> None:
    weight.grad = None


def replaced(weight: nn.Parameter) -> None:
    weight.grad = weight.grad.clone()


def refilled(weight: nn.Parameter) -> None:
    weight.grad = torch.ones_like(weight)


@pytest.mark.parametrize("leave", [dropped, replaced, refilled])
@pytest.mark.parametrize("native", [True, False])
def test_a_gradient_that_its_parameter_has_no_more_is_its_holder_s(
    leave: Callable[[nn.Parameter], None], native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a step that runs from a graph, and a loop that keeps a gradient and gives its parameter another, or none
    if not native:
        monkeypatch.setattr(kept, "checks", lambda: None)
    step, ours, theirs = made()
    held: list[tuple[torch.Tensor, torch.Tensor]] = []
    # WHEN it goes on
    for number in range(16):
        alike(step, ours, theirs, number)
        if number % 4 == 3:
            mine, other = ours.model[0].weight, theirs.model[0].weight
            held.append((mine.grad, mine.grad.clone()))
            leave(mine)
            leave(other)
    # THEN what is kept stays as it was, and the step is launched
    assert all(torch.equal(tensor, then) for tensor, then in held)
    assert pgk.report(step).rows[0].launches >= 8


def test_a_gradient_that_nobody_has_any_more_is_written_over_again() -> None:
    # GIVEN a step with a graph WHEN a parameter is given another gradient, and nobody keeps the first
    step, ours, theirs = made()
    for number in range(4):
        alike(step, ours, theirs, number)
    weight, twin = ours.model[0].weight, theirs.model[0].weight
    address = weight.grad.data_ptr()
    replaced(weight)
    replaced(twin)
    alike(step, ours, theirs, 4)
    # THEN the next launch writes to where it lay
    assert weight.grad.data_ptr() == address


@pytest.fixture(params=[register_optimizer_step_pre_hook, register_optimizer_step_post_hook], ids=["before", "after"])
def registering(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Registers a hook of every optimizer, and takes away what is left of them."""
    handles: list[Any] = []

    def register(hook: Any) -> Any:
        handles.append(request.param(hook))
        return handles[-1]

    yield register
    for handle in handles:
        handle.remove()


def test_hooks_of_every_optimizer_count(registering: Callable[..., Any]) -> None:
    # GIVEN a step that runs from a graph
    step, ours, theirs = made()

    def halves(optimizer: Any, *_: Any) -> None:
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(0.5)

    # WHEN a hook of all optimizers comes, and goes THEN each step runs it while it is there
    handle = None
    for number in range(15):
        if number == 5:
            handle = registering(halves)
        if number == 10:
            handle.remove()
        alike(step, ours, theirs, number)
    assert pgk.report(step).reasons == ()
    assert pgk.report(step).rows[0].launches >= 9
