"""Functions of libraries that a step ran, asked by dictionary or by place; and gradients that are let go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from paramgraph_kit.driver.dict_versions import TOLD
from paramgraph_kit.step import functions
from paramgraph_kit.step.entry import let_go, take_up
from paramgraph_kit.step.functions import Functions
from paramgraph_kit.step.names import Names


def known() -> Functions:
    names = Names()
    names.add(F.softmax.__code__, vars(F))
    return Functions(names)


@pytest.mark.parametrize("told", [True, False])
def test_each_place_is_asked_where_versions_of_dictionaries_are_not_told(
    told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a Python that tells the versions of dictionaries, or not WHEN functions are known THEN by these, or by place
    monkeypatch.setattr(functions, "TOLD", told)
    found = known()
    assert len(found._rows) > 1
    assert found._asked == (set() if told else set(found._rows))
    assert found.same()


@pytest.mark.skipif(not TOLD, reason="versions of dictionaries are not told")
def test_a_dictionary_that_was_written_elsewhere_is_asked_by_place_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN functions that are as they were WHEN something else is written beside them
    found = known()
    assert found.same()
    assert found._asked == set()
    monkeypatch.setattr(F, "nobody_reads_this", 1, raising=False)
    # THEN they are the same, and that dictionary alone is asked place by place
    assert found.same()
    assert found._asked == {id(vars(F))}
    assert found.difference() is None
    # AND a function that is replaced there is told
    monkeypatch.setattr(F, "softmax", F.relu)
    assert not found.same()


@pytest.mark.parametrize(
    ("now", "same"),
    [
        (lambda: torch.full((2, 3), 7.0), True),
        (lambda: None, False),
        (lambda: torch.full((3, 2), 7.0).t(), False),
        (lambda: torch.full((2, 3), 7.0).double(), False),
        (lambda: torch.full((6,), 7.0), False),
        (lambda: torch.full((2, 3), 7.0, device="meta"), False),
        (lambda: torch.full((2, 3), 7.0, requires_grad=True), False),
    ],
)
def test_a_gradient_that_is_gone_comes_back_as_one_that_looks_the_same(now: Any, same: bool) -> None:
    # GIVEN two gradients that were let go, of which one is held by somebody and one is gone after the call
    held = torch.ones(2)
    targets = [SimpleNamespace(grad=held), SimpleNamespace(grad=torch.zeros(2, 3))]
    contents: list[dict[str, Any]] = [{"": target.grad} for target in targets]
    ids = [id(target.grad) for target in targets]
    tensors: dict[int, Any] = {id(target.grad): (f"{n}.grad", target.grad) for n, target in enumerate(targets)}
    holders = [SimpleNamespace(kind="gradient", target=target) for target in targets]
    reach: Any = SimpleNamespace(holders=holders, tensors=tensors, forget=lambda keys: None)
    olds = let_go(reach, contents)
    assert tensors == {}
    tensors.clear()
    targets[1].grad = now()
    # WHEN taken up THEN the first is there again, and in the place of the second one like it, on memory that is there
    assert list(take_up(reach, olds)) == ids[1:]
    assert contents[0][""] is held
    assert list(tensors) == ids[:1]
    like = contents[1][""]
    assert (like.shape, like.stride(), like.dtype, like.device.type) == ((2, 3), (3, 1), torch.float32, "cpu")
    assert not like.requires_grad
    assert (same and like.data_ptr() == targets[1].grad.data_ptr()) is same
    assert like is not targets[1].grad
    if not same and targets[1].grad is not None and targets[1].grad.device.type == "cpu":
        assert like.data_ptr() != targets[1].grad.data_ptr()
