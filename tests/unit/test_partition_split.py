from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch._inductor import config
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from paramgraph_kit.partition import order
from paramgraph_kit.partition.program import program
from paramgraph_kit.partition.split import Split, split
from paramgraph_kit.trace.model import Partition

aten = torch.ops.aten


def traced(function: Callable[..., Any], *inputs: torch.Tensor) -> torch.fx.GraphModule:
    """A post-AOT-like graph with fake values, from real inputs."""
    with FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True) as mode:
        return make_fx(function)(*(mode.from_tensor(x, static_shapes=True) for x in inputs))


def run(cut: Split, *inputs: Any) -> list[Any]:
    return list(program(cut, [region.run for region in cut.regions])(list(inputs)))


def shape(cut: Split) -> list[tuple[bool, tuple[str, ...]]]:
    return [(region.graphed, region.operations) for region in cut.regions]


def leave_out(*operations: str) -> Any:
    """Let the user's setting be what cuts: it works on any operation and any device."""
    return config.patch(custom_should_partition_ops=[f"aten::{name}" for name in operations])


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    else:
        assert found == expected


def test_a_graph_without_obstacles_is_one_graphed_region() -> None:
    # GIVEN two matrix products and an activation
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    # WHEN the graph is cut for the device that it runs on
    cut = split(traced(lambda x, w: ((x @ w).relu() @ w,), x, w), "cpu")
    # THEN one region holds all three kernels and computes the same
    assert shape(cut) == [(True, ("aten.mm", "aten.relu", "aten.mm"))]
    assert repr(cut) == "Split(1 regions, 1 graphed, 3 of 3 kernels in graphs)"
    assert_same(run(cut, x, w)[0], (x @ w).relu() @ w)


def test_an_obstacle_in_the_middle_makes_three_regions_with_its_reason() -> None:
    # GIVEN a value that the host reads between two kernels
    x = torch.randn(4, 4)

    def f(x: torch.Tensor) -> tuple[Any, ...]:
        y = x.sin()
        return (y * y.sum().item(),)

    # WHEN the graph is cut
    cut = split(traced(f, x), "cpu")
    # THEN only the read runs outside, and it says why
    assert shape(cut) == [
        (True, ("aten.sin", "aten.sum")),
        (False, ("aten._local_scalar_dense",)),
        (True, ("aten.mul",)),
    ]
    assert [r.code for r in cut.regions[1].reasons] == ["unbacked-op"]
    assert_same(run(cut, x)[0], f(x)[0])


def test_independent_work_is_gathered_so_that_two_obstacles_cost_one_cut() -> None:
    # GIVEN two obstacles with independent work between them
    x = torch.randn(4, 4)

    def f(x: torch.Tensor) -> tuple[Any, ...]:
        a = x.sin().tan()
        b = x.cos().tan()
        return a.relu(), b.relu()

    # WHEN the graph is cut at tan
    with leave_out("tan"):
        cut = split(traced(f, x), "cpu")
    # THEN there are three regions where the original order has five
    assert shape(cut) == [
        (True, ("aten.sin", "aten.cos")),
        (False, ("aten.tan", "aten.tan")),
        (True, ("aten.relu", "aten.relu")),
    ]
    assert [torch.equal(a, b) for a, b in zip(run(cut, x), f(x), strict=True)] == [True, True]


def test_gathering_stops_where_it_would_hold_more_memory() -> None:
    # GIVEN eight branches, each of which makes a large temporary and reduces it with an obstacle
    x = torch.randn(64, 64)

    def f(x: torch.Tensor) -> tuple[Any, ...]:
        sums = [(x + 1).sum() for _ in range(8)]
        return tuple(one.sin() for one in sums)

    # WHEN the graph is cut at the reductions, with Inductor's budget and with none
    module = traced(f, x)
    with leave_out("sum"):
        within = split(module, "cpu")
        with mock.patch.object(order, "memory_budget", return_value=float("inf")):
            gathered = split(module, "cpu")
    # THEN fewer regions are made only at the price of all temporaries at once
    assert len(within.regions) > len(gathered.regions) == 3
    assert_same(run(within, x)[0], run(gathered, x)[0])


def test_reads_and_writes_of_one_memory_keep_their_order() -> None:
    # GIVEN reads and writes of an input, through views, mixed with an obstacle that would like to move
    def f(x: torch.Tensor) -> tuple[Any, ...]:
        row = x[0]
        before = row.sin()
        obstacle = x.tan()
        aten.copy_.default(row, before * 2)
        after = x.tan()
        aten.add_.Tensor(x, 1)
        return before, obstacle, after, x.cos()

    x = torch.randn(4, 4)
    mine, expected_x = x.clone(), x.clone()
    # WHEN the graph is cut at tan and run
    with leave_out("tan"):
        cut = split(traced(f, x), "cpu")
    expected = f(expected_x)
    found = run(cut, mine)
    # THEN values and the input are what eager leaves
    for a, b in zip([*found, mine], [*expected, expected_x], strict=True):
        assert_same(a, b)
    assert "aten.add_" in {operation for region in cut.regions if region.graphed for operation in region.operations}


def test_random_numbers_are_drawn_in_the_order_of_the_program() -> None:
    # GIVEN random draws inside and outside graphs
    def f(x: torch.Tensor) -> tuple[Any, ...]:
        return aten.bernoulli.p(x, 0.5), aten.rand_like(x), aten.bernoulli.p(x, 0.5), aten.rand_like(x)

    x = torch.randn(4, 4)
    with leave_out("rand_like"):
        cut = split(traced(f, x), "cpu")
    # WHEN both run from one seed
    torch.manual_seed(3)
    expected = f(x)
    torch.manual_seed(3)
    found = run(cut, x)
    # THEN the draws are the same although gathering would have saved a cut
    for a, b in zip(found, expected, strict=True):
        assert_same(a, b)
    assert [region.graphed for region in cut.regions] == [True, False, True, False]


def test_views_are_made_where_they_are_used_and_cost_no_region() -> None:
    # GIVEN a view used on both sides of an obstacle and returned
    def f(x: torch.Tensor) -> tuple[Any, ...]:
        y = x.sin()
        a, b = torch.split(y.t(), 2)
        return (a.cos().tan() @ b.t(), b)

    x = torch.randn(4, 4)
    with leave_out("tan"):
        cut = split(traced(f, x), "cpu")
    # WHEN the regions are looked at
    found = run(cut, x)
    # THEN only the kernel's result crosses between them, and the returned view is made at the end
    assert [region.outputs for region in cut.regions] == [("sin", "cos"), ("tan",), ("mm",)]
    assert cut.epilogue is not None
    assert cut.epilogue.kernels == 0
    for a, b in zip(found, f(x), strict=True):
        assert_same(a, b)


def test_a_graph_of_views_runs_ungraphed_and_says_so() -> None:
    # GIVEN a graph that launches nothing
    x = torch.randn(4, 4)
    cut = split(traced(lambda x: (x.t()[1:],), x), "cpu")
    # WHEN it is described and run
    (partition,) = cut.partitions("inference 0", first=5)
    # THEN there is one ungraphed partition with that reason, and the output still shares the input's memory
    assert partition == Partition(5, "inference 0", False, partition.operations, 0, (partition.reasons[0],))
    assert partition.reasons[0].label() == "only views and sizes: nothing to launch"
    assert run(cut, x)[0].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_an_allocation_alone_is_not_worth_a_graph() -> None:
    # GIVEN an empty tensor that only an ungraphed operation fills
    def f(x: torch.Tensor) -> tuple[Any, ...]:
        return (torch.empty_like(x.tan()).fill_(3.0).tan(),)

    x = torch.randn(4, 4)
    with leave_out("tan", "fill_.Scalar"):
        cut = split(traced(f, x), "cpu")
    # WHEN the region with the allocation is looked at THEN it is not graphed for want of kernels
    (lonely,) = [region for region in cut.regions if "aten.empty_like" in region.operations]
    assert (lonely.graphed, [r.code for r in lonely.reasons]) == (False, ["no-kernels"])
    assert_same(run(cut, x)[0], torch.full((4, 4), 3.0).tan())


def test_results_that_are_inputs_constants_literals_and_repeats() -> None:
    # GIVEN a graph that returns an input, None, a number, a value twice and uses a constant tensor
    constant = torch.arange(4.0)

    def f(x: torch.Tensor) -> tuple[Any, ...]:
        y = x + constant
        return x, None, y, y, 7

    x = torch.randn(4)
    module = traced(f, x)
    # WHEN it is cut and run
    cut = split(module, "cpu")
    found = run(cut, x)
    # THEN all come back as they were, the input itself among them
    assert found[0] is x
    assert found[1] is None
    assert found[2] is found[3]
    assert found[4] == 7
    assert_same(found[2], x + constant)


def test_tuples_pass_between_regions_one_value_at_a_time() -> None:
    # GIVEN an operation with several results of which two are used in other regions
    def f(x: torch.Tensor) -> tuple[Any, ...]:
        values, indices = torch.max(x, 1)
        return values.tan(), indices

    x = torch.randn(4, 4)
    with leave_out("tan"):
        cut = split(traced(f, x), "cpu")
    # WHEN it runs THEN each region returns plain values
    assert all(name.startswith("getitem") for name in cut.regions[0].outputs)
    for a, b in zip(run(cut, x), f(x), strict=True):
        assert_same(a, b)


def test_an_operation_that_takes_a_whole_list_gets_it_in_another_region() -> None:
    # GIVEN a list-valued kernel whose whole list the next region's operation takes
    x = torch.randn(4, 4)
    graph = torch.fx.Graph()
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        fake = mode.from_tensor(x, static_shapes=True)
        source = graph.placeholder("x")
        copied = graph.call_function(aten.split_copy.Tensor, (source, 2))
        joined = graph.call_function(aten.cat.default, (copied, 1))
        graph.output((joined,))
        source.meta["val"] = fake
        copied.meta["val"] = aten.split_copy.Tensor(fake, 2)
        joined.meta["val"] = aten.cat.default(copied.meta["val"], 1)
    # WHEN the graph is cut between the two
    with leave_out("cat"):
        cut = split(torch.fx.GraphModule({}, graph), "cpu")
    # THEN the items pass, and the original graph is untouched
    assert len(cut.regions[0].outputs) == 2
    assert_same(run(cut, x)[0], torch.cat(torch.split(x, 2), 1))
    assert len(list(graph.nodes)) == 4


def test_a_scalar_on_the_host_is_copied_once_and_the_rest_stays_graphed() -> None:
    # GIVEN device operations that read one CPU scalar; fake tensors suffice to cut
    with FakeTensorMode(shape_env=ShapeEnv()):
        x, s = torch.empty(4, 4, device="cuda"), torch.empty(())
        module = make_fx(lambda x, s: (x * s + s,))(x, s)
    # WHEN the graph is cut
    cut = split(module, "cuda")
    # THEN one copy precedes one graphed region
    assert shape(cut) == [(False, ("aten._to_copy",)), (True, ("aten.mul", "aten.add"))]
    assert cut.regions[0].reasons[0].message == "a copy from cpu to cuda"


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_masked_fill_equals_the_indexing_that_it_stands_for(rows: bool, transposed: bool) -> None:
    # GIVEN a masked assignment of one value, by element and by row, to memory in either order
    def f(x: torch.Tensor, m: torch.Tensor) -> tuple[Any, ...]:
        return (aten.index_put.default(x, [m], x.sum()) @ x,)

    x = torch.randn(4, 4).t() if transposed else torch.randn(4, 4)
    mask = torch.tensor([True, False, True, False]) if rows else torch.randn(4, 4) > 0
    # WHEN it is cut and run
    cut = split(traced(f, x, mask), "cpu")
    # THEN values are the same, and no element was counted unless strides would have changed
    assert_same(run(cut, x, mask)[0], f(x, mask)[0])
    filled = any("aten.where" in region.operations for region in cut.regions)
    assert [region.graphed for region in cut.regions] == ([True] if filled else [True, False, True])
    assert filled or transposed


def test_values_are_dropped_after_their_last_use() -> None:
    # GIVEN three regions, and a large value that only the second one needs
    import weakref

    def f(x: torch.Tensor) -> tuple[Any, ...]:
        return (x.sin().tan().cos(),)

    x = torch.randn(8)
    with leave_out("tan"):
        cut = split(traced(f, x), "cpu")
    seen: list[Any] = []

    def watched(inner: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        def call(inputs: list[Any]) -> Any:
            alive = [ref() is not None for ref in seen]
            seen.extend(weakref.ref(value) for value in inputs)
            result = inner(inputs)
            assert inputs == []
            states.append(alive)
            return result

        return call

    states: list[list[bool]] = []
    # WHEN it runs with the caller's list owning the only reference to the input
    boxed = [x]
    del x
    program(cut, [watched(region.run) for region in cut.regions])(boxed)
    # THEN each value is gone before the region after next begins, the input too
    assert states == [[], [False], [False, False]]
