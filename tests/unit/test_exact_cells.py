"""Which changes of a step's places a launch can make again, how the others are told, and with what a place enters."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paramgraph_kit.backend.plain import flatten
from paramgraph_kit.step.cells import TENSOR, Cell, cells_of, layout, side_effect
from paramgraph_kit.step.holders import EMPTY, Holder
from paramgraph_kit.step.observe import Change
from tests.unit.test_exact_steps import change, needing, ones, refused, spent_loss

ONE = object()
SET = {1}


@pytest.mark.parametrize(
    ("found", "lazily", "code"),
    [
        (change(ones(2), ones(2)), False, None),
        (change(ones(2), ones(2)), True, None),
        (change(None, ones(2)), False, None),
        (change(None, ones(2)), True, "side-effect"),  # may have been made for good
        (change(EMPTY, ones(2)), False, None),
        (change(EMPTY, ones(2)), True, "side-effect"),
        (change(None, ones(2), "gradient", ""), True, None),
        (change(EMPTY, ones(2), "sequence", 3), False, "side-effect"),  # longer at each call
        (change(ones(2), EMPTY), False, "side-effect"),
        (change(ones(2), ones(2), "cached", 1), False, "side-effect"),
        (change(ones(2), ones(2), "asked", ""), False, "side-effect"),
        (change(ones(2), None), False, None),  # let go at each call
        (change([ones(2), ones(2)], [None]), False, None),
        (change(3, None), False, "side-effect"),
        (change(1, 2), False, "side-effect"),
        (change((ones(2), 1), (ones(2), 1)), False, None),
        (change((ones(2), 1), (ones(2), 2)), False, "side-effect"),
        (change((ones(2), ONE), (ones(2), ONE)), False, None),  # the very object
        (change((ones(2), ONE), (ones(2), object())), False, "side-effect"),
        (change(ones(2), (ones(2), 1)), False, "side-effect"),
        (change(ones(2), needing()), False, "requires-grad"),
        (change(ones(2), spent_loss()), False, None),
        (change(ones(2), torch.eye(2).to_sparse()), False, "unknown-output"),
        (change([torch.eye(2).to_sparse()], [ones(2)]), False, "unknown-output"),
        (change([ones(2), 1], [None]), False, None),  # what was there besides is let go, too
        (change(ones(2), ()), False, None),
        (change(ones(2), (None, 2)), False, "side-effect"),
        (change(ones(2), (ones(2), ONE)), False, "side-effect"),  # not there before
        (change((ones(2), 3, SET), (ones(2), 3, SET)), False, None),
        (change((ones(2), 3, SET), (ones(2), 3, set(SET))), False, "side-effect"),  # another one that is equal
    ],
)
def test_which_changes_a_launch_makes_again(found: Change, lazily: bool, code: str | None) -> None:
    # GIVEN a place that holds something else after a call WHEN looked at THEN a launch can do it, or it is refused
    said = refused(lambda: cells_of([found], lazily))
    assert (said and said[0]) == code
    if code is None:
        ((same, leaves, spec),) = cells_of([found], lazily)
        assert same is found
        assert [a is b for a, b in zip(leaves, flatten(found.after)[0], strict=True)] == [True] * len(leaves)
        assert spec == flatten(found.after)[1]


@pytest.mark.parametrize(
    ("after", "whose"), [(needing(), "self['state']"), ([needing()], "each"), ((ones(2), needing()), "each")]
)
def test_what_needs_gradients_is_told_by_its_place_or_as_one_of_several(after: Any, whose: str) -> None:
    # GIVEN a place that holds a tensor, or some, with a graph of gradients WHEN refused THEN it says what to detach
    text = f"self['state'] holds a tensor that needs gradients afterwards: keep {whose}.detach() there"
    assert refused(lambda: cells_of([change(ones(2), after)], False)) == ("requires-grad", text)


BESIDE = "before or behind each launch"
COUNTED = "count behind each launch, or in a tensor on the device that the step adds to"


@pytest.mark.parametrize(
    ("found", "what", "instead"),
    [
        (change(1, 2, key="n"), "self['n'] was 1 and is 2", COUNTED),
        (change(1, 2.5, key="n"), "self['n'] was 1 and is 2.5", COUNTED),
        (change(1, True, key="n"), "self['n'] was 1 and is True", f"set self['n'] {BESIDE}"),
        (change("a", 2, key="n"), "self['n'] was 'a' and is 2", f"set self['n'] {BESIDE}"),
        (change(2, "a", key="n"), "self['n'] was 2 and is 'a'", f"set self['n'] {BESIDE}"),
        (change(EMPTY, 2, key="n"), "self['n'] was not there and is 2", f"set self['n'] {BESIDE}"),
        (
            change(EMPTY, 2, "sequence", 7, "self.losses"),
            "self.losses is longer",
            "return what is appended, and append it behind each launch",
        ),
        (change(1, 2, "sequence", 7, "self.losses"), "self.losses[7] was 1 and is 2", COUNTED),
        (
            change(3, EMPTY, key="n"),
            "self['n'] was 3 and is gone",
            "take it away before the first call, or behind each launch",
        ),
        (
            change(None, [torch.ones(2)], key="n"),
            "self['n'] was None and is a list of 1",
            "make it once, before the first call, and write into it",
        ),
        (
            change(None, [2, torch.ones(2)], key="n"),
            "self['n'] was None and is a list of 2",
            "make it once, before the first call, and write into it",
        ),
        (change(None, [2], key="n"), "self['n'] was None and is a list of 1", f"set self['n'] {BESIDE}"),
        (change(0, 1, "asked", "", "self.q"), "self.q was 0 and is 1", COUNTED),
    ],
)
def test_a_change_that_no_launch_makes_is_told_with_what_to_write(found: Change, what: str, instead: str) -> None:
    # GIVEN a change WHEN it is refused THEN in these words
    text = f"{what} after the call, which a launch would not do again: {instead} (pgk.diagnose(step) shows where)"
    assert (side_effect(found).code, side_effect(found).message) == ("side-effect", text)


def test_changes_of_a_rate_of_a_cached_function_and_of_parts_have_words_of_their_own() -> None:
    # GIVEN such changes WHEN refused THEN in these words
    for key in ("lr", "betas", "momentum", "weight_decay"):
        said = side_effect(change(0.1, 0.2, key=key, name="group"))
        text = f"group['{key}'] was 0.1 and is 0.2 after the call, and a graph has it baked in: make it a tensor"
        assert (said.code, said.message) == ("changing-scalar", f"{text} on the device")
    said = side_effect(change(0, 1, "cached", 5, "table"))
    text = "the cached function table computes something at each call, which a launch would not do: keep what changes"
    assert (said.code, said.message) == ("side-effect", f"{text} out of its arguments")
    said = side_effect(change(0, 1, "asked", "", "self.w", torch.ones(2)))
    text = "self.w is a Tensor with other tensors inside after the call, which a launch would not put there: write into"
    assert (said.code, said.message) == ("side-effect", f"{text} them")
    assert side_effect(change(0, 1, "dict", "w", "self", torch.ones(2))).message.startswith("self['w'] was 0 and is 1 ")


def cell(before: Any, after: Any, exits: list[int | None], plain: list[Any]) -> Cell:
    """Of a dictionary that holds it under "h"."""
    leaves, spec = flatten(before)
    return Cell(
        Holder("dict", "self", {"h": before}),
        "h",
        [TENSOR if isinstance(x, torch.Tensor) else x for x in leaves],
        spec,
        [layout(x) if isinstance(x, torch.Tensor) else None for x in leaves],
        exits,
        plain,
        flatten(after)[1],
    )


def test_a_cell_enters_with_tensors_of_the_kind_that_it_was_captured_with() -> None:
    # GIVEN cells that held a tensor, tensors and a number, nothing WHEN they hold others THEN these enter, or not
    x, y = ones(2), ones(2) * 2
    single, several, empty = (
        cell(x, x, [0], [None]),
        cell((x, 3, [y]), x, [0], [None]),
        cell(None, x, [0], [None]),
    )
    parameter = torch.nn.Parameter(y, requires_grad=False)
    cases: list[tuple[Cell, Any, list[torch.Tensor] | None]] = [
        (single, y, [y]),
        (single, ones(3), None),
        (single, (x,), None),
        (single, None, None),
        (single, ones(4)[::2], None),
        (single, y.double(), None),
        (single, torch.ones(2, device="meta"), None),
        (single, parameter, [parameter]),
        (several, (y, 3, [x]), [y, x]),
        (several, (y, 4, [x]), None),
        (several, y, None),
        (several, (y, 3, [ones(3)]), None),
        (several, (y, 3, [2]), None),
        (several, (y, 3, x), None),
        (several, (3, 3, [x]), None),
        (empty, None, []),
        (empty, x, None),
        (empty, EMPTY, None),
    ]
    for each, held, entering in cases:
        each.holder.target["h"] = held
        if held is EMPTY:
            del each.holder.target["h"]
        found = each.entering()
        assert (found is None) is (entering is None)
        assert [id(t) for t in found or ()] == [id(t) for t in entering or ()]
    assert single.place == "self['h']"
    # AND leaves what the step left there, with plain values where there were some
    left = cell(x, (x, 5, {"k": y}), [1, None, 0], [None, 5, None])
    left.put([y, x])
    first, number, rest = left.held()
    assert (first is x, number, rest["k"] is y) == (True, 5, True)
    single.put([x])
    assert single.held() is x


def test_a_gradient_is_asked_for_by_itself() -> None:
    # GIVEN a cell of a parameter's gradient, which each launch asks WHEN asked THEN no dictionary is made for it
    class Unread(Holder):
        def read(self) -> Any:
            raise AssertionError

    w, gradient = ones(2).requires_grad_(), ones(2)
    spec = flatten(gradient)[1]
    of = Cell(Unread("gradient", "w", w), "", [TENSOR], spec, [layout(gradient)], [0], [None], spec)
    assert of.entering() is None
    w.grad = gradient
    assert of.held() is gradient
    assert of.entering() == [gradient]
