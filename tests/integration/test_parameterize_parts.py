"""A loss made of some of a function's results: eager has no gradients of what only the others come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paramgraph_kit as pgk

USED = ([0], [1], [0, 1], [2], [3], [1, 3], [0, 1, 2, 3], [0], [1], [3])


class Heads(nn.Module):
    """Two heads of one body, the second of which it does not learn from, and two views of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 3)
        self.scale, self.unused = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        inside = self.body(x).tanh()
        scaled = inside * self.scale
        return self.first(inside), self.second(inside.detach()), scaled[0], scaled[1:]


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(pgk.device())


def heads() -> Heads:
    torch.manual_seed(0)
    return Heads().to(pgk.device())


def gradients_of(tensors: Any) -> list[Any]:
    return [None if x.grad is None else x.grad.tolist() for x in tensors]


def trained(wrap: Callable[[Any], Any]) -> Iterator[Any]:
    """With an optimizer to which zeros are not None."""
    model = heads()
    call, optimizer = wrap(model), torch.optim.AdamW(model.parameters(), 0.1)
    for k, used in enumerate(USED):
        results = call(numbers(k, 3, 4))
        loss = sum(results[n].square().sum() for n in used)
        optimizer.zero_grad()
        loss.backward()
        yield gradients_of(model.parameters())
        optimizer.step()
        yield [p.tolist() for p in model.parameters()]


def written(wrap: Callable[[Any], Any]) -> Iterator[Any]:
    """An input that the call writes, and one that leads further back."""

    def function(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        flat = y.view(-1)
        x.mul_(w)
        return flat[2:], (b * 3).sum(), y

    call, leaf = wrap(function), numbers(9, 2, 4).requires_grad_()
    for k in range(10):
        w, b = numbers(k, 4).requires_grad_(), numbers(k + 20, 4).requires_grad_()
        x = leaf * 1.5
        flat, total, y = call(x, w, b)
        (flat.sum(), total, x.sum(), y.sum() + total, x.sum() * total)[k % 5].backward()
        yield gradients_of((leaf, w, b))
        leaf.grad = None


def chained(wrap: Callable[[Any], Any]) -> Iterator[Any]:
    """Two calls, one of which may get no gradient at all, and a graph that is kept."""
    models = heads(), heads()
    one, two = map(wrap, models)
    both = [p for model in models for p in model.parameters()]
    for k in range(8):
        first = one(numbers(k, 3, 4))
        second = two(numbers(k + 5, 3, 4) + first[3].sum())
        loss = second[k % 3].sum() if k % 2 else first[0].sum() + second[1].sum()
        loss.backward(retain_graph=k % 4 == 1)
        if k % 4 == 1:
            (second[2].sum() + first[1].sum()).backward()
        yield gradients_of(both)
        for p in both:
            p.grad = None


def asked(wrap: Callable[[Any], Any]) -> Iterator[Any]:
    """torch.autograd.grad of what was not used, which is an error."""
    model = heads()
    call, members = wrap(model), list(model.parameters())
    for k in range(5):
        results = call(numbers(k, 3, 4))
        with pytest.raises(RuntimeError, match="appears to not have been used"):
            torch.autograd.grad(results[0].sum(), members, retain_graph=True)
        found = torch.autograd.grad(results[1].sum() + results[2].sum(), members, allow_unused=True)
        yield [None if x is None else x.tolist() for x in found]


class Doubled(torch.autograd.Function):
    """Wants its gradient, whatever becomes of what comes from it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 2


@pytest.mark.parametrize("where", ["gradient", "accumulated", "before"])
def test_code_that_hears_gradients_is_given_zeros_and_not_none(where: str) -> None:
    # GIVEN a function of two results, and code of the user's that is called with the gradient of what one comes from
    call = pgk.parameterize(lambda x, y: (x * 2, y * 3))
    heard: list[Any] = []
    for k in range(4):
        x, y = numbers(k, 4).requires_grad_(), numbers(k + 5, 4).requires_grad_()
        leaf: Any = y
        if where == "gradient":
            leaf.register_hook(lambda gradient: heard.append(gradient.sum().item()))
        elif where == "accumulated":
            leaf.register_post_accumulate_grad_hook(lambda p: heard.append(p.grad.sum().item()))
        else:
            y = Doubled.apply(leaf.sin())  # type: ignore[no-untyped-call]
        # WHEN the other result is used THEN it raises nothing, and hears of no change
        call(x, y)[0].sum().backward()
        assert gradients_of((x,)) == [[2.0] * 4]
        assert not heard or heard[-1] == 0
        assert leaf.grad is None or not leaf.grad.any()


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch asks for it while it traces, and hides what that says
@pytest.mark.parametrize("program", [trained, written, chained, asked])
@pytest.mark.parametrize("verify", ["off", "always"])
def test_what_no_used_result_comes_from_has_no_gradient(
    program: Callable[[Callable[[Any], Any]], Iterator[Any]], verify: Any
) -> None:
    # GIVEN functions of several results, and losses of some of them
    calls = []

    def parameterized(fn: Any) -> Any:
        calls.append(pgk.parameterize(fn, verify=verify))
        return calls[-1]

    # WHEN they are parameterized THEN gradients are eager's: None where nothing that was used comes from an input
    expected = list(program(lambda fn: fn))
    assert list(program(parameterized)) == expected
    assert any(None in each for each in expected)
    assert all(any(row.launches for row in pgk.report(call).rows) for call in calls)
