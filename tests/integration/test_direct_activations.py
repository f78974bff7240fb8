"""Activations of direct calls: given back after the backward, small ones left on a shelf."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paramgraph_kit as pgk
from paramgraph_kit.backend import fx
from paramgraph_kit.backend.direct import recipe
from paramgraph_kit.backend.direct.calls import DirectCall
from tests.integration import test_direct_calls
from tests.integration.test_direct_calls import DEVICE, is_direct, warmed

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
made = test_direct_calls.made


def test_activations_are_given_back_after_the_backward(made: list[DirectCall]) -> None:
    # GIVEN a direct step that saves 1 MiB and more
    compiled = warmed(lambda x: x.sin().cos().exp(), 512, 1024)
    x = torch.randn(512, 1024, device=DEVICE, requires_grad=True)
    assert is_direct(made[0])
    gc.collect()
    before = pgk.cuda.memory_allocated()

    # WHEN
    loss = compiled(x).sum()
    held = pgk.cuda.memory_allocated() - before
    loss.backward()
    x.grad = None

    # THEN only the loss is left, while its graph still lives
    assert held >= 2 << 20
    assert pgk.cuda.memory_allocated() - before <= 1024


def wide(x: Tensor) -> Tensor:
    """A function that saves enough small activations for a shelf."""
    for _ in range(4):
        x = x.sin() * x.cos() + x.exp().tanh()
    return x


def test_small_activations_go_as_one_shelf(made: list[DirectCall]) -> None:
    # GIVEN a direct step that saves many small activations
    compiled = warmed(wide, 4, 8)
    step = made[0]._step
    assert step is not None

    # WHEN
    x = torch.randn(4, 8, device=DEVICE, requires_grad=True)
    result = compiled(x)

    # THEN one shelf is saved in the place of tensors, and the gradients are eager's
    assert len(step.located) == 1
    assert sum(each is None for each in result.grad_fn.saved) >= 3
    assert result.grad_fn.shelf is not None
    result.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.autograd.grad(wide(x).sum(), x)[0])


@pytest.mark.parametrize("compile_", [pgk.compile, pgk.parameterize])
def test_what_the_caller_gets_lies_on_no_shelf_under_another_name(compile_: Any) -> None:
    # GIVEN a function that returns, detached or turned, what it also saves for its backward
    def function(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        hidden = x.exp() @ weight
        more = (hidden * hidden.sin()).cos()
        return (more @ weight).sin().sum(), hidden.detach(), hidden.detach().t(), more[1:].detach()

    fast = compile_(function)
    weight = torch.randn(8, 8, device=DEVICE, requires_grad=True)
    for _ in range(4):
        # WHEN it is launched
        x = torch.randn(4, 8, device=DEVICE)
        ours, theirs = fast(x, weight), function(x, weight)
        ours[0].backward()
        # THEN that lies in memory as eager's does, and keeps no more of it alive
        for a, b in zip(ours, theirs, strict=True):
            assert (a.storage_offset(), a.untyped_storage().nbytes()) == (
                b.storage_offset(),
                b.untyped_storage().nbytes(),
            )
            assert torch.equal(a, b)


def test_a_launch_that_cannot_take_the_shelf_gets_tensors(made: list[DirectCall]) -> None:
    # GIVEN a forward that has left activations on a shelf
    compiled = warmed(wide, 4, 8)
    step = made[0]._step
    assert step is not None
    x = torch.randn(4, 8, device=DEVICE, requires_grad=True)
    result = compiled(x)
    assert step.located

    # WHEN the backward's graph may not be launched
    step.backward.launcher.pause()
    result.sum().backward()

    # THEN it runs ungraphed on the same activations, and the next step goes on without a shelf
    assert x.grad is not None
    assert torch.equal(x.grad, torch.autograd.grad(wide(x).sum(), x)[0])
    assert not step.located
    x.grad = None
    compiled(x).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.autograd.grad(wide(x).sum(), x)[0])

    # AND once it may, with them again
    step.backward.launcher.resume()
    for _ in range(3):
        x.grad = None
        compiled(x).sum().backward()
    assert step.located
    assert x.grad is not None
    assert torch.equal(x.grad, torch.autograd.grad(wide(x).sum(), x)[0])


class Projecting(nn.Module):
    """Linear layers, whose weights are saved transposed and whose gradients are views of products, and a shelf."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32, bias=False), nn.Linear(32, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.up(x).sin().exp().tanh() @ self.down.weight.t()
        return y.view(-1, 2, 16)


def test_no_view_is_made_where_a_launch_can_make_it_or_wants_an_address(
    made: list[DirectCall], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a trained model, and whoever makes views is counted
    views: list[tuple[int, ...]] = []

    def counted(*args: Any) -> Tensor:
        views.append(args[1])
        found: Tensor = plain(*args)
        return found

    plain = recipe._reinterpret
    monkeypatch.setattr(recipe, "_reinterpret", counted)
    torch.manual_seed(0)
    model = Projecting().to(DEVICE)
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend="paramgraph")

    # WHEN it is trained
    for _ in range(6):
        x = torch.randn(4, 16, device=DEVICE)
        views.clear()
        for each, module in ((compiled, model), (eager, eager)):
            module.zero_grad()
            each(x).square().mean().backward()

        # THEN results and gradients are eager's and lie as eager's
        for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
            assert ours.grad is not None
            assert theirs.grad is not None
            assert torch.equal(ours.grad, theirs.grad)
            assert ours.grad.is_contiguous()
            assert ours.grad.untyped_storage().nbytes() == theirs.grad.untyped_storage().nbytes()

    # AND no step makes a view in Python any more
    assert is_direct(made[0])
    assert views == []


def test_a_backward_that_runs_ungraphed_gets_the_views_that_it_wants(made: list[DirectCall]) -> None:
    # GIVEN a trained function that saves a transposed argument
    def function(x: Tensor, w: Tensor) -> Tensor:
        return (x.t() @ x).sin() @ w.t()

    compiled = torch.compile(function, backend="paramgraph")
    x, w = (torch.randn(16, 16, device=DEVICE, requires_grad=True) for _ in range(2))
    for _ in range(4):
        compiled(x, w).sum().backward()
    step = made[0]._step
    assert step is not None

    # WHEN a forward is launched and its backward may be too, or may not
    for launched in (True, False):
        x, w = (torch.randn(16, 16, device=DEVICE, requires_grad=True) for _ in range(2))
        loss = compiled(x, w).square().mean()
        assert step.located
        assert step.located[0].looks
        if not launched:
            step.backward.launcher.pause()
        loss.backward()

        # THEN its gradients are eager's
        expected = torch.autograd.grad(function(x, w).square().mean(), (x, w))
        for each, right in zip((x, w), expected, strict=True):
            assert each.grad is not None
            assert torch.equal(each.grad, right)
    step.backward.launcher.resume()


def test_inputs_that_lie_otherwise_every_other_time_make_no_new_code(made: list[DirectCall]) -> None:
    # GIVEN a step that is launched for aligned inputs and for others
    compiled = warmed(wide, 4, 8)
    step = made[0]._step
    assert step is not None
    memory = torch.randn(64, device=DEVICE)
    for call in range(12):
        x = memory[call % 2 : call % 2 + 32].view(4, 8).detach().requires_grad_()
        compiled(x).sum().backward()

        # WHEN they take turns THEN gradients are eager's
        assert x.grad is not None
        assert torch.equal(x.grad, torch.autograd.grad(wide(x).sum(), x)[0])

        # AND each kind has its launches, made once
        if call == 7:
            known = dict(step._locating._known)
    assert len(known) == 2
    assert all(step._locating._known[key] is each for key, each in known.items())


def scaled(x: Tensor) -> Tensor:
    """A function that saves single numbers beside other small activations."""
    y = x * (x.sum() * 1e-3).exp()
    return wide(y).sin().exp()


def test_single_values_that_ungraphed_code_wants_on_the_host_go_on_the_shelf_too(
    made: list[DirectCall], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a backward that wants a saved number on the host where it is not captured, as attention's wants its seeds
    def seeds(module: torch.fx.GraphModule) -> frozenset[str]:
        names = {n.name for n in module.graph.find_nodes(op="placeholder") if not n.meta["val"].dim()}
        return frozenset(name for name in names if not name.startswith(("tangents", "primals")))

    monkeypatch.setattr(fx, "host_seeds", seeds)
    compiled = warmed(scaled, 4, 8)
    for _ in range(3):  # the first call gives it on the host, and is not captured
        compiled(torch.randn(4, 8, device=DEVICE, requires_grad=True)).sum().backward()
    step = made[0]._step
    assert step is not None
    assert step.backward.launcher.code.host_seeds

    # WHEN it is trained, and once while the forward, once while the backward may not be launched
    for paused in (None, None, step.forward, step.backward, None, None):
        x = torch.randn(4, 8, device=DEVICE, requires_grad=True)
        if paused is step.forward:
            paused.launcher.pause()
        result = compiled(x)
        if paused is step.backward:
            paused.launcher.pause()
        result.sum().backward()
        if paused is not None:
            paused.launcher.resume()

        # THEN gradients are eager's
        assert x.grad is not None
        assert torch.equal(x.grad, torch.autograd.grad(scaled(x).sum(), x)[0])

    # AND activations go as one shelf, the number among them
    result = compiled(torch.randn(4, 8, device=DEVICE, requires_grad=True))
    assert step.located
    assert set(step.backward.launcher.code.host_seeds) <= set(step.located[0].views)
