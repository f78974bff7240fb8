"""Words of a kernel's parameters at the very edges: of the parameters, of two allocations, of a closure."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from paramgraph_kit.capture import elementwise
from paramgraph_kit.capture.words import _Index, _meets_address, _resolve
from paramgraph_kit.driver.api import RawAllocation, RawNode
from paramgraph_kit.trace.model import NodeKind


@pytest.mark.parametrize(("length", "meets"), [(24, False), (25, True), (23, False)])
def test_an_address_that_is_cut_off_by_the_end_is_none(length: int, meets: bool) -> None:
    # GIVEN parameters whose last bytes begin an address that is not all there, or just all
    address = 0x1000_0000_0200
    parameters = (b"\xee" * 17 + address.to_bytes(8, "little"))[:length]
    nodes = (RawNode(NodeKind.KERNEL, "k", parameters, ()),) * 2
    # WHEN the word before the end is looked at THEN it meets that address where all of it is there
    assert _meets_address(nodes, (address.__eq__,) * 2, 16) is meets


def test_of_two_allocations_the_one_that_begins_there_is_meant() -> None:
    # GIVEN allocations that both hold an address, of which one begins there, and one that ends before another's begin
    rows = [
        RawAllocation(992, 100, 0),
        RawAllocation(1000, 100, 0),
        RawAllocation(2000, 8, 0),
        RawAllocation(2040, 8, 0),
    ]
    indices = _Index(rows), _Index(rows)
    # WHEN asked THEN the nearest at or before it, and one behind it only where there is none
    assert _resolve(indices, (1000, 1000), (1, 1)) == (1, 0)
    assert _resolve(indices, (1001, 1001), (1, 1)) == (1, 1)
    assert _resolve(indices, (2030, 2030), (1, 1)) == (2, 30)
    assert _resolve(indices, (1000, 1001), (1, 1)) is None


@pytest.mark.parametrize(("eight", "gap"), [(False, 4), (True, 8)])
def test_a_gap_behind_two_is_one_where_all_that_is_behind_it_has_room(
    eight: bool, gap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a closure that holds numbers of four bytes, or of eight, behind what is for two tensors
    monkeypatch.setattr(elementwise, "_HELD", re.compile("held"))
    monkeypatch.setattr(elementwise, "_EIGHT_BYTES", re.compile("eight"))
    kernel: Any = SimpleNamespace(name="held eight" if eight else "held", parameters=b"")
    at, needed = 16 + elementwise._BEHIND_TWO, elementwise._BEHIND_TWO + 2 * gap + 8
    # WHEN it has just the room for a gap, a number and an address THEN there is one, and with a byte less there is none
    for size, found in (
        (needed, set(range(at, at + gap))),
        (needed + 8, set(range(at, at + gap))),
        (needed - 1, set()),
    ):
        assert elementwise._unused_of_strided(kernel, 16, size) == found
