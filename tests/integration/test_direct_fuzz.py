"""Random programs trained through direct calls: products, views and single numbers, of whose results some are used."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from paramgraph_kit.backend.direct.calls import DirectCall
from tests.integration import test_direct_calls
from tests.integration.test_direct_calls import DEVICE, is_direct

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
made = test_direct_calls.made

PROGRAMS, STEPS = 16, 6
OPERATIONS: list[Callable[[Tensor, Tensor, Tensor], Tensor]] = [
    lambda p, q, b: p @ q,
    lambda p, q, b: p.t() @ q,
    lambda p, q, b: p @ q.t(),
    lambda p, q, b: p.sin(),
    lambda p, q, b: p.t(),
    lambda p, q, b: p + b,
    lambda p, q, b: p * q.tanh(),
    lambda p, q, b: p.reshape(2, 32).exp().reshape(8, 8) * 0.01,
    lambda p, q, b: p[:, :4].repeat(1, 2) * q,
    lambda p, q, b: p * (q.sum() * 1e-3).exp(),
    lambda p, q, b: torch.softmax(p, -1),
]


def program(r: random.Random) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]:
    """A function of two matrices and a vector, with one to four results."""
    lines = [(r.choice(OPERATIONS), r.random(), r.random()) for _ in range(r.randint(4, 18))]
    results = [r.random() for _ in range(r.randint(1, 4))]

    def function(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        values = [x, w]
        for operation, first, second in lines:
            p, q = (values[int(at * len(values))] for at in (first, second))
            values.append(operation(p, q, b))
        found = [values[2 + int(at * (len(values) - 2))] for at in results]
        return tuple((z * 1.5).reshape(4, 16) if k % 2 else z.sin() for k, z in enumerate(found))

    return function


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_a_random_program_trains_as_eager_whatever_of_it_is_used(seed: int, made: list[DirectCall]) -> None:
    # GIVEN a random program, compiled, and one that is not
    r = random.Random(seed)
    torch.manual_seed(seed)
    function = program(r)
    compiled = torch.compile(function, backend="paramgraph", dynamic=False)
    for step in range(STEPS):
        ours = [torch.randn(*size).mul(0.3).to(DEVICE).requires_grad_() for size in ((8, 8), (8, 8), (8,))]
        theirs = [x.detach().clone().requires_grad_() for x in ours]

        # WHEN both are trained on some of their results, after the first steps on other ones each time
        results, expected = compiled(*ours), function(*theirs)
        used = [k for k in range(len(expected)) if step < 2 or r.random() < 0.6] or [0]
        for found in (results, expected):
            losses = [found[k].square().sum() for k in used if found[k].requires_grad]
            if losses:
                torch.autograd.backward(losses)

        # THEN results and gradients are eager's, to the order of sums
        for a, b in zip(results, expected, strict=True):
            assert torch.equal(a, b)
        for x, y in zip(ours, theirs, strict=True):
            gradient, right = (torch.zeros_like(each) if each.grad is None else each.grad for each in (x, y))
            assert torch.allclose(gradient, right, rtol=1e-4, atol=1e-5), step

        # AND what the caller writes into what it has got changes no later step
        for x in ours:
            if x.grad is not None:
                x.grad.fill_(5.0)
        for z in results:
            z.detach().fill_(9.0)
    if made:
        assert is_direct(made[0]) or made[0].codes.obstacle is not None
