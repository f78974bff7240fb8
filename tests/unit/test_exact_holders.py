"""Places of every kind, written and emptied one by one; whose classes are a library's; gradients asked for in C++."""

from __future__ import annotations

import contextvars
import functools
from fractions import Fraction
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from paramgraph_kit.driver.tensors import bits_of
from paramgraph_kit.step import graphed, kept
from paramgraph_kit.step.capture import Alias
from paramgraph_kit.step.graphed import Graphed
from paramgraph_kit.step.holders import EMPTY, Holder, _is_of_library, cached_by, slots_of
from paramgraph_kit.step.kept import Kept
from tests.integration.launch_bench import DRIVER


def cell_of(value: Any) -> Any:
    def inner() -> Any:
        return value

    assert inner.__closure__ is not None
    return inner.__closure__[0]


class Slotted:
    """Has slots of its own."""

    __slots__ = ("a", "b")


class Below(Slotted):
    """Has another one, and attributes."""

    __slots__ = ("c",)


def test_a_place_is_written_or_left_or_emptied_as_its_kind_can_be() -> None:
    # GIVEN places of all kinds WHEN a value is put there, and nothing THEN each holds it, and is empty if it can be
    variable: Any = contextvars.ContextVar("variable")
    slotted = Slotted()
    w = torch.nn.Parameter(torch.ones(2))
    cases: list[tuple[Holder, Any, Any, Any]] = [
        (Holder("dict", "d", {}), "k", 3, None),
        (Holder("global", "g", {}, "g"), "g", 3, EMPTY),
        (Holder("cell", "c", cell_of(1)), "", 3, EMPTY),
        (Holder("context", "v", variable), "", 3, 3),
        (Holder("bytes", "b", bytearray(b"ab")), "", b"cd", b"cd"),
        (Holder("slots", "s", slotted), "a", 3, 3),
        (Holder("class", "K", type("K", (), {})), "k", 3, 3),
        (Holder("gradient", "w", w), "", torch.zeros(2), None),
        (Holder("asked", "q", None, ask=lambda: 5), "", 3, None),
    ]
    for holder, key, value, emptied in cases:
        holder.put(key, value)
        if holder.kind == "asked":
            assert holder.read() == {"": 5}
            continue
        assert holder.read()[key] is value or holder.read()[key] == value
        if emptied is None:
            continue
        holder.put(key, EMPTY)
        found = holder.read().get(key, EMPTY)
        assert found is emptied or found == emptied
    containers: list[Any] = [[], {}, set()]
    assert [Holder.of(each, "x").kind for each in containers] == ["sequence", "dict", "set"]
    assert all(Holder.of(each, "x").whole for each in containers)
    # AND emptying what is empty changes nothing
    space: dict[str, Any] = {}
    Holder("global", "g", space, "g").put("g", EMPTY)
    assert space == {}
    assert Holder("slots", "s", Slotted()).read() == {"a": EMPTY, "b": EMPTY}


def test_a_cache_that_has_kept_nothing_keeps_nothing() -> None:
    # GIVEN functions that remember everything, or the last two WHEN they have computed nothing THEN nothing is found
    for remembers in (functools.cache, functools.lru_cache(maxsize=2)):
        function: Any = remembers(lambda x: [2 * x])
        assert cached_by(function) == {}
        found = function(3)
        seen = cached_by(function)
        assert (seen == {3: found}) is (remembers is functools.cache)
        assert seen


def test_slots_are_those_of_a_class_and_its_bases_but_for_what_c_has_made() -> None:
    # GIVEN classes with slots, of the user's and of a library in Python, and of C WHEN asked THEN all but the last's
    assert sorted(slots_of(Below)) == ["a", "b", "c"]
    assert sorted(slots_of(type("Mine", (Fraction,), {"__slots__": ("own",)}))) == ["_denominator", "_numerator", "own"]
    assert slots_of(slice) == ()
    assert slots_of(SimpleNamespace) == ()


@pytest.mark.parametrize(
    ("file", "module", "library"),
    [
        (__file__, "nowhere", False),
        (torch.__file__, "nowhere", True),
        ("<string>", "nowhere", True),
        (torch.__file__, __name__, False),
        (__file__, "torch", True),
    ],
)
def test_a_class_is_of_its_module_s_file_or_of_its_functions(file: str, module: str, library: bool) -> None:
    # GIVEN a class that says a module, with functions from a file WHEN asked THEN the module's file counts, then these
    space: dict[str, Any] = {"__name__": module}
    exec(compile("class Kind:\n    rate = 1\n    def f(self): return 1", file, "exec"), space)
    kind = space["Kind"]
    assert _is_of_library(kind) is library


@pytest.mark.parametrize(
    ("dtype", "size", "stride", "offset", "length"),
    [
        (torch.float32, (2, 3), (8, 2), 1, 7),  # 14 numbers of 4 bytes in 7 of 8
        (torch.float32, (1,), (1,), 0, 1),
        (torch.float32, (2,), (1,), 1, 2),
        (torch.uint8, (3,), (1,), 6, 2),
        (torch.complex128, (2,), (1,), 0, 4),
        (torch.float32, (), (), 5, 3),
    ],
)
def test_of_another_type_no_more_is_looked_at_than_up_to_the_last_one(
    dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...], offset: int, length: int
) -> None:
    # GIVEN a complex tensor of the state, and a result of another type in it WHEN put together THEN from so many of its
    # numbers
    base = torch.randn(16, dtype=torch.complex64)
    owner: Any = SimpleNamespace(_bases={7: base})
    with mock.patch.object(graphed, "_as_strided", side_effect=torch.Tensor.as_strided) as look:
        found = Graphed._alias(owner, Alias(7, size, stride, offset, dtype))
    assert [each.args[1:] for each in look.call_args_list] == [((length,), (1,), 0), (size, stride, offset)]
    assert (found.dtype, tuple(found.shape), bits_of(found)) == (dtype, size, (False, False))
    assert found.data_ptr() == base.data_ptr() + offset * dtype.itemsize


def test_gradients_are_asked_in_c_where_all_parameters_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN kept gradients, and checks in C++ that say that nobody holds them
    from tests.unit.test_exact_kept import spec

    made = Kept(DRIVER, [spec(4, nbytes=16)] * 2)
    made.free()
    native = mock.Mock(unheld=mock.Mock(return_value=True))
    monkeypatch.setattr(kept, "checks", lambda: native)
    monkeypatch.setattr(kept, "_uses", lambda native: (1, 2, 3, 4))
    # WHEN asked THEN in C++, with all that is counted, unless parameters may hold others or one has too little memory
    assert made.free() == (made.addresses, False)
    assert native.unheld.mock_calls == [mock.call(made.tensors, made._storages, made._handles, 1, 2, 3, 4)]
    parameters = [torch.nn.Parameter(torch.ones(4)) for _ in range(2)]
    made.free(parameters)
    made._short.add(1)
    made.free()
    assert native.unheld.call_count == 1
    # AND what it does not say is asked in Python
    native.unheld.return_value = False
    held = [made.tensors[0]] * 3
    assert made.free()[1] is True
    assert made.tensors[0] is not held[0]


def test_references_are_counted_of_tensors_that_autograd_knows() -> None:
    # GIVEN inference mode or none WHEN an example is made THEN it is an ordinary tensor, with its gradient or without
    for mode in (torch.inference_mode, torch.enable_grad):
        with mode():
            for graded in (True, False):
                with kept._example(graded) as (held, storages, handles):
                    assert not held[0].is_inference()
                    assert len(held) == len(storages) == len(handles) == 1
                    assert storages[0]._cdata == handles[0]
