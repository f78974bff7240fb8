"""Results whose backward pass is done: which are told to be, and in which places their like stands from then on."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paramgraph_kit.step import refusals
from paramgraph_kit.step.holders import Holder
from paramgraph_kit.step.observe import Change
from paramgraph_kit.step.release import _is_held, release, released, told
from paramgraph_kit.step.spent import _leaf, is_bare_spent, is_spent, spent
from paramgraph_kit.trace.model import Frame, Reason
from tests.integration.launch_bench import DEVICE
from tests.unit.test_exact_steps import ones, spent_loss


class Doubled(torch.autograd.Function):
    """Keeps what it was given, or nothing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, keeps: bool) -> torch.Tensor:
        if keeps:
            ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * 2, None


def leaf(*size: int) -> torch.Tensor:
    return torch.ones(size or (2,), requires_grad=True)


def test_what_keeps_no_tensors_is_as_spent_as_what_it_was_computed_from() -> None:
    # GIVEN sums, which keep nothing for a backward pass, of a leaf, of a leaf and a constant, of a product
    x, y = leaf(), torch.ones(2)
    product = x * x
    for summed, later in ((x + 1, False), (x + y, False), (y + x, False), (product + 1, True), (y + product, True)):
        # WHEN asked before and after the backward pass of the product THEN what comes of that is
        assert not is_spent(summed)
        product.sum().backward(retain_graph=True)
        assert not is_spent(summed)
        if later:
            again = x * x + 1
            again.sum().backward()
            assert is_spent(again)
    assert not is_spent(y)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_function_of_the_user_s_is_spent_with_what_it_keeps(keeps: bool) -> None:
    # GIVEN a function that keeps its input, or nothing WHEN its backward pass is done THEN it tells
    made = Doubled.apply(leaf(), keeps)
    assert not is_spent(made)
    made.sum().backward()
    assert is_spent(made)


@pytest.mark.parametrize(
    "take", [lambda h: h[torch.tensor([0, 1])], lambda h: h[:, torch.tensor([1])], lambda h: h[None, torch.tensor([0])]]
)
def test_what_keeps_its_tensors_still_is_not_spent_whatever_came_before(take: Any) -> None:
    # GIVEN what is taken by an index, which is kept in a list, of a product whose own backward pass is done
    product = leaf(2, 2) * leaf(2, 2)
    taken = take(product)
    product.sum().backward()
    # WHEN asked THEN the product is, and what was taken of it is not
    assert is_spent(product)
    assert not is_spent(taken)


def test_a_like_of_a_spent_result_needs_gradients_wherever_it_is_made() -> None:
    # GIVEN no gradients, or inference mode WHEN the leaf behind all likes is made THEN it is one
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            made = _leaf.__wrapped__()
            assert (made.requires_grad, made.is_inference(), made.device.type) == (True, False, "cpu")
    with torch.no_grad():
        like = spent(torch.ones(2))
    assert (like.requires_grad, is_bare_spent(like), is_spent(like), is_spent(like * 2)) == (True, True, True, False)
    assert is_spent(like + 1)


def test_a_result_is_released_that_is_spent_and_nothing_else() -> None:
    # GIVEN results that are spent, with an attribute of their own or without, that are not, and a like of one
    loss, noted, open_, like = spent_loss(), spent_loss(), (ones(2).requires_grad_() * 2).sum(), spent(ones(2))
    noted.mine = 1  # type: ignore[attr-defined]
    # WHEN released THEN only the first is another one, wherever it stands
    for each in (noted, open_, like, ones(1), 3, None):
        assert released(each) is each
    given = [loss, {"a": noted, "b": loss}, (open_, 7)]
    found = released(given)
    assert is_bare_spent(found[0])
    assert found[1]["b"] is found[0]
    assert [found[1]["a"] is noted, found[2][0] is open_, found[2][1]] == [True, True, 7]
    assert torch.equal(found[0].detach(), loss.detach())
    assert given[0] is loss


def seen_with(after: Any, kind: str = "dict", result: Any = None) -> tuple[Any, dict[str, Any], list[Any]]:
    """A call that has left something in a place."""
    told_of: list[Any] = []
    held = {"state": after}
    target: Any = held if kind == "dict" else SimpleNamespace(grad=after)
    holder = Holder(kind, "self", target)
    reach = SimpleNamespace(let_go=lambda old, new: told_of.append((old, new)), holders=[holder])
    change = Change(holder, "state" if kind == "dict" else "", None, after)
    seen = SimpleNamespace(
        changes=[change], result=result, after=SimpleNamespace(reach=reach, contents=[{"state": after}])
    )
    return seen, held, told_of


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: (x, 1), lambda x: (1, (ones(2), x))])
def test_in_the_place_of_a_spent_result_or_a_tuple_with_one_its_like_stands(wrap: Any) -> None:
    # GIVEN a place that holds a spent result, or a tuple with one, which the call returns besides
    loss = spent_loss()
    after = wrap(loss)
    seen, held, told_of = seen_with(after, result=[loss, 5])
    # WHEN released
    release(seen)
    # THEN the place, what is known of it, and the result have its like, and whoever walks is told
    like = seen.result[0]
    assert is_bare_spent(like)
    assert seen.result[1] == 5
    assert held["state"] is seen.changes[0].after
    assert seen.after.contents[0]["state"] is held["state"]
    leaves = torch.utils._pytree.tree_leaves(held["state"])
    assert sum(each is like for each in leaves) == 1
    assert not any(each is loss for each in leaves)
    pairs = [(id(old), id(new)) for old, new in told_of]
    assert pairs == [(id(after), id(held["state"])), (id(loss), id(like))]


def test_a_gradient_that_is_spent_stays_and_so_does_what_holds_none() -> None:
    # GIVEN a gradient with a graph of its own, and a place without any WHEN released THEN nothing is put anywhere
    loss = spent_loss()
    for after, kind in ((loss, "gradient"), ((1, ones(2)), "dict"), (3, "dict")):
        seen, held, told_of = seen_with(after, kind)
        release(seen)
        assert held["state"] is after
        assert told_of == []
        assert seen.changes[0].after is after


def test_a_tensor_is_held_with_its_graph_that_has_one_on_the_device() -> None:
    # GIVEN tensors with a graph and without, on the device and elsewhere, and what is no tensor WHEN asked THEN one is
    x = ones(2).requires_grad_() * 2
    others = [ones(2), torch.ones(2, requires_grad=True) * 2, spent(ones(2)), 3, [x], object()]

    class Odd(torch.Tensor):
        @property
        def device(self) -> Any:  # type: ignore[override]
            raise RuntimeError("nobody knows")

    odd = ones(2).as_subclass(Odd)
    device = x.device
    assert _is_held(x, device)
    assert [_is_held(each, device) for each in others] == [False] * 6
    assert not _is_held(odd, device)


def test_who_holds_a_graph_is_told_by_kind() -> None:
    # GIVEN a tensor with a graph that a dictionary holds WHEN a refusal is told THEN with its shape and its holder
    assert ones(1).device == DEVICE
    held = {"x": ones(3).requires_grad_() * 2}
    reason = told(Reason("legacy-stream", "refused"), DEVICE)
    text = "refused; a tensor of [3] that was computed with gradients is still held (by dict): del it, or .detach() it"
    assert (reason.code, reason.message) == ("legacy-stream", text)
    assert len(held) == 1


@pytest.mark.parametrize(("own", "line", "found"), [(1, 2, 1), (None, 2, 2), (1, None, 1), (None, None, None)])
def test_a_failure_is_told_at_the_line_that_is_known_of_it(
    own: int | None, line: int | None, found: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a failure that the doctor explains with its line or without, and the line of the error, or none
    at = {n: Frame("f.py", n) for n in (1, 2)}
    failure = SimpleNamespace(code="host-sync", title="T", message="m", frame=at.get(own or 0))
    monkeypatch.setattr(refusals, "explain", lambda error: failure)
    monkeypatch.setattr(refusals, "line_behind", lambda error: ("text", at.get(line or 0)))
    # WHEN told THEN at the first that is known
    assert refusals.failed(RuntimeError()) == Reason("host-sync", "T: m", at.get(found or 0))
    failure.code = "unknown"
    assert refusals.failed(RuntimeError()) == Reason("capture-failed", "text", at.get(line or 0))
