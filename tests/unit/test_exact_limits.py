"""Where limits are, to the byte and to the one: what is just allowed, and what is one too many."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.capture.elementwise import is_host_half
from paramgraph_kit.capture.pair import InputSpec
from paramgraph_kit.capture.words import _Index, notable_words
from paramgraph_kit.driver.api import RawAllocation
from paramgraph_kit.driver.select import driver
from paramgraph_kit.launch import launcher as launching
from paramgraph_kit.launch.plan import Fresh, Shelf, make_plan, spans
from paramgraph_kit.step import release
from paramgraph_kit.step.arguments import Arguments
from paramgraph_kit.step.observe import value_of
from paramgraph_kit.step.spent import is_spent
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Reason
from tests.integration.launch_bench import codes, launcher_of, launches, moved
from tests.unit.test_capture_words import node, pair
from tests.unit.test_launch_plan import captured, chain

MIB = 1 << 20


@pytest.mark.parametrize(
    ("sizes", "together", "shelved"),
    [
        ([8, 8, 8], {0, 1, 2}, {0: 0, 1: 512, 2: 1024}),
        ([8, 8, 8], {0, 2}, {}),
        ([8, 8], {0, 1}, {}),
        ([MIB, 513, 512, 0, 8], {0, 1, 2, 3, 4}, {0: 0, 1: MIB, 2: MIB + 1024, 3: MIB + 1536, 4: MIB + 2048}),
        ([MIB + 1, 8, 8, 8], {0, 1, 2, 3}, {1: 0, 2: 512, 3: 1024}),
        ([MIB + 1, 8, 8], {0, 1, 2}, {}),
    ],
)
def test_three_outputs_of_a_mebibyte_at_most_that_die_together_share_a_shelf(
    sizes: list[int], together: set[int], shelved: dict[int, int]
) -> None:
    # GIVEN outputs of some sizes, all or some of which live and die together WHEN planned
    count = len(sizes)
    plan = make_plan(captured(chain(1), sizes, [[0]] * count, 0, range(count)), together=frozenset(together))
    # THEN the small ones lie in one allocation, each at a multiple of 512, if there are three
    assert [(p.slot, p.offset) for p in plan.placements] == [
        (Shelf(), shelved[n]) if n in shelved else (Fresh(n), 0) for n in range(count)
    ]
    assert plan.shelf_bytes == (max(shelved.values()) + 512 if shelved else 0)


def test_two_mebibytes_from_an_allocation_an_address_is_no_neighbour_any_more() -> None:
    # GIVEN an allocation WHEN addresses before and behind it are looked up THEN they are its neighbours up to there
    first, last, reach = 1 << 40, (1 << 40) + 511, 2 << 20
    index = _Index([RawAllocation(first, 512, 0)])
    near = [first - reach + 1, first - 1, first, last, last + 1, last + reach - 1]
    assert [index.neighbours(address, 0) for address in near] == [[0]] * 6
    assert [index.neighbours(address, 0) for address in (first - reach, last + reach)] == [[], []]
    assert [index.covering(address, 0) for address in near] == [[], [], [0], [0], [], []]


def test_a_number_is_no_address_below_the_pages_that_are_never_mapped_nor_beyond_57_bits() -> None:
    # GIVEN words that are the same in both captures WHEN compared THEN owners are looked for of what may be an address
    values = [0, 1, (1 << 16) - 1, 1 << 16, 1 << 40, (1 << 57) - 1, 1 << 57, (1 << 64) - 1]
    asked: list[int] = []
    notable_words(*pair([(node(*values), node(*values))], []), asked.append)
    assert asked == [1 << 16, 1 << 40, (1 << 57) - 1]


@pytest.mark.parametrize(("more", "found"), [(9_998, True), (9_999, False)])
def test_ten_thousand_operations_are_looked_at_for_one_whose_backward_pass_is_done(more: int, found: bool) -> None:
    # GIVEN a loss with so many operations behind the first, its backward pass done
    x = torch.ones(2, requires_grad=True)
    first = x.square()
    loss = first.sum()
    torch.autograd.backward([first], [torch.ones(2)])
    for _ in range(more):
        loss = loss + 1
    # WHEN asked THEN the first is the ten thousandth at most that is looked at
    assert is_spent(loss) is found


@pytest.mark.parametrize(("which", "named"), [(0, True), (15, True), (16, False)])
def test_holders_of_sixteen_tensors_are_looked_for(which: int, named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN seventeen tensors with gradients, of which somebody holds one
    tensors = [torch.ones(2, requires_grad=True) * 2 for _ in range(17)]
    holders: list[Any] = [{"loss": tensors[which]}]
    known = SimpleNamespace(
        get_objects=lambda: [gc, 3, *tensors], get_referrers=lambda x: holders if x is tensors[which] else []
    )
    monkeypatch.setattr(release, "gc", known)
    # WHEN a refusal is told THEN that is named if it is among the first sixteen
    said = release.told(Reason("legacy-stream", "refused"), torch.device("cpu")).message
    if named:
        text = "a tensor of [2] that was computed with gradients is still held (by dict): del it, or .detach() it"
    else:
        text = "something that was computed from its parameters with gradients is still held: del it, or keep its"
        text += " .detach()"
    assert said == f"refused; {text}"


def test_a_tensor_of_the_host_is_compared_by_value_up_to_four_kibibytes() -> None:
    # GIVEN tensors of the host WHEN looked at THEN the bytes of the small ones are kept, however they lie
    for size, kept in ((0, 0), (4096, 4096), (4097, 0)):
        small = torch.ones(size, dtype=torch.uint8)
        assert value_of(small)[2] == bytes([1] * kept)
        assert value_of(small)[:2] == (small.data_ptr(), 0)
    turned = torch.arange(6, dtype=torch.uint8).reshape(2, 3).t()
    assert value_of(turned)[2] == bytes([0, 3, 1, 4, 2, 5])
    assert value_of(torch.ones(1024))[2] == b"\0\0\x80\x3f" * 1024
    assert value_of(torch.ones(1025))[2] == b""
    with torch.inference_mode():
        assert value_of(torch.ones(1))[1] is None


def test_four_calls_are_remembered_to_compare_others_with() -> None:
    # GIVEN calls that differ WHEN their keys are made THEN the last four are remembered, the latest first
    arguments = Arguments(driver())
    keys = [arguments.of((torch.ones(n, device=pgk.device()),), {})[0] for n in range(2, 8)]
    assert [look.key for look in arguments._looks] == keys[:1:-1]


def test_another_thread_s_capture_is_waited_for_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a capture of another thread's WHEN a new launcher is called THEN it waits for so long
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(launching, "capturing", SimpleNamespace(acquire=lambda **how: asked.append(how)))
    monkeypatch.setattr(launching, "_capturer", [])
    launcher_of(lambda x: (x + 1,))([torch.ones(2, device=pgk.device())])
    assert asked == [{"timeout": 60.0}]


def test_who_launched_a_node_is_asked_where_a_node_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN errors of captures, of which one names a node, and code that is cut another way, or is not
    asked: list[int] = []

    def launched_by(*given: Any) -> Any:
        asked.append(given[-1])
        if given[-1] == 9:
            raise ValueError("whatever happens there")
        return "an operation", 0

    monkeypatch.setattr(launching, "launched_by", launched_by)
    told: list[BaseException] = []
    launcher = launcher_of(lambda x: (x + 1,), recut=lambda error: told.append(error))
    specs: list[InputSpec | None] = []
    errors: list[Any] = [RefusedError(Reason("unknown-node", str(n))) for n in range(4)]
    errors[1].position, errors[2].position, errors[3].position = 0, 7, 9
    # WHEN looked for other code THEN the recording is made again for those that name one, and nothing else is lost
    for error in (*errors, RuntimeError("no")):
        assert not launcher._recut(error, specs, [])
    assert asked == [0, 7, 9]
    assert [error.launched_by for error in errors] == [None, ("an operation", 0), ("an operation", 0), None]
    assert [type(error) for error in told] == [RefusedError] * 4 + [RuntimeError]


def test_upper_halves_of_the_host_s_addresses_are_those_of_heaps_stacks_and_libraries() -> None:
    # GIVEN upper halves around those that a process's own addresses have WHEN asked THEN from the first to the last
    inside = (0x5500, 0x56FF, 0x7E00, 0x7FFF)
    outside = (0, 0x54FF, 0x5700, 0x7DFF, 0x8000, 1 << 31)
    assert [is_host_half(half) for half in (*inside, *outside)] == [True] * len(inside) + [False] * len(outside)


def test_a_replaced_function_keeps_graphs_from_being_made_and_judged_and_not_from_being_launched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN a launcher whose first graph has shown all that it has to WHEN a function of torch's is replaced
    launcher = launcher_of(lambda x: (x + 1,))
    for n in range(3):
        launcher([moved(4, seed=n)])
    assert launches(launcher) == 2
    monkeypatch.setattr(launching, "replaced", lambda: Reason("replaced", "a function of torch's is replaced"))
    # THEN that is launched
    launcher([moved(4)])
    assert (launches(launcher), codes(launcher)) == (3, [])
    # AND no graph is made, and none judged that has not shown it
    launcher([moved(5)[1:]])
    assert (len(launcher.variants), codes(launcher)) == (1, ["replaced"])
    (variant,) = launcher.variants.values()
    assert variant is not None
    variant.probation._always = True
    launcher.current = launcher._select
    launcher([moved(4)])
    assert launches(launcher) == 3


@pytest.mark.parametrize(
    ("sizes", "offsets", "blocks"),
    [
        ([512, 512], [4096, 5120], [(4096, 5632)]),  # of one block, with a gap
        ([512, 512], [4096, 8192], [(4096, 4608), (8192, 8704)]),
        ([512, 512], [3584, 4096], [(3584, 4096), (4096, 4608)]),
        ([8192, 512], [4096, 8192], [(4096, 12288)]),  # lies in what is larger than a block
        ([8192, 512], [4096, 12288], [(4096, 12288), (12288, 12800)]),
        ([1024, 512], [4096, 4096], [(4096, 5120)]),
    ],
)
def test_what_begins_in_one_block_is_taken_in_one_piece(
    sizes: list[int], offsets: list[int], blocks: list[tuple[int, int]]
) -> None:
    # GIVEN buffers that were packed in blocks of 4 KiB WHEN cut THEN each block is one piece, as far as it is used
    assert spans(sizes, offsets, 4096) == [range(*block) for block in blocks]
