"""Where workspace lies in what is lent, what stages hold, and who may read an address: to the byte and to the node."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paramgraph_kit.launch import launcher as launching
from paramgraph_kit.launch.dying import dies_here
from paramgraph_kit.launch.launcher import PATIENCE_S
from paramgraph_kit.launch.lent import LEAST, _room, lend
from paramgraph_kit.launch.plan import (
    Order,
    Placement,
    _beside,
    _rounded,
    _running,
    _within_one,
    conflicts,
    make_plan,
    needs_of,
    pack,
    spans,
)
from paramgraph_kit.launch.room import share_room
from paramgraph_kit.launch.stages import Lives, _greedy, _profiles, cut
from paramgraph_kit.trace.model import Role, Word, WordKind
from tests.integration.launch_bench import launcher_of, moved
from tests.unit.test_launch_plan import captured, chain, nodes_of

MIB = 1 << 20


def order_of(uses: dict[int, list[int]]) -> Order:
    return Order(nodes_of(chain(1 + max(n for found in uses.values() for n in found))), uses)


@pytest.mark.parametrize(
    ("guests", "size", "whole", "place"),
    [
        ([], 512, 512, 0),
        ([], 513, 512, None),
        ([(512, 1024, 1)], 512, 1024, 0),  # the gap is just enough
        ([(512, 1024, 1)], 513, 1537, 1024),
        ([(0, 100, 1)], 512, 1024, 512),  # at a multiple of the grain behind it
        ([(0, 100, 1)], 512, 1023, None),
        ([(0, 1536, 1), (512, 600, 1)], 512, 2048, 1536),  # the first of the two ends later
        ([(0, 512, 1), (1024, 1536, 1)], 512, 4096, 512),
        ([(0, 512, 2), (512, 1024, 1)], 512, 4096, 0),  # of another time
        ([(0, 512, 3), (512, 1024, 1)], 512, 4096, 0),
    ],
)
def test_what_is_lent_is_used_from_the_first_room_on(
    guests: list[tuple[int, int, int]], size: int, whole: int, place: int | None
) -> None:
    # GIVEN guests, of which the first lives with it, the second before it and the third after it
    order = order_of({0: [2, 3], 1: [1, 2], 2: [0, 1], 3: [4]})
    # WHEN looked for THEN the first room beside those of its time is found
    assert _room(order, 0, size, whole, guests, 512) == place


def test_one_mebibyte_is_worth_a_place_in_what_is_lent_and_no_less() -> None:
    # GIVEN memory that is lent and a buffer that is gone by then, each a mebibyte, or a byte less
    order = order_of({0: [3], 1: [0, 1]})
    assert LEAST == MIB
    for lent, size, found in (
        (MIB, MIB, {1: (0, 0)}),
        (MIB - 1, MIB - 1, {}),
        (MIB, MIB - 1, {}),
        (MIB, MIB + 1, {}),
        (MIB + 1, MIB + 1, {1: (0, 0)}),
    ):
        # WHEN asked THEN that decides
        assert lend(order, [lent, size], [1], {0: lent}, 512) == found
    # AND what is still used when the other is written stays away
    assert lend(order_of({0: [1], 1: [0, 1]}), [MIB, MIB], [1], {0: MIB}, 512) == {}


def test_the_largest_is_placed_first_and_in_the_smallest_that_has_room() -> None:
    # GIVEN two hosts and four guests, of which three live at one time WHEN placed
    order = order_of({0: [9], 1: [8], 2: [0, 1], 3: [0, 1], 4: [0, 1], 5: [2]})
    sizes = [4 * MIB, 8 * MIB, 3 * MIB, 5 * MIB + 1, MIB, 3 * MIB]
    # THEN each lies beside those of its time, at multiples of the grain, the one of a later time where another was
    found = lend(order, sizes, [2, 3, 4, 5], {0: sizes[0], 1: sizes[1]}, 512)
    assert found == {3: (1, 0), 2: (0, 0), 5: (0, 0), 4: (0, 3 * MIB)}


def test_profiles_count_bytes_at_each_node() -> None:
    # GIVEN lives of all kinds over three nodes WHEN counted THEN bytes are held to their last node, from their first on
    lives = Lives(3, dying=[(5, 0), (7, 2)], made=[(11, 0), (13, 2), (17, 2)], inner=[(19, 0, 1), (23, 1, 2)])
    held, made, count, inner = _profiles(lives)
    assert held == [12, 7, 7, 0]
    assert made == [0, 11, 11, 41]
    assert count == [0, 1, 1, 3]
    assert inner == [19, 42, 23, 0]


@pytest.mark.parametrize(
    ("limit", "many", "stages"),
    [
        (100, 64, [(0, 3)]),
        (41 + 42 + 12, 64, [(0, 3)]),
        (41 + 42 + 11, 64, [(0, 2), (2, 3)]),
        (100, 3, [(0, 3)]),
        (100, 2, [(0, 2), (2, 3)]),
        (12 + 11 + 42, 64, [(0, 2), (2, 3)]),
        (12 + 11 + 41, 64, [(0, 1), (1, 2), (2, 3)]),
    ],
)
def test_a_stage_ends_before_the_byte_and_the_tensor_too_many(limit: int, many: int, stages: list[Any]) -> None:
    # GIVEN profiles WHEN cut THEN a stage takes just what it may
    profiles = [12, 7, 7, 0], [0, 11, 11, 41], [0, 1, 1, 3], [19, 42, 23, 0]
    assert _greedy(*profiles, limit, many) == [range(*stage) for stage in stages]


def test_one_stage_where_no_more_are_wanted_or_there_is_one_node() -> None:
    # GIVEN what would be cut in two WHEN one is wanted, or nothing can be cut THEN it is one
    lives = Lives(4, dying=[(99 * MIB, 1), (99 * MIB, 3)], made=[(99 * MIB, 1), (99 * MIB, 3)], inner=[])
    assert [len(cut(lives, most)) for most in (0, 1, 2, 3)] == [1, 1, 2, 2]
    assert cut(Lives(1, dying=[], made=[(99 * MIB, 0)] * 2, inner=[]), 8) == [range(1)]


def test_an_address_is_read_by_who_reads_the_table_after_it_may_be_written_there() -> None:
    # GIVEN an input and two tables that one kernel addresses, which may write addresses, and a word that names nobody
    found = captured(chain(5), [512] * 4, [[1], [0], [1, 3], [1, 2, 4]], 2, [])
    found.words[1] = (*found.words[1], Word(64, WordKind.POINTER, None, 0), Word(72, WordKind.SCALAR, value=1))
    nodes = found.recording.nodes
    nodes[1].writes_addresses, nodes[2].writes_addresses = True, False
    for n in (0, 3, 4):
        nodes[n].writes_addresses = False
    # WHEN asked THEN both tables may hold the input's address from there on
    assert {i: tables for i, tables in _beside(found, 2).items() if i < 2} == {0: {2: 1, 3: 1}}
    # AND the input is needed until the last that reads one of them
    assert needs_of(found)[0] == [1, 2, 3, 4]
    assert list(needs_of(found)[1]) == [0]


def test_blocks_are_packed_to_the_grain_and_to_the_block() -> None:
    # GIVEN sizes around the grain WHEN rounded THEN nothing takes a grain, and a byte more than one two
    assert [_rounded(n) for n in (0, 1, 511, 512, 513)] == [512, 512, 512, 512, 1024]
    # AND a buffer lies in one block, or begins at one
    places = [
        _within_one(at, size, 4096) for at, size in ((0, 9999), (4096, 9999), (512, 3584), (512, 3585), (5000, 1))
    ]
    assert places == [0, 4096, 512, 4096, 5000]
    # AND the tightest gap is taken
    sizes = [2048, 1024, 512, 512, 512]
    apart = [0b11110, 0b11101, 0b11011, 0b10111, 0b01111]
    assert pack(sizes, apart) == ([0, 2048, 3072, 3584, 4096], 4608)
    assert pack([512, 512], [0, 0]) == ([0, 0], 512)
    assert pack([], []) == ([], 0)
    assert spans([512, 0, 513], [0, 512, 1024], most=1024) == [range(1024), range(1024, 2048)]
    assert spans([2048, 512], [0, 2048], most=1024) == [range(2048), range(2048, 2560)]


def test_who_meets_whom_on_a_chain() -> None:
    # GIVEN lives that touch, overlap and lie apart WHEN asked THEN they conflict where they have a node in common
    order = order_of({0: [0, 1], 1: [1, 2], 2: [2, 3], 3: [3]})
    assert conflicts(order, [0, 1, 2, 3]) == [0b0010, 0b0101, 0b1010, 0b0100]
    assert conflicts(order, [0, 2]) == [0, 0]
    assert conflicts(order, []) == []
    assert _running([5, 3, 5]) == [0, 0b010, 0b011, 0b111]
    assert [order.precedes(a, b) for a, b in ((0, 1), (0, 2), (2, 0))] == [False, True, False]


def test_blocks_of_graphs_that_take_turns_are_alike_by_stage_and_number() -> None:
    # GIVEN plans with two blocks in one stage, one of which is an eighth of the other's or a byte more
    def turn(*sizes: int) -> tuple[Any, Any]:
        blocks = [SimpleNamespace(nbytes=n, first=0, last=0) for n in sizes]
        return SimpleNamespace(blocks=blocks, stages=[None]), SimpleNamespace(rooms=[*sizes])

    turns = [turn(8000, 100), turn(1000, 90), turn(999, 0)]
    # WHEN they share THEN each takes the most of its place, but for what needs less than an eighth of it
    share_room(turns)
    assert [state.rooms for _, state in turns] == [[8000, 100], [8000, 100], [999, 0]]


@pytest.mark.parametrize("shared", ["nothing", "detached", "storage", "set"])
def test_memory_that_another_tensor_or_a_storage_holds_does_not_die(shared: str) -> None:
    # GIVEN a tensor that only the call's list holds, and who else holds its storage
    inputs: list[Any] = [torch.ones(4)]
    holders: dict[str, Callable[[], list[Any]]] = {
        "nothing": list,
        "detached": lambda: [inputs[0].detach()],
        "storage": lambda: [inputs[0].untyped_storage()],
        "set": lambda: [torch.empty(0).set_(inputs[0].untyped_storage())],
    }
    other = holders[shared]()
    # WHEN asked THEN its memory is free after the call where nobody does
    assert dies_here(inputs, 0) is (not other)
    other.clear()
    assert dies_here(inputs, 0)


class Lock:
    """A lock that another thread holds, and how it was asked for."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def acquire(self, **how: Any) -> bool:
        self.asked.append(how)
        return False


def test_code_that_has_never_run_waits_for_another_thread_s_capture_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN a capture of another thread's, then one of this thread's own WHEN a new launcher is called
    for capturer, first in (([], {"timeout": PATIENCE_S}), ([threading.get_ident()], {"blocking": False})):
        lock = Lock()
        monkeypatch.setattr(launching, "capturing", lock)
        monkeypatch.setattr(launching, "_capturer", capturer)
        launcher = launcher_of(lambda x: (x + 1,))
        for _ in range(2):
            assert launcher([moved(4)])[0].shape == (4,)
        # THEN its first call waits, unless it would wait for itself, and no later one does
        assert lock.asked == [first, {"blocking": False}]


def test_a_launcher_that_was_paused_launches_again() -> None:
    # GIVEN a launcher WHEN paused and resumed THEN it is as before
    launcher = launcher_of(lambda x: (x + 1,))
    launcher.pause()
    assert launcher.paused
    assert launcher.current == launcher._ungraphed
    launcher.resume()
    assert not launcher.paused
    assert launcher.current == launcher._select


def test_what_no_node_addresses_lies_nowhere() -> None:
    # GIVEN an allocation that nobody addresses WHEN planned THEN it has no slot, and no offset in one
    plan = make_plan(captured(chain(2), [512, 512, 512], [[0], [], [0, 1]], 0, [0]))
    assert plan.placements[1] == Placement(Role.WORKSPACE, None, 0)
    assert [stage.spent for stage in plan.stages] == [()]
