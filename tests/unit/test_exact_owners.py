"""Whose memory an address is: of outputs, of constants, of nobody, and how each is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paramgraph_kit.capture.pair import (
    Kind,
    Output,
    _Identity,
    _outputs,
    _owned,
    _owned_on_host,
    _Segments,
    _Spans,
    _static_owner,
    describe,
)
from paramgraph_kit.driver.api import RawAllocation
from paramgraph_kit.trace.errors import RefusedError

CPU = torch.device("cpu")
DRIVER: Any = SimpleNamespace(
    device=CPU,
    address_of=torch.Tensor.data_ptr,
    storage_of=lambda t: (t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()),
)


def test_a_constant_that_is_returned_is_the_same_one_or_another() -> None:
    # GIVEN tensors that are equal WHEN what returns them is compared THEN by identity, and with nothing else
    one, other = torch.ones(2), torch.ones(2)
    assert _Identity(one) == _Identity(one)
    assert _Identity(one) != _Identity(other)
    assert _Identity(one) != SimpleNamespace(tensor=one)
    assert _Identity(one) != one
    assert hash(_Identity(one)) == hash(_Identity(one)) != hash(_Identity(other))


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_an_address_belongs_to_a_constant_to_nobody_or_is_none(known: bool, inside: bool) -> None:
    # GIVEN segments of memory, constants in some, and a device that knows an address or not
    segments = _Segments([(1 << 20, 4096)])
    value = (1 << 20) + (256 if inside else 8192)
    constant = _Spans([(value, 16, "constant of the model")])

    def owner(owned: _Spans[str]) -> str | None:
        return _static_owner(value, owned, segments, lambda asked: asked == value and known)

    # WHEN asked whose it is THEN nobody's where it is no address at all
    if not inside and not known:
        assert owner(constant) is owner(_Spans([])) is None
        return
    # AND a constant's where one lies there
    assert owner(constant) == "constant of the model"
    # AND else it is refused, with the address, and whether it is none of the allocator's
    for others in (_Spans[str]([]), _Spans([(value + 1, 16, "another"), (value - 16, 16, "before")])):
        with pytest.raises(RefusedError) as caught:
            owner(others)
        assert caught.value.reason.code == "unowned-address"
        assert (caught.value.address, caught.value.outside) == (value, not inside)


def test_constants_are_owned_where_they_lie() -> None:
    # GIVEN constants on the device and elsewhere, and ranges of a recording's own WHEN asked THEN each by its storage
    here, there = torch.ones(4)[1:], torch.ones(2, device="meta")
    recording: Any = SimpleNamespace(static_ranges=[(1, 2, "generator")])
    address = here.untyped_storage().data_ptr()
    assert _owned(DRIVER, recording, [here, there]) == [(1, 2, "generator"), (address, 16, "constant of the model")]
    assert _owned_on_host(DRIVER, [here, there]) == [(address, 16, "constant of the model")]
    assert recording.static_ranges == [(1, 2, "generator")]


def outputs_of(result: Any, contains: Any = lambda address: True) -> list[Output]:
    """What a capture gives of a partition with one input, one buffer and one that was freed."""
    allocations = [
        RawAllocation(INPUT.untyped_storage().data_ptr(), 64, 0),
        RawAllocation(MADE.untyped_storage().data_ptr(), 64, 1),
        RawAllocation(FREED.untyped_storage().data_ptr(), 64, 1, 2),
    ]
    return _outputs(DRIVER, result, [7, INPUT], allocations, [1], contains)


INPUT, MADE, FREED, STRANGER = (torch.arange(16.0) for _ in range(4))


def test_an_output_is_an_argument_a_view_of_one_a_buffer_a_constant_or_a_value() -> None:
    # GIVEN what a partition may return WHEN taken THEN each is what it is, from where it begins
    found = outputs_of((INPUT, INPUT[3:], MADE[2:8:2], 5, None, MADE[:0], MADE[1:]._neg_view()))
    assert found == [
        Output(Kind.ARGUMENT, 1),
        Output(Kind.INPUT, 1, 12, (13,), (1,), torch.float32),
        Output(Kind.FRESH, 1, 8, (3,), (2,), torch.float32),
        Output(Kind.FIXED, value=5),
        Output(Kind.FIXED, value=None),
        Output(Kind.FRESH, -1, 0, (0,), (1,), torch.float32),
        Output(Kind.FRESH, 1, 4, (15,), (1,), torch.float32, bits=(False, True)),
    ]
    # AND what lies elsewhere is that very tensor
    (fixed,) = outputs_of([STRANGER], lambda address: False)
    assert fixed == Output(Kind.FIXED, value=_Identity(STRANGER))


@pytest.mark.parametrize(
    ("result", "code", "said"),
    [
        (3, "unknown-output", "the partition returned a int"),
        ([FREED], "unknown-output", "output 0 lies in memory that nothing allocated"),
        ([1, STRANGER], "unknown-output", "output 1 lies in memory that nothing allocated"),
        ([torch.eye(2).to_sparse()], "unknown-output", "output 0 is a sparse tensor, which a launch cannot make"),
        ([torch.ones(2, device="meta")], "host-output", "output 0 is on meta: its value would be frozen"),
        ([torch.ones(0, device="meta")], "host-output", "output 0 is on meta: its value would be frozen"),
    ],
)
def test_an_output_of_which_nobody_knows_where_it_lies_is_refused(result: Any, code: str, said: str) -> None:
    # GIVEN such a result WHEN taken THEN it is refused in these words
    with pytest.raises(RefusedError) as caught:
        outputs_of(result)
    assert (caught.value.reason.code, caught.value.reason.message) == (code, said)


def test_inputs_are_described_by_what_a_graph_depends_on_and_refused_by_what_it_cannot_take() -> None:
    # GIVEN inputs of all kinds WHEN described THEN sizes, strides, bytes from first to last, and lazy bits
    x = torch.zeros(64)
    found = describe(DRIVER, [x[:6].view(2, 3), 3, x[1:9:2], x[:0], x[2:3].view(()), x[:4]._neg_view()])
    assert [spec and (spec.size, spec.stride, spec.nbytes, spec.bits) for spec in found] == [
        ((2, 3), (3, 1), 24, (False, False)),
        None,
        ((4,), (2,), 28, (False, False)),
        ((0,), (1,), 0, (False, False)),
        ((), (), 4, (False, False)),
        ((4,), (1,), 16, (False, True)),
    ]
    for stranger, code, said in (
        (torch.ones(2, device="meta"), "foreign-input", "input 1 is on meta, the graph on cpu"),
        (torch.eye(2).to_sparse(), "unknown-input", "input 1 is a sparse tensor"),
    ):
        with pytest.raises(RefusedError) as caught:
            describe(DRIVER, [3, stranger])
        assert caught.value.reason.code == code
        assert caught.value.reason.message.startswith(said)
