"""Steps that put tensors onto other memory, ``p.data = ...``, on the simulator: so does each launch, bit for bit."""

# mypy: disable-error-code="no-untyped-call, index, operator, union-attr, unused-ignore"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration import step_optimizers
from tests.integration.step_parts import Program, values_of
from tests.integration.test_step_sim import equal

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")

Made = tuple[Callable[[torch.Tensor], torch.Tensor], list[torch.Tensor]]


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).to(pgk.device())


def swaps() -> Made:
    a, b = tensor(1, 2), tensor(3, 4)

    def step(x: torch.Tensor) -> torch.Tensor:
        a.data, b.data = b.data, a.data
        a.mul_(2)
        return (a * x + b).sum()

    return step, [a, b]


def lies_on_another() -> Made:
    a, b = tensor(1, 2), tensor(3, 4)

    def step(x: torch.Tensor) -> torch.Tensor:
        a.data = b.data
        b.add_(x)
        return (a + b).sum()

    return step, [a, b]


def leaves_an_alias() -> Made:
    a = tensor(1, 2)
    kept = a.detach()

    def step(x: torch.Tensor) -> torch.Tensor:
        kept.add_(1)
        before = (a * x).sum()
        a.data = a.data * 2
        kept.mul_(3)
        return before + a.sum() + kept.sum()

    return step, [a, kept]


def leaves_a_flat_buffer() -> Made:
    flat = tensor(1, 2, 3, 4)
    a, b = flat[:2], flat[2:]

    def step(x: torch.Tensor) -> torch.Tensor:
        flat.mul_(1.5)
        a.data = a.data + b
        b.sub_(x)
        return a.sum() + flat.sum()

    return step, [flat, a, b]


def takes_turns() -> Made:
    a, b = tensor(1, 2), tensor(3, 4)

    def step(x: torch.Tensor) -> torch.Tensor:
        b.copy_(a * x)
        a.data, b.data = b.data, a.data
        return a.sum() - b.sum()

    return step, [a, b]


def moves_twice() -> Made:
    a = tensor(1, 2)

    def step(x: torch.Tensor) -> torch.Tensor:
        a.data = a * 2
        first = a.sum()
        a.data = a + x
        return first + a.sum()

    return step, [a]


@pytest.mark.parametrize("verify", ["first", "off"])
@pytest.mark.parametrize(
    "make", [swaps, lies_on_another, leaves_an_alias, leaves_a_flat_buffer, takes_turns, moves_twice]
)
def test_steps_that_move_tensors_are_equal_bit_for_bit(make: Callable[[], Made], verify: str) -> None:
    # GIVEN a step that moves tensors, some of which share memory then, and its twin
    (ours, mine), (theirs, others) = make(), make()
    whole = pgk.parameterize(ours, state=mine, verify=verify)
    # WHEN one is launched THEN both have the same bits after each step
    for number in range(12):
        x = tensor(number + 1, number + 0.5)
        if number == 7:  # somebody else moves one, too
            for tensors in (mine, others):
                tensors[0].data = tensors[0].data.clone()
        assert equal(whole(x.clone()), theirs(x.clone()))
        assert equal(mine, others)
    assert pgk.report(whole).reasons == ()
    assert pgk.report(whole).rows[0].launches >= 4  # of graphs that are still there


def frozen(program: Program) -> None:
    program.model[0].weight.requires_grad_(False)


def replaced(program: Program) -> None:
    for p in program.model.parameters():
        p.data = p.data.clone() * 0.5


def written(program: Program) -> None:
    for p in program.model.parameters():
        p.data.mul_(0.5)


def shared(program: Program) -> None:
    program.model[0].bias.data = program.model[0].weight.data[:, 0].contiguous()


def transposed(program: Program) -> None:
    w = program.model[0].weight
    w.data = w.data.t().contiguous().t()


def unaligned(program: Program) -> None:
    b = program.model[0].bias
    b.data = torch.cat([b.data.new_zeros(1), b.data])[1:]


@pytest.mark.parametrize("change", [frozen, replaced, written, shared, transposed, unaligned])
@pytest.mark.parametrize("verify", ["first", "off"])
def test_tensors_that_a_step_moves_may_be_changed_between_steps(change: Callable[[Any], None], verify: str) -> None:
    # GIVEN a step that puts its parameters onto other memory at each call
    ours, theirs = step_optimizers.decayed_by_data(), step_optimizers.decayed_by_data()
    step = pgk.parameterize(ours.step, state=(*ours.state,), verify=verify)
    for number in range(12):
        # WHEN something else happens to them between two steps
        if number == 6:
            for program in (ours, theirs):
                change(program)
            if change is transposed:  # THEN a fused optimizer refuses weights that lie otherwise than its moments
                for call, program in ((step, ours), (theirs.step, theirs)):
                    with pytest.raises(RuntimeError, match="must have same dtype, device, and layout"):
                        call(*program.batch(number))
                return
        results = [call(*program.batch(number)) for call, program in ((step, ours), (theirs.step, theirs))]
        # THEN the bits are right
        assert equal(*results)
        assert equal(values_of(ours), values_of(theirs))
    assert pgk.report(step).reasons == ()
    assert pgk.report(step).rows[0].launches >= 6


def test_moved_memory_that_somebody_keeps_is_not_written_over() -> None:
    # GIVEN a step that binds a table's memory anew and writes none in place
    table = torch.ones(4, device=pgk.device())

    def step(x: torch.Tensor) -> torch.Tensor:
        table.data = table.data * 0.5 + x
        return table.sum()

    whole, kept = pgk.parameterize(step, state=table), []
    # WHEN each call's memory is kept THEN no later call changes it
    for number in range(8):
        whole(torch.full((4,), float(number), device=pgk.device()))
        kept.append((table.detach(), table.detach().clone()))
    assert all(torch.equal(a, b) for a, b in kept)
    assert pgk.report(whole).rows[0].launches == 6


def test_an_argument_that_is_moved_is_refused() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        x.data = x.data * 2
        return x.sum()

    whole = pgk.parameterize(step, state=())
    for _ in range(4):
        x = torch.ones(4, device=pgk.device())
        assert whole(x).item() == 8.0
        assert x[0].item() == 2.0
    assert [reason.code for reason in pgk.report(whole).reasons] == ["side-effect"]
