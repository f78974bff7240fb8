from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from paramgraph_kit.capture.pair import Captured, InputSpec, Kind, Output
from paramgraph_kit.driver.api import Binding, RawAllocation, RawNode, Recording
from paramgraph_kit.launch.generate import State
from paramgraph_kit.launch.lent import LEAST
from paramgraph_kit.launch.plan import (
    GRAIN,
    SMALL,
    Block,
    Fresh,
    Input,
    Order,
    Placement,
    Plan,
    Shelf,
    Stage,
    Workspace,
    conflicts,
    make_plan,
    needs_of,
    pack,
    spans,
    uses_of,
)
from paramgraph_kit.launch.room import share_room
from paramgraph_kit.launch.stages import Lives, cut
from paramgraph_kit.trace.model import NodeKind, Role, Word, WordKind

Deps = Sequence[tuple[int, ...]]


def chain(count: int) -> list[tuple[int, ...]]:
    return [(i - 1,) if i else () for i in range(count)]


def nodes_of(deps: Deps) -> list[RawNode]:
    return [RawNode(NodeKind.KERNEL, f"k{i}", b"", d, position=i) for i, d in enumerate(deps)]


def captured(
    deps: Deps, sizes: Sequence[int], uses: Sequence[Sequence[int]], inputs: int, outputs: Sequence[int]
) -> Captured:
    """A capture in which allocation ``a`` is addressed by the nodes ``uses[a]``, 8 bytes into it, and freed after."""
    words: list[list[Word]] = [[] for _ in deps]
    inner = set(range(inputs, len(sizes))) - set(outputs)
    for a, users in enumerate(uses):
        for n in users:
            words[n].append(Word(8 * len(words[n]), WordKind.POINTER, a, 8))
    return Captured(
        recording=Recording(nodes_of(deps), [], None, None),
        words=[tuple(w) for w in words],
        allocations=[
            RawAllocation(1 << 40 | a << 20, size, 0, max(uses[a], default=0) + 1 if a in inner else None)
            for a, size in enumerate(sizes)
        ],
        input_positions=list(range(inputs)),
        outputs=[Output(Kind.FRESH, a, 0, (2,), (1,), torch.float32) for a in outputs],
    )


def conflicts_of(deps: Deps, uses: Sequence[Sequence[int]]) -> list[int]:
    return conflicts(Order(nodes_of(deps), dict(enumerate(uses))), range(len(uses)))


def places(bits: int) -> list[int]:
    return [n for n in range(bits.bit_length()) if bits >> n & 1]


def ordered(deps: Deps) -> list[set[int]]:
    """By plain search: the nodes that precede each node."""
    before: list[set[int]] = []
    for d in deps:
        before.append(set(d).union(*(before[i] for i in d)))
    return before


def may_share(deps: Deps, a: Sequence[int], b: Sequence[int]) -> bool:
    """The rule itself: every use of one precedes every use of the other."""
    before = ordered(deps)
    return all(x in before[y] for x in a for y in b) or all(y in before[x] for x in a for y in b)


def random_deps(rng: random.Random, count: int, branches: int) -> list[tuple[int, ...]]:
    """Streams that fork and join at random: each node follows its stream's tail, and sometimes another stream's."""
    tails: list[int | None] = [None] * branches
    deps = []
    for i in range(count):
        stream = rng.randrange(branches)
        found = {tails[stream], rng.choice(tails) if rng.random() < 0.3 else None} - {None}
        deps.append(tuple(sorted(d for d in found if d is not None)))
        tails[stream] = i
    return deps


def random_uses(rng: random.Random, nodes: int, buffers: int) -> list[list[int]]:
    found = []
    for _ in range(buffers):
        first = rng.randrange(nodes)
        near = range(first, min(nodes, first + rng.choice([1, 3, 10, nodes])))
        found.append(sorted({first, *rng.choices(near, k=rng.randrange(4))}))
    return found


@pytest.mark.parametrize("branches", [1, 2, 4])
@pytest.mark.parametrize("seed", range(10))
def test_a_workspace_never_shares_bytes_between_buffers_in_conflict(seed: int, branches: int) -> None:
    # GIVEN a random graph of one or more streams and random buffers
    rng = random.Random(seed)
    count = rng.randrange(5, 60)
    deps = random_deps(rng, count, branches)
    uses = random_uses(rng, count, rng.randrange(1, 40))
    sizes = [rng.choice([0, 1, 511, 512, 513, 5_000, 70_000]) for _ in uses]
    # WHEN conflicts are found THEN they are those of the rule
    found = conflicts_of(deps, uses)
    expected = [
        {b for b in range(len(uses)) if b != a and not may_share(deps, uses[a], uses[b])} for a in range(len(uses))
    ]
    rows = list(map(places, found))
    assert [set(row) for row in rows] == expected
    # WHEN the buffers are packed
    offsets, total = pack(sizes, found)
    ends = [offset + size for offset, size in zip(offsets, sizes, strict=True)]
    # THEN none in conflict overlap, all start on the grain, and all lie within the workspace
    for a, row in enumerate(rows):
        assert all(ends[a] <= offsets[b] or ends[b] <= offsets[a] for b in row if sizes[a] and sizes[b])
    assert all(offset % GRAIN == 0 for offset in offsets)
    assert max(ends) <= total
    # AND it is no larger than all buffers side by side, nor smaller than what one node needs at once
    assert total <= sum(-(-max(s, 1) // GRAIN) * GRAIN for s in sizes)
    if branches == 1:
        live = [sum(s for s, u in zip(sizes, uses, strict=True) if u[0] <= n <= u[-1]) for n in range(count)]
        assert total >= max(live)


def test_a_long_graphs_workspace_is_what_lives_at_once() -> None:
    # GIVEN 300 buffers of one size in a chain, each met by its two neighbours only
    uses = [[n, n + 1] for n in range(300)]
    # WHEN they are packed THEN two take turns in the room of two
    offsets, total = pack([512] * 300, conflicts_of(chain(301), uses))
    assert (total, offsets) == (1024, [0, 512] * 150)


@pytest.mark.parametrize("seed", range(10))
def test_a_workspace_comes_in_blocks_that_an_allocator_has(seed: int) -> None:
    # GIVEN random buffers, a few of them larger than a block may be
    rng = random.Random(seed)
    most = 8 * GRAIN
    count = rng.randrange(5, 60)
    uses = random_uses(rng, count, rng.randrange(1, 40))
    sizes = [GRAIN * rng.choice([1, 1, 2, 3, 5, 8, 20]) for _ in uses]
    found = conflicts_of(chain(count), uses)
    # WHEN they are packed for blocks of at most so much
    offsets, total = pack(sizes, found, most)
    blocks = spans(sizes, offsets, most)
    # THEN none in conflict overlap, and each lies in one block
    ends = [offset + size for offset, size in zip(offsets, sizes, strict=True)]
    for a, row in enumerate(map(places, found)):
        assert all(ends[a] <= offsets[b] or ends[b] <= offsets[a] for b in row)
    inside = [[n for n, block in enumerate(blocks) if block.start <= at and end <= block.stop]
              for at, end in zip(offsets, ends, strict=True)]  # fmt: skip
    assert all(len(row) == 1 for row in inside)
    # AND a block is larger only where it has a buffer that is larger
    large = {row[0] for row, size in zip(inside, sizes, strict=True) if size > most}
    assert all(len(block) <= most for n, block in enumerate(blocks) if n not in large)
    assert sum(map(len, blocks)) <= total


@pytest.mark.parametrize("seed", range(10))
def test_a_chain_and_a_general_graph_of_the_same_order_agree(seed: int) -> None:
    # GIVEN a chain, and the same chain with an edge more, which takes the general way
    rng = random.Random(seed)
    count = 50
    uses = random_uses(rng, count, 30)
    deps = chain(count)
    redundant = [*deps[:-1], (0, count - 2)]
    # WHEN both are asked for conflicts THEN the answers are the same
    plain, general = (conflicts_of(d, uses) for d in (deps, redundant))
    assert plain == general


def test_branches_share_bytes_only_with_what_comes_before_the_fork_or_after_the_join() -> None:
    # GIVEN a fork into 1 -> 2 and 3 -> 4, joined at 5: one buffer on each branch, one before and one after
    deps: Deps = [(), (0,), (1,), (0,), (3,), (2, 4)]
    uses = [[1, 2], [3, 4], [0], [5]]
    # WHEN conflicts are found THEN the branches' buffers conflict with one another only, though 2 was recorded before 3
    assert list(map(places, conflicts_of(deps, uses))) == [[1], [0], [], []]
    # AND the workspace has room for both branches, and the others share it
    assert pack([512, 512, 1024, 1024], conflicts_of(deps, uses)) == ([0, 512, 0, 0], 1024)


def test_lowered_nodes_that_come_last_in_creation_are_where_their_edges_say() -> None:
    # GIVEN a chain a -> fill -> b, whose fill was made last and so has a late position, and a buffer used by fill and b
    plan = make_plan(captured([(), (0,), (1,)], [512, 512, 512], [[0], [1, 2], [0, 1]], 0, []))
    for node in plan.placements:
        assert node.role is Role.WORKSPACE
    late = captured([(), (0,), (1,)], [512, 512, 512], [[0], [1, 2], [0, 1]], 0, [])
    late.recording.nodes[1].position = 99
    # WHEN it is planned THEN edges alone decide
    assert make_plan(late) == plan
    # AND the first buffer shares bytes with the one that is used only after it
    assert plan.workspace_bytes == 1024
    assert plan.placements[0].offset == plan.placements[1].offset


def test_slots_are_inputs_then_outputs_then_the_workspace() -> None:
    # GIVEN two inputs, a temporary, an output, something that no node addresses, and two nodes
    made = captured(chain(2), [64, 64, 600, 32, 8], [[0], [1], [0, 1], [1], []], 2, [3])
    # WHEN it is planned THEN each has its slot and each word its binding
    assert make_plan(made) == Plan(
        placements=(
            Placement(Role.INPUT, Input(0)),
            Placement(Role.INPUT, Input(1)),
            Placement(Role.WORKSPACE, Block(0), 0),
            Placement(Role.OUTPUT, Fresh(3)),
            Placement(Role.WORKSPACE, None, 0),
        ),
        slots=(Input(0), Input(1), Fresh(3), Block(0)),
        shelf_bytes=0,
        blocks=(Workspace(1024, 0, 0),),
        stages=(
            Stage(
                range(2),
                slots=(Input(0), Input(1), Fresh(3), Block(0)),
                bindings=(
                    Binding(0, 0, 0, 8),
                    Binding(0, 8, 3, 8),
                    Binding(1, 0, 1, 8),
                    Binding(1, 8, 3, 8),
                    Binding(1, 16, 2, 8),
                ),
                fresh=(3,),
                spent=(),
            ),
        ),
    )


def test_without_temporaries_there_is_no_workspace_and_no_slot_for_it() -> None:
    # GIVEN one kernel from an input to an output that is returned twice
    made = captured(chain(1), [64, 64], [[0], [0]], 1, [1, 1])
    # WHEN it is planned THEN there are two slots and nothing else
    plan = make_plan(made)
    assert (plan.workspace_bytes, plan.stages[0].slots, plan.fresh) == (0, (Input(0), Fresh(1)), (1,))


def test_a_node_that_addresses_a_buffer_twice_uses_it_once() -> None:
    # GIVEN one node with two words into one allocation
    made = captured(chain(1), [64], [[0]], 0, [])
    made.words[0] = (*made.words[0], Word(8, WordKind.POINTER, 0, 0), Word(16, WordKind.SCALAR, value=3))
    # WHEN its uses are counted THEN there is one, but both words are bound
    assert uses_of(made) == {0: [0]}
    assert [b.offset for b in make_plan(made).stages[0].bindings] == [0, 8]


def test_memory_whose_address_is_in_a_table_stays_as_long_as_the_captured_code_held_it() -> None:
    # GIVEN what a batched solver does: factors are made (0), their address is written to a table (1), the result's to
    # another (2), and a kernel reads through both tables (3) before the code frees factors and tables
    made = captured(chain(4), [512, 512, 512, 512], [[0, 1], [1, 3], [2, 3], [2]], 0, [3])
    for allocation in made.allocations[:3]:
        allocation.died = 4
    # WHEN planned THEN the factors share bytes with neither table, although nobody addresses them after node 1
    plan = make_plan(made)
    assert plan.workspace_bytes == 3 * 512
    # AND on a branch beside them neither
    made.recording.nodes[2].deps = (0,)
    made.recording.nodes[3].deps = (1, 2)
    assert make_plan(made).workspace_bytes == 3 * 512
    # AND what is freed where it is last addressed makes room as ever
    made.allocations[0].died = 2
    made.recording.nodes[2].deps, made.recording.nodes[3].deps = (1,), (2,)
    assert make_plan(made).workspace_bytes == 2 * 512


@pytest.mark.parametrize(("writes", "last"), [(True, 2), (False, 0)])
def test_an_input_whose_address_may_be_in_a_table_is_kept_for_the_tables_readers(writes: bool, last: int) -> None:
    # GIVEN an activation whose address a kernel may write to a table (0), which a later one reads through (2)
    big = 64 << 20
    made = captured(chain(4), [big, big, 512, big, big], [[0], [3], [0, 2], [0], [3]], 2, [3, 4])
    made.recording.nodes[0].writes_addresses = writes
    # WHEN asked how long it is needed THEN as long as the table is read, if it can be one
    assert needs_of(made)[0][-1] == last
    # AND no stage before that gives it back
    plan = make_plan(made, dying=(0, 1), most_stages=8)
    ends = [stage.nodes.stop for stage in plan.stages if 0 in stage.spent]
    assert all(end > last for end in ends)


def test_who_read_memory_before_an_address_may_be_written_there_reads_nothing_through_it() -> None:
    # GIVEN memory (1) that nodes 0 and 1 read, that a library's kernel (2) is given with a gradient (0), and node
    # 4 reads
    made = captured(chain(5), [512, 512], [[2], [0, 1, 2, 4]], 1, [])
    made.recording.nodes[2].writes_addresses = True
    # WHEN asked when the gradient's memory is needed THEN from that kernel on, while a table may be read
    assert list(needs_of(made)[0]) == [2, 4]


def test_stages_give_memory_back_and_take_it_when_it_is_needed() -> None:
    # GIVEN two activations of 64 MiB that die one after the other, two outputs of that size, and a small buffer that
    # lives through all four nodes beside one that only the first two need
    big = 64 << 20
    made = captured(chain(4), [big, big, big, big, 512, 512], [[0], [2], [0], [3], [0, 3], [0, 1]], 2, [2, 3])
    # WHEN planned in as many stages as the memory asks for
    plan = make_plan(made, dying=(0, 1), most_stages=8)
    # THEN the second output is made when the first activation is gone, and each word knows its stage's table
    assert [stage.nodes for stage in plan.stages] == [range(3), range(3, 4)]
    assert [stage.fresh for stage in plan.stages] == [(2,), (3,)]
    assert [stage.spent for stage in plan.stages] == [(0, 1), ()]
    assert [stage.slots for stage in plan.stages] == [
        (Input(0), Input(1), Fresh(2), Block(0), Block(1)),
        (Fresh(3), Block(1)),
    ]
    assert plan.stages[1].bindings == (Binding(3, 0, 0, 8), Binding(3, 8, 1, 8))
    assert plan.blocks == (Workspace(512, 0, 0), Workspace(512, 0, 1))
    # AND in one stage where nothing dies, or where no more are allowed
    assert len(make_plan(made, dying=(0, 1)).stages) == 1
    assert len(make_plan(made, most_stages=8).stages) == 1


def test_an_input_that_is_returned_is_never_given_up() -> None:
    # GIVEN the same with the first activation returned as it came
    big = 64 << 20
    made = captured(chain(4), [big, big, big, big], [[0], [2], [0], [3]], 2, [2, 3])
    made.outputs.append(Output(Kind.ARGUMENT, 0))
    # WHEN planned THEN no stage lets go of it
    plan = make_plan(made, dying=(0, 1), most_stages=8)
    assert 0 not in {position for stage in plan.stages for position in stage.spent}


@pytest.mark.parametrize("most", range(1, 9))
def test_no_more_stages_than_allowed_and_every_node_in_one(most: int) -> None:
    # GIVEN random lives of up to 1 GiB over 200 nodes
    rng = random.Random(most)
    spans = [sorted(rng.choices(range(200), k=2)) for _ in range(120)]
    sizes = [rng.randrange(1 << 30) for _ in spans]
    lives = Lives(
        200,
        dying=[(n, b) for n, (_, b) in zip(sizes[:40], spans, strict=False)],
        made=[(n, a) for n, (a, _) in zip(sizes[40:80], spans[40:], strict=False)],
        inner=[(n, a, b) for n, (a, b) in zip(sizes[80:], spans[80:], strict=False)],
    )
    # WHEN cut THEN the stages follow one another, and there are no more than asked for
    ranges = cut(lives, most)
    assert [n for r in ranges for n in r] == list(range(200))
    assert 1 <= len(ranges) <= most
    assert len(cut(lives, 200)) > 1


def test_small_outputs_that_die_together_share_a_shelf() -> None:
    # GIVEN five outputs: one for the caller, one too large, three that are saved together
    made = captured(chain(1), [64, SMALL + 1, 100, 600, 8], [[0], [0], [0], [0], [0]], 0, [0, 1, 2, 3, 4])
    # WHEN planned THEN the three have one slot, each at an offset of its own
    plan = make_plan(made, together=frozenset({1, 2, 3, 4}))
    assert plan.fresh == (0, 1)
    assert plan.shelf_bytes == 2048
    assert plan.slots == (Fresh(0), Fresh(1), Shelf())
    assert [(p.slot, p.offset) for p in plan.placements] == [
        (Fresh(0), 0),
        (Fresh(1), 0),
        (Shelf(), 0),
        (Shelf(), 512),
        (Shelf(), 1536),
    ]
    # AND two are too few for it
    assert Shelf() not in make_plan(made, together=frozenset({2, 3})).slots


@pytest.mark.parametrize("branches", [1, 3])
def test_planning_two_thousand_nodes_takes_less_than_0_3_seconds(branches: int) -> None:
    # GIVEN 2,000 nodes and 800 buffers, a quarter of them used over most of the graph
    rng = random.Random(0)
    count = 2_000
    uses = random_uses(rng, count, 800)
    deps = chain(count) if branches == 1 else random_deps(rng, count, branches)
    made = captured(deps, [rng.choice([512, 8_192, 1 << 20]) for _ in uses], uses, 10, list(range(700, 800)))
    best = 1e9
    for _ in range(3):
        # WHEN it is planned
        start = time.process_time()
        plan = make_plan(made)
        best = min(best, time.process_time() - start)
    # THEN it takes less than the guard allows, and the plan has every buffer
    assert plan.workspace_bytes > 0
    assert best < 0.3, f"planning took {best:.3f} s"


@pytest.mark.parametrize("branches", [1, 3])
@pytest.mark.parametrize("seed", range(10))
def test_inputs_that_are_written_first_lend_their_memory_until_then(seed: int, branches: int) -> None:
    # GIVEN a random graph whose first inputs are gradients that it makes anew
    rng = random.Random(seed)
    count, kept = rng.randrange(10, 60), 6
    deps = random_deps(rng, count, branches)
    uses = [*(sorted({rng.randrange(count // 2, count)}) for _ in range(kept)), *random_uses(rng, count, 30)]
    sizes = [rng.choice([1, 3, 7]) * LEAST + rng.choice([0, 40]) for _ in uses]
    made = captured(deps, sizes, uses, kept, [])
    specs: list[InputSpec | None] = [InputSpec((size,), (1,), torch.uint8, GRAIN, size) for size in sizes[:kept]]
    made = replace(made, specs=specs)
    # WHEN planned THEN what lies in one of them is over before it is written, and meets nobody else of its time
    plan = make_plan(made, rewritten=range(kept))
    before = ordered(deps)
    guests = {i: p for i, p in enumerate(plan.placements) if i >= kept and isinstance(p.slot, Input)}
    for i, place in guests.items():
        assert isinstance(place.slot, Input)
        host = place.slot.position
        assert place.role is Role.WORKSPACE
        assert place.offset % GRAIN == 0
        assert place.offset + sizes[i] <= sizes[host]
        assert all(a in before[b] for a in uses[i] for b in uses[host])
        for k, other in guests.items():
            if k != i and other.slot == place.slot and not may_share(deps, uses[i], uses[k]):
                assert place.offset + sizes[i] <= other.offset or other.offset + sizes[k] <= place.offset
    # AND the workspace is smaller for it, and all as before where nothing is lent
    assert plan.workspace_bytes <= make_plan(made).workspace_bytes
    assert guests or plan == make_plan(made)
    assert all(i < kept or not isinstance(p.slot, Input) for i, p in enumerate(make_plan(made).placements))


@pytest.mark.parametrize("library", [False, True])
def test_activations_lie_where_gradients_are_made_later(library: bool) -> None:
    # GIVEN four activations of a forward pass, each read again when the gradient before it is made, by a library or not
    deps = chain(8)
    activations = [[k, 7 - k] for k in range(4)]
    gradients = [[7 - k] for k in range(4)]
    made = captured(deps, [4 * LEAST] * 8, [*gradients, *activations], 4, [])
    made = replace(made, specs=[InputSpec((1,), (1,), torch.uint8, GRAIN, 4 * LEAST)] * 4)
    for node in made.recording.nodes:
        node.writes_addresses = library
    # WHEN planned THEN of four only the one is left that is read as the last gradient is made
    assert make_plan(made).workspace_bytes == 16 * LEAST
    assert make_plan(made, rewritten=range(4)).workspace_bytes == 4 * LEAST


def test_graphs_that_take_turns_take_alike_blocks_but_for_much_smaller_ones() -> None:
    # GIVEN three plans with one block, of two sizes and of a tenth, and one with two blocks
    plans = [make_plan(captured(chain(2), [size], [[0, 1]], 0, [])) for size in (80 * GRAIN, 60 * GRAIN, 8 * GRAIN)]
    states = [State(None, plan) for plan in plans]
    assert [state.rooms for state in states] == [[80 * GRAIN], [60 * GRAIN], [8 * GRAIN]]
    # WHEN they share THEN the small one keeps to its own
    share_room(zip(plans, states, strict=True))
    assert [state.rooms for state in states] == [[80 * GRAIN], [80 * GRAIN], [8 * GRAIN]]
    # AND when the largest is gone, nobody takes as much
    share_room(zip(plans[1:], states[1:], strict=True))
    assert [state.rooms for state in states[1:]] == [[60 * GRAIN], [60 * GRAIN]]


def test_graphs_in_other_stages_take_no_more_for_one_another() -> None:
    # GIVEN two plans in one stage, of one block and of two, and two in two stages
    def plan(stages: int, *blocks: tuple[int, int, int]) -> Plan:
        of = [Stage(range(0), (), (), (), ()) for _ in range(stages)]
        return Plan((), (), 0, tuple(Workspace(n * GRAIN, first, last) for n, first, last in blocks), tuple(of))

    plans = [
        plan(1, (453, 0, 0)),
        plan(1, (512, 0, 0), (80, 0, 0)),
        plan(2, (50, 0, 0), (270, 0, 1), (76, 1, 1)),
        plan(2, (85, 0, 0), (448, 0, 1), (128, 1, 1), (90, 1, 1)),
    ]
    states = [State(None, each) for each in plans]
    # WHEN they share THEN a block is as large as those for the same stages are
    share_room(zip(plans, states, strict=True))
    rooms = [[room // GRAIN for room in state.rooms] for state in states]
    assert rooms == [[512], [512, 80], [85, 448, 128], [85, 448, 128, 90]]
