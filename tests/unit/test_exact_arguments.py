"""What a step's call is known by, what its memory is called, and how long a list may be that is looked into."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.driver.native.build import checks
from paramgraph_kit.driver.select import driver
from paramgraph_kit.step import arguments as asked_of
from paramgraph_kit.step.arguments import Arguments, _has_gradient
from paramgraph_kit.step.called import called_in
from paramgraph_kit.step.names import Names
from paramgraph_kit.step.reach import Reach
from paramgraph_kit.trace.errors import RefusedError


def ones(*size: int) -> torch.Tensor:
    return torch.ones(size, device=pgk.device())


def test_a_call_that_is_remembered_is_another_one_with_names_with_numbers_and_once_its_memory_is_asked_for() -> None:
    # GIVEN arguments of a call of tensors alone, which is remembered
    arguments = Arguments(driver())
    x, y = ones(2), ones(3)
    key, tensors = arguments.of((x, y), {})
    assert [id(t) for t in tensors] == [id(x), id(y)]
    # WHEN called alike THEN it has that key, without one being made
    (look,) = arguments._looks
    again, tensors = arguments.of((y[:2], x.new_ones(3)), {})
    assert again is look.key
    assert len(tensors) == 2
    # AND with an argument by its name, one more, or a number it has another, which is its own each time
    others: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x, y), {"scale": 2.0}),
        ((x,), {"y": y}),
        ((x, y, x), {}),
        ((x, 3), {}),
        ((x, y), {"scale": x}),
    ]
    keys = [arguments.of(args, kwargs)[0] for args, kwargs in others]
    assert all(other != key for other in keys)
    assert all(a != b for n, a in enumerate(keys) for b in keys[:n])
    assert [arguments.of(args, kwargs)[0] for args, kwargs in others] == keys
    assert [len(arguments.of(args, kwargs)[1]) for args, kwargs in others] == [2, 2, 3, 1, 3]
    # AND once the code may ask how arguments lie, none is remembered for that
    arguments.asked = True
    assert arguments.of((x, y), {})[0] != key


@pytest.mark.parametrize(("made", "again"), [(7, 1), (None, 0)])
def test_what_calls_look_like_is_asked_in_c_from_the_second_on_where_that_is_known(
    made: Any, again: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a remembered call, and checks in C++ that take what it looked like, or do not
    arguments, x = Arguments(driver()), ones(2)
    arguments.of((x,), {})
    native = mock.Mock(given=mock.Mock(return_value=made), alike=mock.Mock(return_value=True))
    monkeypatch.setattr(asked_of, "checks", lambda: native)
    (look,) = arguments._looks
    # WHEN called otherwise, and then alike three times
    assert not look.fits((ones(3),))
    assert not native.given.called
    assert [look.fits((x,)) for _ in range(3)] == [True] * 3
    # THEN they are told once, by the first that is alike, and asked from then on where they have taken it
    assert native.given.mock_calls == [mock.call((x,))]
    assert native.alike.mock_calls == [mock.call(7, (x,))] * (2 * again)


def test_calls_with_attributes_with_lists_and_with_nothing_are_not_remembered() -> None:
    # GIVEN tensors of which one has an attribute, one in a list, and no arguments WHEN called THEN each has a key alone
    x, named = ones(2), ones(2)
    named.scale = 3  # type: ignore[attr-defined]
    for args in ((x, named), (named, x), ([x],), (), (x, x)):
        arguments = Arguments(driver())
        arguments.of(args, {})
        assert arguments._looks == []
    arguments = Arguments(driver())
    arguments.of((x, ones(2)), {})
    assert len(arguments._looks) == 1
    # AND the attribute counts by its name and its value, unless it is no plain one
    keys = []
    for name, value in (("scale", 3), ("scale", 4), ("other", 3), ("scale", True)):
        each = ones(2)
        setattr(each, name, value)
        keys.append(Arguments(driver()).of((each,), {})[0])
    assert all(a != b for n, a in enumerate(keys) for b in keys[:n])
    named.scale = [3]  # type: ignore[attr-defined]
    with pytest.raises(RefusedError) as raised:
        Arguments(driver()).of((named,), {})
    text = "an argument has an attribute that is a list (.scale): give it as an argument"
    assert (raised.value.reason.code, raised.value.reason.message) == ("unknown-argument", text)


def test_what_is_remembered_is_asked_of_tensors_alone_and_fits_none_with_a_gradient_or_attributes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN a remembered call of two tensors
    arguments, x = Arguments(driver()), ones(2)
    arguments.of((x, ones(3)), {})
    (look,) = arguments._looks
    graded, named = ones(3), ones(3)
    graded.grad, named.scale = ones(3), 2  # type: ignore[attr-defined]
    # WHEN called with a gradient beside one of them, or an attribute THEN that is another call
    assert look.fits((x, ones(3)))
    assert not look.fits((x, graded))
    for native in (None, checks()):
        monkeypatch.setattr(asked_of, "checks", lambda native=native: native)
        assert not look.fits((x, named))
    with pytest.raises(RefusedError, match="has a gradient"):
        arguments.of((x, graded), {})
    # AND nobody asks it of others than tensors
    arguments._looks = [mock.Mock(fits=mock.Mock(side_effect=AssertionError))]
    for args, kwargs in (((x, 3), {}), (([x],), {}), ((x,), {"n": 3})):
        arguments.of(args, kwargs)


def test_arguments_are_put_together_again_of_other_tensors() -> None:
    # GIVEN arguments with numbers, one tensor twice, and attributes of two tensors
    x, y, z = ones(2), ones(3), ones(4)
    x.scale, z.scale = 2, 3  # type: ignore[attr-defined]
    rebuild = Arguments(driver()).rebuilt((x, 3, [y, x]), {"k": (z, "a")})
    # WHEN put together of others THEN they stand where those stood, and have their attributes unless they have some
    a, b, again, c = ones(5), ones(6), ones(7), ones(8)
    c.other = 5  # type: ignore[attr-defined]
    (first, number, (second, third)), kwargs = rebuild([a, b, again, c])
    assert [first is a, number, second is b, third is a] == [True, 3, True, True]
    assert [kwargs["k"][0] is c, kwargs["k"][1]] == [True, "a"]
    assert [vars(t) for t in (a, b, again, c)] == [{"scale": 2}, {}, {}, {"other": 5}]
    # AND once more of the first ones
    (first, number, (second, third)), kwargs = rebuild([x, y, x, z])
    assert [first is x, second is y, third is x, kwargs["k"][0] is z] == [True] * 4


def test_a_gradient_counts_of_an_argument_that_needs_none() -> None:
    # GIVEN arguments with a gradient and without, that need one or not WHEN asked THEN one of them is refused for it
    found = []
    for needs in (False, True):
        for has in (False, True):
            x = ones(2).requires_grad_()
            x.grad = ones(2) if has else None
            found.append(_has_gradient(x.requires_grad_(needs)))
    assert found == [False, True, False, False]


def test_arguments_of_one_structure_share_a_number_and_plain_ones_have_none_of_it() -> None:
    # GIVEN arguments in lists and by name WHEN asked for their structure THEN each has a number, the same for the same
    arguments = Arguments(driver())
    x = ones(2)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x,), {}),
        ((x, 3), {}),
        (([x],), {}),
        ((x,), {"a": x}),
        (([ones(3)],), {}),
        ((x,), {"a": 7}),
        (({"a": x},), {}),
        (([x], 3), {}),
        ((3, {"a": x, "b": x}), {}),
    ]
    assert [arguments._leaves(*call)[1] for call in calls] == [~1, ~2, 0, 1, 0, 1, 2, 3, 4]
    assert [len(arguments._leaves(*call)[0]) for call in calls] == [1, 2, 1, 2, 1, 2, 1, 2, 3]


def test_a_step_s_memory_is_called_as_its_code_names_it_to_the_byte() -> None:
    # GIVEN an argument that is reached by a name and one that is not, cells, and state that the graph addresses
    x, y, w, half = ones(2), ones(2), ones(3, 5), ones(7).double()
    seen: Any = SimpleNamespace(before=SimpleNamespace(reach=SimpleNamespace(tensors={id(x): ("x", x)}, objects=[])))
    cells: Any = [
        SimpleNamespace(place="self.h", reads=[0, 1], exits=[0, None]),
        SimpleNamespace(place="w.grad", reads=[], exits=[2]),
    ]
    state = {id(w): ("self.w", w), id(half): ("self.half", half)}
    called = called_in(driver(), [x, y], seen, cells, [2], 4, [w, half], state)
    # WHEN asked THEN inputs, results and what is held are told in order, with their bytes
    assert called.inputs == ("x", "", "self.h", "self.h", "w.grad")
    assert called.results == ("self.h", "", "w.grad", "")
    address = driver().address_of
    assert sorted((at, nbytes) for at, nbytes, _ in called.held) == sorted([(address(w), 60), (address(half), 56)])
    assert list(called.held) == sorted(called.held)


@pytest.mark.parametrize(("count", "walked"), [(4096, True), (4097, False)])
def test_a_list_of_four_thousand_and_ninety_six_is_looked_into_and_no_longer_one(count: int, walked: bool) -> None:
    # GIVEN a list that long, of objects with state, and one of numbers WHEN walked THEN it is looked into, or told
    held: list[Any] = [[n] for n in range(count)]
    reach = Reach([("l", held)], [], Names())
    assert any(holder.target is held[-1] for holder in reach.holders) is walked
    assert reach.unseen == ([] if walked else [("l", "has 4,097 items, each of which may change")])
    assert Reach([("l", list(range(count)))], [], Names()).unseen == []
