"""What a cut asks of a graph's nodes, one question at a time: what is fixed, what is moved, what is called how."""

from __future__ import annotations

import operator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from paramgraph_kit.partition import fixed, frames, host_reads, lanes, normalize
from paramgraph_kit.partition.fixed import MOST, keep_fixed
from paramgraph_kit.partition.frames import note_lines, place_behind, user_frame
from paramgraph_kit.partition.names import argument_names, described, module_of, user_name, value_names
from paramgraph_kit.partition.nodes import (
    Kind,
    _argument,
    is_ordered,
    is_random,
    kind_of,
    storage_keys,
    tensors_in,
    written,
)
from paramgraph_kit.partition.order import _alternate, _loose_ends, _peak, dependencies, memory_budget
from paramgraph_kit.partition.program import program
from paramgraph_kit.partition.region import Region
from paramgraph_kit.partition.rules import _registered_names
from paramgraph_kit.partition.split import _flatten, _groups, split
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Reason
from tests.unit.test_partition_rules import GPU, HOST, MASK, SCALAR, traced

aten = torch.ops.aten
INDEX = ((4,), "cpu", torch.int64)


def kept(function: Any, *inputs: Any, **how: bool) -> tuple[list[int], list[str]]:
    """Bytes of each tensor that is kept, and the operations that are left, of a graph for a GPU."""
    module = traced(function, *inputs)
    found = keep_fixed(module, "cuda", compute=False, **how)
    return [each.nbytes for each in found], [
        str(node.target) for node in module.graph.nodes if node.op == "call_function"
    ]


def test_what_is_made_on_the_host_alone_is_kept() -> None:
    # GIVEN tensors that are made on the host and moved WHEN kept THEN nothing is left of what made them
    moved = "aten._to_copy.default"
    assert kept(lambda x: x + torch.arange(4).to(x.device), GPU) == ([32], ["aten.add.Tensor"])
    assert kept(lambda x: x + (torch.ones(4) * 2).to(x.device), GPU) == ([16], ["aten.add.Tensor"])
    # AND nothing of what depends on an input, is drawn, or is not filled
    assert kept(lambda x, c: x + c.to(x.device), GPU, HOST)[0] == []
    assert kept(lambda x: x + torch.rand(4).to(x.device), GPU)[0] == []
    assert kept(lambda x: x + torch.empty(4).to(x.device), GPU)[0] == []
    # AND one that is moved twice is moved once
    twice = kept(lambda x: (x + torch.arange(4).to(x.device)) * torch.arange(4).to(x.device), GPU)
    assert moved not in twice[1]


def test_a_number_of_the_host_is_kept_where_that_is_wanted() -> None:
    # GIVEN a number that is worked out on the host WHEN kept THEN it stays there as a number, if that is wanted
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * torch.ones(3).sum()

    assert kept(scaled, GPU) == ([], ["aten.mul.Tensor"])
    assert "aten.sum.default" in kept(scaled, GPU, numbers=False)[1]


def test_an_index_of_the_host_is_kept_on_the_device() -> None:
    # GIVEN an index that is made on the host WHEN kept THEN it is on the device, and a mask stays
    assert kept(lambda x: aten.index.Tensor(x, [torch.arange(2)]), GPU) == ([16], ["aten.index.Tensor"])
    # AND one that is given stays where it is
    assert kept(lambda x, i: aten.index.Tensor(x, [i]), GPU, INDEX)[0] == []


def test_small_is_up_to_sixteen_million_elements() -> None:
    # GIVEN tensors on the host WHEN asked THEN those of so many elements are small
    with FakeTensorMode():
        sizes = {n: fixed._is_small_on_the_host(torch.empty(n)) for n in (0, 1, MOST, MOST + 1)}
        assert sizes == {0: True, 1: True, MOST: True, MOST + 1: False}
        assert not fixed._is_small_on_the_host(torch.empty(1, device="cuda"))
    assert MOST == 1 << 24


def node_of(target: Any, *args: Any, val: Any = None, **kwargs: Any) -> torch.fx.Node:
    graph = torch.fx.Graph()
    given: list[Any] = []
    for n, value in enumerate(args):
        if isinstance(value, torch.Tensor):
            place = graph.placeholder(f"x{n}")
            place.meta["val"] = value
            given.append(place)
        else:
            given.append(value)
    node = graph.call_function(target, tuple(given), kwargs)
    node.meta["val"] = val
    return node


def test_a_histogram_finds_its_range_unless_it_is_told() -> None:
    # GIVEN calls of histc WHEN asked THEN it reads on the host where least and largest are one
    x = torch.ones(4)
    reads = [
        bool(host_reads.host_read(node_of(aten.histc.default, x, *rest)))
        for rest in ((), (10,), (10, 0, 0), (10, 0, 1))
    ]
    assert reads == [True, True, True, False]
    assert host_reads.host_read(node_of(aten.histc.default, x, max=1)) is None
    # AND MAGMA's solver where there are several matrices
    for dims, waits in ((2, False), (3, True)):
        many = torch.ones([2] * dims)
        assert bool(host_reads.host_read(node_of(aten.cholesky_solve.default, many, many))) is waits
    # AND a deviation that is a tensor
    assert host_reads.host_read(node_of(aten.normal.Tensor_Tensor, x, x))
    assert host_reads.host_read(node_of(aten.normal.Tensor_float, x, 1.0)) is None


def test_experts_have_one_kernel_for_bfloat16_alone() -> None:
    # GIVEN factors and offsets WHEN asked THEN other types are read on the host
    half, offsets = torch.ones(2, 2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.int32)
    target = aten._grouped_mm.default
    assert not host_reads._is_slow_grouped_mm(node_of(target, half, half, offsets, val=half))
    assert host_reads._is_slow_grouped_mm(node_of(target, half, half.float(), offsets, val=half))
    assert host_reads._is_slow_grouped_mm(node_of(target, half, half, offsets, val=half.float()))


def test_kinds_and_writes_are_told_by_schema_and_storage() -> None:
    # GIVEN calls WHEN asked THEN a view shares all of its storages, a kernel none
    x = torch.ones(4)
    assert kind_of(node_of(aten.view.default, x, [2, 2], val=x.view(2, 2))) is Kind.VIEW
    assert kind_of(node_of(aten.sin.default, x, val=x.sin())) is Kind.KERNEL
    assert kind_of(node_of(aten.split.Tensor, x, 2, val=[x[:2], x[2:]])) is Kind.VIEW
    assert kind_of(node_of(aten.split.Tensor, x, 2, val=[x[:2], torch.ones(2)])) is Kind.KERNEL
    assert kind_of(node_of(aten._assert_scalar.default, True, "no")) is Kind.CHECK
    assert kind_of(node_of(aten.sym_size.int, x, 0, val=4)) is Kind.SYMBOL
    assert [n.name for n in written(node_of(aten.copy_.default, x, x.clone()))] == ["x0"]
    assert written(node_of(aten.copy.default, x, x)) == []
    assert [n.name for n in written(node_of(aten.add.out, x, x, out=None))] == []
    assert is_random(node_of(aten.rand.default, [2]))
    assert not is_random(node_of(aten.sin.default, x))
    assert len(storage_keys(node_of(aten.split.Tensor, x, 2, val=[x, [x.clone(), None]]))) == 2
    assert len(list(tensors_in([x, (x, [x]), None, 3]))) == 3


def test_operations_are_registered_as_inductor_matches_them() -> None:
    # GIVEN / WHEN / THEN
    x = torch.ones(4)
    assert _registered_names(node_of(aten.mm.default, x, x)) == {"aten::mm", "aten::mm.default"}
    assert _registered_names(node_of(aten.add.Tensor, x, x)) == {"aten::add.Tensor", "aten::add.Tensor.Tensor"}
    assert _registered_names(node_of(print, x)) == set()


def chain_of(*sizes: int, needs: dict[int, list[int]] | None = None) -> list[torch.fx.Node]:
    """Kernels with results of so many floats; each takes the one before, or what ``needs`` says."""
    graph = torch.fx.Graph()
    nodes: list[torch.fx.Node] = []
    for n, size in enumerate(sizes):
        given = (needs or {}).get(n, [n - 1] if n else [])
        node = graph.call_function(aten.cat.default, ([nodes[k] for k in given],))
        node.meta["val"] = torch.empty(size)
        nodes.append(node)
    return nodes


def test_the_peak_is_what_lives_at_one_time() -> None:
    # GIVEN a chain of 4, 8 and 2 floats WHEN counted THEN two of a row live at once, and what is kept to the end
    nodes = chain_of(4, 8, 2)
    assert _peak(nodes, set(), "cpu") == 4 * 12
    assert _peak(nodes, {nodes[0]}, "cpu") == 4 * 14
    assert _peak(nodes, set(), "cuda") == 0
    assert _peak([], set(), "cpu") == 0
    # AND what nobody takes is gone at once
    assert _peak(chain_of(4, 8, 2, needs={1: [], 2: []}), set(), "cpu") == 4 * 8
    assert memory_budget() == pytest.approx(1.1)


def test_kernels_wait_for_values_for_memory_and_for_their_like() -> None:
    # GIVEN a value, its reader, who overwrites it, a reader of that, and two that draw numbers
    graph = torch.fx.Graph()
    memory = torch.ones(4)

    def call(target: Any, *args: Any, val: Any) -> torch.fx.Node:
        node = graph.call_function(target, args)
        node.meta["val"] = val
        return node

    x = graph.placeholder("x")
    x.meta["val"] = memory
    reads = call(aten.sin.default, x, val=torch.ones(4))
    writes = call(aten.copy_.default, x, reads, val=memory)
    after = call(aten.cos.default, x, val=torch.ones(4))
    draws, again = (call(aten.rand.default, [2], val=torch.ones(2)) for _ in range(2))
    kernels = [reads, writes, after, draws, again]
    needs = {node: list(node.all_input_nodes) for node in kernels}
    # WHEN asked THEN each follows those alone
    expected: Any = {reads: set(), writes: {reads}, after: {writes}, draws: set(), again: {draws}}
    assert dependencies(kernels, needs) == expected


def test_alternating_begins_with_what_is_not_graphed() -> None:
    # GIVEN kernels that need nothing, the last ungraphed, and one that needs all WHEN ordered THEN that comes first
    nodes = chain_of(1, 1, 1, 1, needs={1: [], 2: [], 3: [0, 1, 2]})
    before = {n: set(n.all_input_nodes) for n in nodes}
    a, b, c, d = nodes
    assert _alternate(nodes, before, {c}) == [c, a, b, d]
    assert _alternate(nodes, before, {c, d}) == [c, a, b, d]
    assert _alternate(nodes, before, set()) == nodes
    assert _loose_ends(nodes, before, {c}) == [c, a, b, d]
    assert _loose_ends(nodes, before, {d}) == nodes
    assert _loose_ends([a, d, b, c], before | {d: {a}}, {d}) == [a, b, c, d]


def test_groups_change_where_graphed_and_not_do() -> None:
    # GIVEN kernels, of which the first and the third are not graphed WHEN grouped THEN neighbours are together
    a, b, c, d = chain_of(1, 1, 1, 1)
    kinds = dict.fromkeys((a, b, c, d), Kind.KERNEL)
    assert _groups([a, b, c, d], {a, c}, kinds) == [[a], [b], [c], [d]]
    assert _groups([a, b, c, d], {a, b}, kinds) == [[a, b], [c, d]]
    assert _groups([], set(), kinds) == []
    # AND what orders streams counts in a graphed one alone, and not before the first
    kinds |= {b: Kind.ORDER}
    assert _groups([b, a, c, d], {d}, kinds) == [[a, c], [d]]
    assert _groups([a, b, c, d], {c}, kinds) == [[a, b], [c], [d]]
    assert _groups([c, b, a], {c}, kinds) == [[c], [a]]
    assert [_flatten((1, 2)), _flatten([1]), _flatten(3)] == [[1, 2], [1], [3]]


def test_a_scalar_is_moved_for_a_kernel_of_the_device() -> None:
    # GIVEN graphs with a number of the host WHEN asked what Inductor moves THEN it is that number, for kernels alone
    def moved(function: Any, *inputs: Any, device: str = "cuda") -> list[list[str]]:
        module = traced(function, *inputs)
        calls = [n for n in module.graph.nodes if n.op == "call_function"]
        return [[str(m.name) for m in normalize.scalars_to_move(node, device)] for node in calls]

    assert moved(lambda x, s: x * s, GPU, SCALAR) == [["s_1"]]
    assert moved(lambda x, s: x * s, GPU, SCALAR, device="cpu") == [[]]
    assert moved(lambda x, s: x * s, HOST, SCALAR, device="cpu") == [[]]
    assert moved(lambda x, s: s.to(x.device), GPU, SCALAR) == [[]]
    assert moved(lambda x, c: c * 2, GPU, HOST) == [[]]
    half = ((4, 4), "cuda", torch.bfloat16)
    assert moved(lambda x, s: x * s, half, SCALAR) == [[]]
    assert moved(lambda x, s: x * s, half, ((), "cpu", torch.int64)) == [["s_1"]]
    assert moved(lambda x, s: x * s, half, ((), "cpu", torch.bfloat16)) == [["s_1"]]


def test_names_are_what_the_user_wrote() -> None:
    # GIVEN sources, descriptors and calls WHEN told THEN they read as the user's code
    assert [user_name(s) for s in ("L['self']", "L['fn'].x", "G['m']._buffers['b']", "weird")] == [
        "self", "x", "m.b", "weird",
    ]  # fmt: skip
    said = "PlainAOTInput PlainAOTOutput TangentAOTInput ParamAOTInput GradAOTOutput InputMutationAOTOutput"
    kinds: dict[str, Any] = {name: type(name, (), {}) for name in said.split()}

    def what(kind: str, **members: Any) -> Any:
        made = kinds[kind]()
        vars(made).update(members)
        return made

    first, last, none = (what("PlainAOTInput", idx=n) for n in (0, 1, 2))
    assert [described(each, ("x", "y")) for each in (first, last, none)] == ["x", "y", ""]
    assert described(what("PlainAOTOutput", idx=3), ()) == "output 3"
    assert described(what("TangentAOTInput", output=what("PlainAOTOutput", idx=0)), ()) == "gradient of output 0"
    assert described(what("GradAOTOutput", grad_of=none), ("x",)) == "a gradient"
    assert described(what("InputMutationAOTOutput", mutated_input=first), ("x",)) == "new x"
    assert described(what("InputMutationAOTOutput", mutated_input=none), ("x",)) == ""
    assert described(what("ParamAOTInput", target="L['self'].w"), ()) == "w"
    assert described(None, ()) == ""
    x = torch.ones(1)

    def called(a: Any, /, b: Any, *rest: Any, c: Any = 0) -> None: ...

    assert argument_names(called, (x, x, 5, x), {"c": [x]}) == ("a", "b", "rest[1]", "c[0]")
    assert argument_names(3, (x,), {}) == ("argument[0]",)
    stack = {"a": ("L['self'].blocks.0", None), "b": ("L['self'].blocks.0.up", None)}
    node = node_of(aten.sin.default, x)
    node.meta["nn_module_stack"] = stack
    assert module_of(node) == "blocks.0.up"
    node.meta = {"fwd_nn_module_stack": {"a": ("L['self']", None)}}
    assert module_of(node) == ""
    node.meta = {}
    assert module_of(node) == ""


def test_values_of_a_graph_are_called_after_inputs_results_and_operations() -> None:
    # GIVEN a graph of AOTAutograd's with a result behind a view, and an item of a tuple
    graph = torch.fx.Graph()
    primal, saved, other = (graph.placeholder(name) for name in ("primals_2", "mul_3", "known"))
    made = graph.call_function(aten.sin.default, (primal,))
    view = graph.call_function(aten.view.default, (made, [2]))
    pair = graph.call_function(aten.split.Tensor, (saved, 1))
    item = graph.call_function(operator.getitem, (pair, 1))
    out = graph.output((view, item))
    output = type("PlainAOTOutput", (), {"idx": 0})
    out.meta["desc"] = (output(), None)
    names = value_names(torch.fx.GraphModule(torch.nn.Module(), graph), ("x", "y"), {"known": "as before"})
    # WHEN named THEN so
    assert [names[n.name] for n in (primal, saved, other)] == ["y", "mul", "as before"]
    assert [names[n.name] for n in (made, view, pair, item)] == ["output 0", "output 0", "split", "split[1]"]


def test_each_line_of_generated_code_stands_for_a_place() -> None:
    # GIVEN a graph with a kernel at a user's line WHEN noted THEN the line of its code tells it
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_function(aten.sin.default, (x,))
    node.meta = {"val": torch.ones(2, 3), "stack_trace": '  File "train.py", line 7, in step\n    y = x.sin()\n'}
    graph.output(node)
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    note_lines(module)
    code = module.code.splitlines()
    number = next(n for n, line in enumerate(code, 1) if "sin" in line)
    place = place_behind((module.forward.__code__.co_filename, number))
    assert place is not None
    assert (place.frame and place.frame.label(), place.shape, place.dtype) == (
        "train.py:7  y = x.sin()", (2, 3), torch.float32,
    )  # fmt: skip
    assert place.source.endswith(" = aten.sin.default(x)")
    assert place_behind((module.forward.__code__.co_filename, number + 50)) is None
    assert place_behind(None) is None
    assert user_frame('  File "<frozen importlib>", line 1, in f\n    x') is None


def test_lanes_are_numbers_of_streams_beside_the_main_one() -> None:
    # GIVEN nodes with and without a stream WHEN asked THEN none is the main one
    nodes = [node_of(aten.sin.default, torch.ones(1)) for _ in range(3)]
    nodes[1].meta["custom"], nodes[2].meta["custom"] = {"stream": 2}, {"stream": None}
    assert [lanes.lane_of(node) for node in nodes] == [0, 2, 0]
    graphs: list[Any] = [SimpleNamespace(graph=SimpleNamespace(nodes=[node])) for node in nodes]
    assert [lanes.on_lanes(each) for each in graphs] == [False, True, False]
    several: Any = SimpleNamespace(graph=SimpleNamespace(nodes=nodes))
    assert lanes.on_lanes(several)
    given = nodes[1].all_input_nodes
    given[0].meta["custom"] = {"stream": 3}
    inputs: Any = SimpleNamespace(graph=SimpleNamespace(nodes=given))
    assert not lanes.on_lanes(inputs)
    assert [lanes.is_ordered_by_streams([node]) for node in nodes] == [False, True, False]
    assert lanes.is_ordered_by_streams([node_of(lanes.host_waits)])
    assert lanes.is_ordered_by_streams([nodes[0], node_of(lanes.record_now, 1)])


def test_operations_that_leave_and_take_their_place_among_others() -> None:
    # GIVEN calls WHEN asked THEN random ones and assertions keep their place, writes are ordered by memory
    x = torch.ones(4)
    assert is_ordered(node_of(aten.rand.default, [2]))
    assert is_ordered(node_of(aten._assert_async.msg, x, "no"))
    assert not is_ordered(node_of(aten.copy_.default, x, x))
    assert not is_ordered(node_of(aten.sin.default, x))
    assert not is_ordered(node_of(operator.add, 1, 2))
    # AND arithmetic on sizes is no kernel, a higher-order operation always is
    assert kind_of(node_of(operator.add, 1, 2, val=3)) is Kind.SYMBOL
    assert kind_of(node_of(operator.add, 1, 2, val=x)) is Kind.KERNEL
    assert kind_of(node_of(torch.ops.higher_order.cond, 1, val=3)) is Kind.KERNEL
    # AND an argument is found by its place or by its name
    by_place, by_name = (
        node_of(aten.as_strided.default, x, [2], [1], 1),
        node_of(aten.as_strided.default, x, [2], [1], storage_offset=1),
    )
    neither = node_of(aten.as_strided.default, x, [2], [1])
    assert [_argument(n, "storage_offset") for n in (by_place, by_name, neither)] == [1, 1, None]


def test_a_failure_that_is_a_refusal_is_not_learned() -> None:
    # GIVEN a refusal that names no kernel's operation, and a failure that says nothing of a capture
    refusal = RefusedError(Reason("unexplained-word", "bytes differ"))
    for error in (refusal, ValueError("out of memory")):
        # WHEN code is cut again THEN nothing is known to leave out
        with host_reads.leaving_out(error) as known:
            assert known is False
    refusal.launched_by = aten.sin.default, 1
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    calls = [graph.call_function(aten.sin.default, (x,)) for _ in range(3)]
    # AND of three calls the second is left out, or all that are alike, as long as that lasts
    for alike, left in ((False, [False, True, False]), (True, [True] * 3)):
        with host_reads.leaving_out(refusal, alike=alike) as known:
            assert known is True
            assert [host_reads.refused_kernel(each) is refusal.reason for each in calls] == left
        assert [host_reads.refused_kernel(each) for each in calls] == [None] * 3


def test_a_program_is_boxed_and_drops_each_value_after_its_last_use() -> None:
    # GIVEN a graph with an obstacle in the middle WHEN run region by region THEN each is given what it takes alone
    module = traced(lambda x: ((x + 1).cpu() * 2, x, 7), GPU)
    found = split(module, "cuda")
    given: list[int] = []

    def run(region: Region) -> Any:
        def call(boxed: list[Any]) -> tuple[str, ...]:
            given.append(len(boxed))
            return region.outputs

        return call

    whole: Any = program(found, [run(region) for region in found.regions])
    arguments: list[Any] = ["x"]
    results = whole(arguments)
    assert whole._boxed_call is True
    assert arguments == []
    assert given == [len(region.inputs) for region in found.regions]
    assert results == [found.outputs[0], "x", 7]
    # AND partitions are numbered from where they are told to, from 0 else
    assert [each.id for each in found.partitions("forward")] == list(range(len(found.regions)))
    assert [each.id for each in found.partitions("forward", 3)] == [3 + n for n in range(len(found.regions))]
    assert [region.graphed for region in found.regions] == [True, False]
    assert repr(found).startswith("Split(2 regions, 1 graphed, 1 of ")


def test_a_result_that_is_no_sequence_is_one() -> None:
    # GIVEN a graph that returns one tensor, bare WHEN cut THEN that is its result
    module = traced(lambda x: x + 1, GPU)
    assert split(module, "cuda").outputs == (module.graph.output_node().args[0].name,)  # type: ignore[union-attr]


def test_a_shape_is_told_where_all_of_it_is_known() -> None:
    # GIVEN a value that a size of the call's makes longer WHEN noted THEN its shape is left open
    sizes = ShapeEnv()
    with FakeTensorMode(shape_env=sizes):
        size: Any = sizes.create_unbacked_symint()
        for shape, told in (((2, 3), (2, 3)), ((size, 3), None), ((size, size), None)):
            assert frames._layout(node_of(aten.sin.default, val=torch.empty(shape)))[0] == told
    assert frames._layout(node_of(aten.sin.default, val=3)) == (None, None)


@pytest.mark.parametrize(("accumulate", "fills"), [((), True), ((False,), True), ((True,), False)])
def test_what_is_added_under_a_mask_is_no_fill(accumulate: tuple[bool, ...], fills: bool) -> None:
    # GIVEN one value for what a mask selects, to be put there or to be added WHEN normalized THEN only the first fills
    module = traced(
        lambda x, m: aten.index_put.default(x, [m], torch.zeros((), device=x.device), *accumulate), GPU, MASK
    )
    ready, _ = normalize.normalized(module, "cuda", constants=False)
    left = [node.target for node in ready.graph.nodes if node.op == "call_function"]
    assert (aten.where.self in left) is fills
    assert (aten.index_put.default in left) is not fills
    # AND a mask of fewer dimensions is spread over the rest
    rows = traced(
        lambda x, m: aten.index_put.default(x, [m], torch.zeros((), device=x.device), *accumulate),
        GPU,
        ((4,), "cuda", torch.bool),
    )
    ready, _ = normalize.normalized(rows, "cuda", constants=False)
    left = [node.target for node in ready.graph.nodes if node.op == "call_function"]
    assert left.count(aten.unsqueeze.default) == int(fills)
