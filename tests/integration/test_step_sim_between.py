"""What a training loop does between whole steps: gradients that it keeps, hooks that it registers."""

# mypy: disable-error-code="no-untyped-call, index, operator, union-attr, no-any-return, unused-ignore"
from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import paramgraph_kit as pgk
from paramgraph_kit.step import kept
from tests.integration import steps
from tests.integration.test_step_sim import equal
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


def packing() -> Any:
    """Saved tensors come back as half of what they were."""
    return torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x / 2)


@pytest.mark.parametrize(
    ("around", "words"),
    [(packing, "hooks for saved tensors are set around the step"), (torch.autograd.detect_anomaly, "anomaly")],
)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_who_looks_into_backward_passes_around_a_step_sees_them(around: Callable[[], Any], words: str) -> None:
    # GIVEN a step that runs from a graph WHEN somebody looks into its backward passes, for one call THEN that has none
    step, ours, theirs = made()
    for number in range(8):
        with around() if number == 5 else nullcontext():
            alike(step, ours, theirs, number)
    (reason,) = pgk.report(step).reasons
    assert reason.code == "unknown-state"
    assert words in reason.message
    assert pgk.report(step).rows[0].launches == 5


@pytest.mark.parametrize("every", [1, 2])
def test_gradients_that_graphs_share_are_each_step_s_own_while_somebody_holds_some(every: int) -> None:
    # GIVEN a step that is given batches of two sizes, whose graphs leave their gradients on the same memory
    ours, theirs = steps.PROGRAMS["sgd momentum"](), steps.PROGRAMS["sgd momentum"]()
    step = pgk.parameterize(ours.step, state=ours.state, verify="off")
    held: list[tuple[torch.Tensor, torch.Tensor]] = []
    # WHEN a loop keeps gradients between its steps THEN parameters have each step's own, and what is kept stays
    for number in range(20):
        rows = 6 if number % 3 else 3
        assert equal(step(*steps.batch(number, rows)), theirs.step(*steps.batch(number, rows)))
        assert equal(steps.values_of(ours), steps.values_of(theirs)), number
        if number % every == 0:
            gradient = ours.model[0].weight.grad
            held.append((gradient.view(-1), gradient.reshape(-1).clone()))
    assert all(torch.equal(tensor, then) for tensor, then in held)
    assert sum(row.executables for row in pgk.report(step).rows) == 2


class Squared(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x


def test_who_keeps_parametrized_weights_around_steps_gets_those() -> None:
    # GIVEN a step with a parametrized weight that runs from a graph
    model = nn.Linear(4, 4).to(pgk.device())
    nn.utils.parametrize.register_parametrization(model, "weight", Squared())
    step = pgk.parameterize(lambda x: model(x).detach(), state=model)
    x = torch.ones(2, 4, device=pgk.device())
    for _ in range(3):
        assert torch.equal(step(x), model(x))
    # WHEN its weights are kept, and what they are made of is written THEN each call has those that are kept
    with nn.utils.parametrize.cached():
        for _ in range(3):
            with torch.no_grad():
                model.parametrizations.weight.original.mul_(2)
            assert torch.equal(step(x), model(x))
    assert torch.equal(step(x), model(x))


def test_how_encoders_and_attention_choose_their_kernels_counts() -> None:
    # GIVEN an encoder in a step WHEN its fast path is off for some calls, or attention's kernels come in another order
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).to(pgk.device()).eval()
    step = pgk.parameterize(torch.no_grad()(lambda x: model(x)), state=model)
    backends = [torch.nn.attention.SDPBackend.MATH, torch.nn.attention.SDPBackend.FLASH_ATTENTION]
    for number in range(12):
        x = torch.randn(2, 3, 8).to(pgk.device())
        torch.backends.mha.set_fastpath_enabled(number % 3 != 1)
        order = torch.nn.attention.sdpa_kernel(backends, set_priority=True) if number % 3 == 2 else nullcontext()
        try:
            with order, torch.no_grad():
                assert equal(step(x), model(x)), number
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
    # THEN each way has a graph
    assert sum(row.executables for row in pgk.report(step).rows) == 3


@pytest.mark.parametrize("what", ["step", "sgd"])
def test_an_optimizer_of_torch_s_whose_step_is_replaced_is_heard(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a step that runs from a graph
    step, ours, theirs = made()
    owner: Any = torch.optim.SGD if what == "step" else sys.modules["torch.optim.sgd"]
    real = getattr(owner, what)
    for number in range(4):
        alike(step, ours, theirs, number)
    # WHEN a library replaces what the optimizer's class runs, or a function that this calls
    calls: list[int] = []

    def replaced(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, what, replaced)
    for number in range(4, 6):
        alike(step, ours, theirs, number)
    # THEN that is what runs, for both
    assert len(calls) == 4
