"""What a step asks of its arguments beside what they hold: gradients, memory, how often they were written."""

from __future__ import annotations

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.test_step_sim_refusals import Step, refusals_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")


def test_an_argument_with_a_gradient_is_refused() -> None:
    # GIVEN a step that reads the gradient of its argument
    step = pgk.parameterize(lambda x: x * 2 if x.grad is None else x * 2 + x.grad, state=[])
    x = torch.ones(3, device=pgk.device())
    assert refusals_of(step, x) == []

    # WHEN it has one by now, and another one THEN each call reads its own
    for value in (1.0, 2.0, 3.0):
        x.grad = torch.full_like(x, value)
        assert step(x).tolist() == [2 + value] * 3
    assert [reason.message for reason in pgk.report(step).reasons] == [
        "an argument has a gradient (.grad), which is another one at each call: give that as an argument of its own"
    ]


def aliases(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.data_ptr() == y.data_ptr() else x * 3


def is_a_view(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * 2 if x._base is None and y._base is None else x * 3


def shares(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr() else x * 3


@pytest.mark.parametrize("asks", [aliases, is_a_view, shares])
def test_how_arguments_lie_in_memory_is_asked_at_each_call_where_the_step_asks_it(asks: Step) -> None:
    # GIVEN a step that asks how its arguments lie WHEN calls give apart ones, views of one and the same memory
    step, device = pgk.parameterize(asks, state=[]), pgk.device()
    for number in range(16):
        x, whole = torch.ones(4, 4, device=device), torch.ones(64, device=device)
        pairs = (
            (x, torch.ones_like(x)),
            (x, x.detach()),
            (whole[:16].view(4, 4), whole[32:48].view(4, 4)),
            (x, x.view(4, 4)),
        )
        # THEN each has its answer
        pair = pairs[number // 4] if number < 12 else pairs[number % 4]
        assert torch.equal(step(*pair), asks(*pair)), number
    # AND it is launched
    assert sum(row.launches for row in pgk.report(step).rows) >= 2


def test_how_often_a_tensor_was_written_is_not_counted_by_a_launch() -> None:
    # GIVEN a step that computes anew where a weight was written WHEN it was
    weight, seen = torch.ones(3, device=pgk.device()), [0]
    step = pgk.parameterize(lambda x: x * 2 if weight._version == seen[0] else x * weight, state=[weight, seen])
    x = torch.ones(3, device=pgk.device())
    assert refusals_of(step, x) == ["unknown-state"]
    weight.add_(1)
    seen[0] = 7
    # THEN it sees it
    assert step(x).tolist() == [2.0] * 3


def test_an_argument_that_is_told_to_need_gradients_is_refused_with_what_helps() -> None:
    # GIVEN a step that wants the gradient of its argument WHEN it is called THEN it says what to do instead
    step = pgk.parameterize(lambda x: torch.autograd.grad(x.requires_grad_().square().sum(), x)[0], state=[])
    for _ in range(4):
        assert step(torch.ones(3, device=pgk.device())).tolist() == [2.0] * 3
    (reason,) = pgk.report(step).reasons
    assert reason.code == "side-effect"
    assert "requires_grad before the call, or of its .detach()" in reason.message
    # AND with that it is launched
    better = pgk.parameterize(
        lambda x: torch.autograd.grad((y := x.detach().requires_grad_()).square().sum(), y)[0], state=[]
    )
    for _ in range(4):
        assert better(torch.ones(3, device=pgk.device())).tolist() == [2.0] * 3
    assert sum(row.launches for row in pgk.report(better).rows) == 2


def test_how_much_memory_there_is_is_asked_at_each_call() -> None:
    # GIVEN a step that gives back how much memory is in use, as for a log
    step = pgk.parameterize(lambda x: (x * 2, pgk.cuda.memory_allocated()), state=[])
    held = []
    for _ in range(6):
        # WHEN there is more of it at each call THEN it says so, and the report why it is not launched
        held.append(torch.ones(1 << 16, device=pgk.device()))
        _, told = step(torch.ones(3, device=pgk.device()))
        assert told >= len(held) << 18
    (reason,) = pgk.report(step).reasons
    assert reason.code == "outside-state"
    assert reason.message.startswith("it asks torch.cuda.memory_allocated")
    assert reason.frame is not None
