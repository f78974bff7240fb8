"""What of a graph is made ready for its cut, asked of each function: one value, a movable number, a tuple's items."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from paramgraph_kit.partition.normalize import (
    _fill_instead_of_index,
    _is_movable_scalar,
    _is_single,
    _swap,
    _unpack,
    normalized,
    scalars_to_move,
)
from tests.unit.test_partition_rules import GPU, HALF, HOST, MASK, SCALAR, traced

aten = torch.ops.aten
FAKE = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)


def node_of(value: Any) -> torch.fx.Node:
    node = torch.fx.Graph().placeholder("x")
    node.meta["val"] = value
    return node


def fake(*size: Any, device: str = "cuda", dtype: torch.dtype = torch.float32) -> torch.Tensor:
    with FAKE:
        return torch.empty(size, device=device, dtype=dtype)


def test_one_value_fills_where_its_kind_its_device_and_its_dimensions_allow_it() -> None:
    # GIVEN what is filled, and what with
    whole = fake(2, 3)
    filled: list[tuple[Any, Any, bool]] = [
        (node_of(fake()), whole, True),
        (node_of(fake(1)), whole, True),
        (node_of(fake(1, 1)), whole, True),
        (node_of(fake(1, 1, 1)), whole, False),  # would add a dimension
        (node_of(fake(3)), whole, False),
        (node_of(fake(1, 3)), whole, False),
        (node_of(fake(0)), whole, False),
        (node_of(fake(dtype=torch.float64)), whole, False),
        (node_of(fake(device="cpu")), whole, True),  # a number is taken from anywhere
        (node_of(fake(1, device="cpu")), whole, False),
        (node_of(fake(1, 1, device="cpu")), whole, False),
        (node_of(fake()), fake(), True),
        (node_of(fake(1)), fake(), False),
        (node_of(3.0), whole, False),
        (3.0, whole, False),
        (None, whole, False),
        (node_of(fake()), torch.ones(2, 3, device="meta"), False),  # nothing is known of it
        (node_of(fake()), None, False),
    ]
    # WHEN asked THEN only these are one value of the same kind
    assert [_is_single(value, into) for value, into, _ in filled] == [single for _, _, single in filled]
    # AND a size that may be one is none
    with FAKE:
        size = FAKE.shape_env.create_unbacked_symint()  # type: ignore[union-attr]
        assert not _is_single(node_of(torch.empty((size,), device="cuda")), whole)


@pytest.mark.parametrize(
    ("source", "result", "movable"),
    [
        (fake(device="cpu"), torch.float32, True),
        (fake(device="cpu"), torch.float64, True),
        (fake(device="cpu", dtype=torch.float64), torch.float32, True),
        (fake(device="cpu"), torch.bfloat16, False),  # would be rounded before it is used
        (fake(device="cpu"), torch.float16, False),
        (fake(device="cpu", dtype=torch.bfloat16), torch.bfloat16, True),
        (fake(device="cpu", dtype=torch.bfloat16), torch.float16, False),
        (fake(device="cpu", dtype=torch.int64), torch.float16, True),
        (fake(1, device="cpu"), torch.float32, False),
        (fake(), torch.float32, False),
        (3.0, torch.float32, False),
    ],
)
def test_a_number_of_the_host_is_moved_unless_it_would_be_rounded(
    source: Any, result: torch.dtype, movable: bool
) -> None:
    # GIVEN a value and the type of what reads it WHEN asked THEN only these move
    assert _is_movable_scalar(node_of(source), result) is movable


def test_who_takes_a_whole_tuple_takes_its_items() -> None:
    # GIVEN a kernel with two results, one user of an item, and two of the whole: by place and by name
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = fake(4)
    both = graph.call_function(aten.max.dim, (x, 0))
    both.meta = {"val": (fake(), fake(dtype=torch.int64)), "stack_trace": "line"}
    item = graph.call_function(operator.getitem, (both, 1))
    placed = graph.call_function(print, (x, both))
    named = graph.call_function(print, (x,), {"sep": both, "end": x})
    graph.output((item, placed, named))
    # WHEN unpacked THEN items stand behind it in order, with values and line, and the users take both
    _unpack(both)
    first, second = list(graph.nodes)[2:4]
    assert [first.args, second.args] == [(both, 0), (both, 1)]
    assert [n.meta for n in (first, second)] == [{"val": v, "stack_trace": "line"} for v in both.meta["val"]]
    assert placed.args == (x, [first, second])
    assert (named.args, named.kwargs) == ((x,), {"sep": [first, second], "end": x})
    assert item.args == (both, 1)
    # AND once more there is nothing to do, nor with one result, nor where nothing is known
    count = len(graph.nodes)
    for meta in (both.meta, {"val": fake()}, {}):
        both.meta = meta
        _unpack(both)
    _unpack(x)
    assert len(graph.nodes) == count
    assert _swap(x, both, [first]) is x
    assert _swap(both, both, [first]) == [first]


def targets(function: Any, *inputs: Any) -> list[Any]:
    module, _ = normalized(traced(function, *inputs), "cuda")
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


def test_one_mask_fills_where_the_result_lies_as_before() -> None:
    # GIVEN values that are put where indices say WHEN made ready THEN one mask with one value selects instead
    put, select = aten.index_put.default, aten.where.self
    value = ((), "cuda", torch.float32)
    rows = ((4,), "cuda", torch.bool)
    places = ((4,), "cuda", torch.int64)
    cases: list[tuple[Any, tuple[Any, ...], list[Any]]] = [
        (lambda x, m, v: put(x, [m], v), (GPU, MASK, value), [select]),
        (lambda x, m, v: put(x, [m], v, False), (GPU, MASK, value), [select]),
        (lambda x, m, v: put(x, [m], v, True), (GPU, MASK, value), [put]),
        (lambda x, m, v: aten._unsafe_index_put.default(x, [m], v), (GPU, MASK, value), [select]),
        (lambda x, m, v: put(x, [m], v), (GPU, rows, value), [aten.unsqueeze.default, select]),
        (lambda x, m, v: put(x, [None, m], v), (GPU, rows, value), [put]),
        (lambda x, m, v: put(x, [m, m], v), (GPU, rows, value), [put]),
        (lambda x, m, v: put(x, [m], v), (GPU, places, value), [put]),
        (lambda x, m, v: put(x, [m], v), (GPU, MASK, ((1,), "cuda", torch.float32)), [select]),
        (lambda x, m, v: put(x, [m], v), (GPU, rows, ((4,), "cuda", torch.float32)), [put]),
    ]
    assert [targets(function, *inputs) for function, inputs, _ in cases] == [left for _, _, left in cases]


def filled(mask: Any, result: Any, *more: Any) -> list[tuple[Any, Any]]:
    """What is left of one value that is put under a mask into a tensor of (4, 3), given what tracing saw come out."""
    graph = torch.fx.Graph()
    x, m, v = (graph.placeholder(name) for name in "xmv")
    x.meta["val"], m.meta["val"], v.meta["val"] = fake(4, 3), mask, fake()
    put = graph.call_function(aten.index_put.default, (x, [m], v, *more))
    put.meta = {"val": result, "stack_trace": "line"}
    graph.output(put)
    _fill_instead_of_index(put)
    (left,) = graph.output_node().args
    assert left.meta["stack_trace"] == "line"  # type: ignore[union-attr]
    return [(node.target, node.args) for node in graph.nodes if node.op == "call_function"]


def test_a_mask_of_rows_is_spread_over_their_values_and_nothing_stays_of_a_fill_that_would_lie_otherwise() -> None:
    # GIVEN a mask of rows WHEN filled THEN it has another dimension behind it: each row has one answer
    rows = fake(4, dtype=torch.bool)
    for more in ((), (False,)):
        (wide, (mask, place)), (select, (spread, value, base)) = filled(rows, fake(4, 3), *more)
        assert (wide, mask.name, place) == (aten.unsqueeze.default, "m", -1)
        assert (select, spread.target, value.name, base.name) == (aten.where.self, wide, "v", "x")
    # AND where tracing saw other strides or another shape, indexing stays, and it alone
    with FAKE:
        turned = torch.empty(3, 4, device="cuda").t()
    for other in (turned, fake(1, 3)):
        assert [target for target, _ in filled(rows, other)] == [aten.index_put.default]


def test_numbers_are_moved_for_what_is_on_the_device_as_a_whole() -> None:
    # GIVEN an operation that reads a number of the host WHEN its results lie on the device, or not all THEN it moves
    graph = torch.fx.Graph()
    number = graph.placeholder("number")
    number.meta["val"] = fake(device="cpu")
    node = graph.call_function(aten.mul.Tensor, (number, number))
    for value, device, moves in (
        (fake(4), "cuda", True),
        ((fake(4), fake(2)), "cuda", True),
        ((fake(4), fake(4, device="cpu")), "cuda", False),
        (fake(4, device="cpu"), "cpu", False),
        (fake(4, device="cpu"), "cuda", False),
        ((), "cuda", False),
    ):
        node.meta["val"] = value
        assert scalars_to_move(node, device) == ([number] if moves else [])


def test_a_number_of_the_host_is_moved_once_for_all_that_read_it_there() -> None:
    # GIVEN numbers of the host that operations of the device, of the host, and copies read WHEN made ready
    move, times = aten._to_copy.default, aten.mul.Tensor
    assert targets(lambda x, s: (x * s, x + s), GPU, SCALAR) == [move, times, aten.add.Tensor]
    assert targets(lambda x, s: x * s, HALF, SCALAR) == [times]
    assert targets(lambda c, s: c * s, HOST, SCALAR) == [times]
    assert targets(lambda x, s: s.to(x.device), GPU, SCALAR) == [move]
    assert targets(lambda x, s: aten.copy_.default(x, s), GPU, SCALAR) == [aten.copy_.default]
