"""What a cut asks besides: what is the same at each call, what waits on the host, and whose values are called what."""

from __future__ import annotations

import operator
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from paramgraph_kit.partition import fixed, frames, host_reads
from paramgraph_kit.partition.fixed import MOST, _fixed, _is_on, _repeats
from paramgraph_kit.partition.frames import user_frame
from paramgraph_kit.partition.names import modules_by_name, value_names
from paramgraph_kit.partition.nodes import Kind, from_storage, is_random, kind_of, launches, written
from paramgraph_kit.partition.order import _bytes
from tests.unit.test_exact_cuts import aten, node_of
from tests.unit.test_exact_normalized import fake


def test_operations_repeat_that_depend_on_their_arguments_alone() -> None:
    # GIVEN operations on the host WHEN asked THEN those repeat that draw, write, allocate and find out nothing
    x = torch.ones(4)
    repeat = [node_of(aten.sin.default, x), node_of(aten.arange.default, 4), node_of(operator.getitem, x, 0)]
    others = [
        node_of(aten.rand.default, [4]),
        node_of(aten.add_.Tensor, x, x),
        node_of(aten.empty.memory_format, [4]),
        node_of(aten.nonzero.default, x),
        node_of(aten._local_scalar_dense.default, x),
        node_of(operator.add, 1, 2),
    ]
    assert [_repeats(node) for node in repeat] == [True] * 3
    assert [_repeats(node) for node in others] == [False] * 6


def graph_of(*values: Any) -> tuple[torch.fx.GraphModule, list[torch.fx.Node]]:
    """A constant, an operation on it for each of these traced values, and all of them as results."""
    owner: Any = torch.nn.Module()
    owner.register_buffer("table", torch.ones(4))
    graph = torch.fx.Graph(owner)
    nodes = [graph.get_attr("table")]
    nodes[0].meta["val"] = torch.ones(4)
    for value in values:
        nodes.append(graph.call_function(aten.sin.default, (nodes[0],)))
        nodes[-1].meta["val"] = value
    graph.output(tuple(nodes))
    return torch.fx.GraphModule(owner, graph), list(graph.nodes)[:-1]


def test_what_is_worked_out_on_the_host_is_fixed_and_constants_alone_are_nothing() -> None:
    # GIVEN a constant, alone or with what is made of it on the host, in part elsewhere, too large, or nowhere
    assert _fixed(graph_of()[0]) == set()
    with FakeTensorMode():
        large = torch.empty(MOST + 1)
    small, meta = torch.ones(2), torch.ones(2, device="meta")
    module, nodes = graph_of(small, meta, [small, meta], [meta, small], large, 3, [small, torch.ones(3)])
    # WHEN asked THEN what is small and on the host, all of it, is fixed
    assert [node in _fixed(module) for node in nodes] == [True, True, False, False, False, False, False, True]


def test_a_size_that_is_not_known_is_not_small() -> None:
    # GIVEN a tensor of which one size is known and one is not WHEN asked THEN it is no small one
    def shaped(*shape: Any) -> Any:
        return SimpleNamespace(
            device=SimpleNamespace(type="cpu"),
            layout=torch.strided,
            shape=shape,
            stride=lambda: (1,) * len(shape),
            storage_offset=lambda: 0,
            numel=lambda: 8,
        )

    assert fixed._is_small_on_the_host(shaped(2, 4))
    assert not fixed._is_small_on_the_host(shaped(2, object()))


def test_what_is_on_a_device_is_there_as_a_whole() -> None:
    # GIVEN results on one device, on two, and none WHEN asked THEN those of one are on it
    x, y = torch.ones(2), torch.ones(2, device="meta")
    cases = [([x], True), ([x, x], True), ([x, y], False), ([y, x], False), ([y], False), ([], False), (3, False)]
    assert [_is_on(node_of(aten.sin.default, x, val=made), "cpu") for made, _ in cases] == [on for _, on in cases]


def test_real_work_is_done_plainly_whatever_is_set_around_it() -> None:
    # GIVEN inference mode and autocast WHEN real work is done THEN without these, and without gradients
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), fixed._plainly():
        assert not torch.is_inference_mode_enabled()
        assert not torch.is_autocast_enabled("cpu")
        assert not torch.is_grad_enabled()
    with torch.enable_grad(), fixed._plainly():
        assert not torch.is_grad_enabled()


# -- where and by whom


@pytest.mark.parametrize(
    ("shell", "shown"),
    [
        (None, "f.py"),
        (SimpleNamespace(), "f.py"),
        (SimpleNamespace(compile=SimpleNamespace(format_code_name=lambda file: None)), "f.py"),
        (SimpleNamespace(compile=SimpleNamespace(format_code_name=lambda file: ("Cell", "In[12]"))), "<cell 12>"),
        (SimpleNamespace(compile=SimpleNamespace(format_code_name=lambda file: ("Cell", "In[ ]"))), "f.py"),
    ],
)
def test_a_file_is_shown_as_the_notebook_s_cell_that_it_is(
    shell: Any, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a notebook that tells which cell a file is, or does not WHEN shown THEN as that cell, or as it is
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert frames._display("f.py") == shown
    assert frames._display("f.py (rewritten)") == f"{shown} (rewritten)"  # lines that a fix tries
    monkeypatch.delitem(sys.modules, "IPython")
    assert frames._display("f.py") == "f.py"
    assert frames._display("<ipython-input-7-0a1b2c> (rewritten)") == "<cell 7> (rewritten)"


def test_a_line_of_a_trace_has_the_text_behind_it_unless_that_is_the_next_line() -> None:
    # GIVEN traces with texts, without, and at their end WHEN asked for the user's frame THEN with its own text
    for trace, text in (
        ('  File "a.py", line 3, in f\n    y = x', "y = x"),
        ('  File "a.py", line 3, in f', ""),
        ('  File "a.py", line 3, in f\n  File "<frozen x>", line 1, in g\n    z', ""),
        ('  File "b.py", line 1, in g\n    z\n  File "a.py", line 3, in f\n', ""),
    ):
        found = user_frame(trace)
        assert found is not None
        assert (found.file, found.line, found.text) == ("a.py", 3, text)


def test_the_path_of_a_node_s_module_is_that_of_its_names_before_too() -> None:
    # GIVEN nodes of two modules, with names that they had before they were decomposed, and one of none
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    up, down = (graph.call_function(aten.sin.default, (x,), name=name) for name in ("mm", "mm_1"))
    graph.output((up, down))
    for node, path in ((up, "up"), (down, "down")):
        node.meta["nn_module_stack"] = {"k": (f"L['self']._modules['{path}']", torch.nn.Linear)}
    up.meta["from_node"] = [SimpleNamespace(name="linear"), SimpleNamespace(name="first")]
    up.meta["source_fn_stack"] = [("linear_5", torch.nn.functional.linear)]
    down.meta["from_node"] = [SimpleNamespace(name="linear"), object()]
    # WHEN asked THEN by all of these, the first that had a name keeps it
    found = modules_by_name(torch.fx.GraphModule(torch.nn.Module(), graph))
    assert found == {"linear": "up", "first": "up", "linear_5": "up", "mm": "up", "": "down", "mm_1": "down"}


def test_a_result_s_name_is_that_of_what_it_looks_at_and_of_nothing_it_was_computed_from() -> None:
    # GIVEN a result that is a view of a view of what was computed WHEN called THEN these three have its name
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    inner = graph.call_function(aten.cos.default, (x,))
    made = graph.call_function(aten.sin.default, (inner,))
    view = graph.call_function(aten.t.default, (made,))
    last = graph.call_function(aten.view.default, (view, [2]))
    graph.output((last,)).meta["desc"] = [type("PlainAOTOutput", (), {"idx": 0})()]
    names = value_names(torch.fx.GraphModule(torch.nn.Module(), graph), ())
    assert [names[node.name] for node in (last, view, made, inner)] == ["output 0"] * 3 + ["cos"]


# -- what waits on the host


def test_experts_have_their_kernel_on_two_kinds_of_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN experts in bfloat16, on a card or on the host, and a card of some capability, or none
    with FakeTensorMode():
        there, here = (torch.empty(2, 2, dtype=torch.bfloat16, device=device) for device in ("cuda", "cpu"))

    def slow(first: torch.Tensor, second: torch.Tensor, capability: tuple[int, int] | None) -> bool:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
        return host_reads._is_slow_grouped_mm(node_of(aten._grouped_mm.default, first, second, val=second))

    # WHEN asked THEN it is slow on cards of other kinds, and its first operand tells where it is
    assert [slow(there, there, (n, 0)) for n in (8, 9, 10, 12)] == [True, False, False, True]
    assert not slow(there, there, None)
    assert [slow(here, here, (8, 0)), slow(here, there, (8, 0)), slow(there, here, (8, 0))] == [False, False, True]


def test_magma_solves_several_matrices_where_any_operand_has_several() -> None:
    # GIVEN matrices, one or several of them WHEN asked THEN one operand is enough
    one, several = torch.ones(2, 2), torch.ones(2, 2, 2)
    cases = [(one, one, False), (several, one, True), (one, several, True), (several, several, True)]
    for left, right, batched in cases:
        assert host_reads._is_batched(node_of(aten.cholesky_solve.default, left, right)) is batched


def test_a_custom_operation_s_python_is_read_where_it_is_for_all_devices() -> None:
    # GIVEN custom operations that read a tensor on the host, for all devices and for one, and one that reads none
    @torch.library.custom_op("pgk_exact::reads", mutates_args=())
    def reads(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item()

    @torch.library.custom_op("pgk_exact::reads_there", mutates_args=(), device_types="cpu")
    def reads_there(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item()

    @torch.library.custom_op("pgk_exact::adds", mutates_args=())
    def adds(x: torch.Tensor) -> torch.Tensor:
        return x + x.sum()

    # WHEN asked THEN the first is told with what reads
    host_reads._read_by_its_python.cache_clear()
    told = [host_reads._read_by_its_python(f"pgk_exact::{name}") for name in ("reads", "reads_there", "adds", "none")]
    assert told == ["its Python reads a tensor on the host: x.sum().item()", None, None, None]
    # AND what a capture has failed in is told as that, and what is neither is not
    x = torch.ones(2)
    nodes = [node_of(getattr(torch.ops.pgk_exact, name).default, x, val=x) for name in ("reads", "adds")]
    assert [host_reads.host_read(node) for node in nodes] == told[::2]
    host_reads._learned["pgk_exact.adds.default"] = "its capture failed"
    try:
        assert host_reads.host_read(nodes[1]) == "its capture failed"
    finally:
        del host_reads._learned["pgk_exact.adds.default"]


# -- kinds


def test_a_module_s_attribute_is_a_constant_or_a_body() -> None:
    # GIVEN attributes that are a tensor and a module WHEN asked THEN the second is a body
    owner: Any = torch.nn.Module()
    owner.register_buffer("table", torch.ones(2))
    owner.body = torch.nn.Linear(2, 2)
    graph = torch.fx.Graph(owner)
    assert [kind_of(graph.get_attr(name)) for name in ("table", "body")] == [Kind.CONSTANT, Kind.MODULE]


def test_memory_is_written_that_is_given_by_place_or_by_name() -> None:
    # GIVEN writes into arguments, given by place, by name as the next one, and as one far behind WHEN asked THEN these
    x, y = torch.ones(4), torch.ones(4)
    graph = torch.fx.Graph()
    given = {name: graph.placeholder(name) for name in ("x", "y")}
    for node, value in zip(given.values(), (x, y), strict=True):
        node.meta["val"] = value
    calls = [
        graph.call_function(aten.copy_.default, (given["x"], given["y"])),
        graph.call_function(aten.sin.out, (given["x"],), {"out": given["y"]}),
        graph.call_function(aten.add.out, (given["x"], given["x"]), {"out": given["y"]}),
        graph.call_function(aten.add.out, (given["x"], given["x"])),
        graph.call_function(aten.sin.default, (given["x"],)),
    ]
    assert [[n.name for n in written(call)] for call in calls] == [["x"], ["y"], ["y"], [], []]


def test_a_kernel_is_a_device_s_that_makes_or_takes_anything_there() -> None:
    # GIVEN kernels that make and take tensors of two devices WHEN asked THEN either is enough
    here, there = "cpu", "cuda"
    for made, taken, devices in (
        (here, here, {"cpu"}),
        (there, here, {"cpu", "cuda"}),
        (here, there, {"cpu", "cuda"}),
        (there, there, {"cuda"}),
    ):
        each = fake(2, device=taken)
        node = node_of(aten.add.Tensor, each, each, val=fake(2, device=made))
        assert {device for device in ("cpu", "cuda", "meta") if launches(node, device)} == devices
    assert not launches(node_of(aten.empty.memory_format, [2], val=torch.ones(2)), "cpu")


def traced_node(graph: torch.fx.Graph, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
    """A call with a value on memory of its own."""
    node = graph.call_function(target, args, kwargs)
    node.meta["val"] = torch.ones(4)
    return node


def test_what_counts_from_where_an_input_s_storage_begins_is_told_with_what_copies_that() -> None:
    # GIVEN looks at an input and at what was computed, with an offset and without
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(4)
    computed = traced_node(graph, aten.sin.default, x)
    from_input = traced_node(graph, aten.as_strided.default, x, [2], [1], 3)
    by_name = traced_node(graph, aten.as_strided_copy.default, x, [2], [1], storage_offset=0)
    traced_node(graph, aten.as_strided.default, x, [2], [1])
    traced_node(graph, aten.as_strided.default, computed, [2], [1], 3)
    traced_node(graph, aten.arange.default, 4)
    # AND copies of an input with parts written over, one of the other, of what was computed, and looks at these
    once = traced_node(graph, aten.slice_scatter.default, x, computed, 0, 0, 4)
    twice = traced_node(graph, aten.select_scatter.default, once, computed, 0, 0)
    aside = traced_node(graph, aten.slice_scatter.default, computed, x, 0, 0, 4)
    traced_node(graph, aten.as_strided.default, aside, [2], [1], 3)
    # WHEN nobody looks at the copies THEN the first two are told, in order
    assert from_storage(list(graph.nodes)) == [from_input, by_name]
    # AND who does takes along what made the copy
    last = traced_node(graph, aten.as_strided.default, twice, [2], [1], 3)
    assert from_storage(list(graph.nodes)) == [from_input, by_name, once, twice, last]
    into = traced_node(graph, aten.as_strided_scatter.default, x, computed, [2], [1], 2)
    again = traced_node(graph, aten.as_strided.default, into, [2], [1], 1)
    assert from_storage(list(graph.nodes)) == [from_input, by_name, once, twice, last, into, again]


def test_an_operation_that_writes_a_view_of_an_input_beside_others_looks_from_its_storage() -> None:
    # GIVEN operations of somebody's that write into an input and into what was made, with offsets and other numbers
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(4)
    made = traced_node(graph, aten.sin.default, x)
    operation = torch.ops.higher_order.auto_functionalized_v2
    given: list[dict[str, Any]] = [
        {"_all_bases": [made, x], "_x_storage_offset": 2},
        {"_all_bases": [x, made], "_x_storage_offset": None, "_x_size": [2]},
        {"_all_bases": [x], "scale": 3},
    ]
    calls = [graph.call_function(operation, (aten.add_.Tensor,), each) for each in given]
    # WHEN asked THEN it is that with an offset
    assert from_storage(list(graph.nodes)) == calls[:1]


def test_what_is_given_what_was_drawn_draws_nothing_though_torch_says_so() -> None:
    # GIVEN attention's backward passes, which torch says draw numbers, and are given those WHEN asked THEN none draws
    targets = [
        aten._scaled_dot_product_efficient_attention_backward.default,
        aten._scaled_dot_product_cudnn_attention_backward.default,
    ]
    graph = torch.fx.Graph()
    assert all(torch.Tag.nondeterministic_seeded in target.tags for target in targets)
    assert not any(is_random(graph.call_function(target)) for target in targets)
    assert is_random(graph.call_function(aten.rand.default, ([2],)))


def test_bytes_that_are_known_while_running_count_as_they_are_guessed() -> None:
    # GIVEN tensors of a size that is known, that is guessed, and of which nothing is known WHEN counted THEN so
    def tensor(nbytes: Any) -> Any:
        return SimpleNamespace(untyped_storage=lambda: SimpleNamespace(nbytes=lambda: nbytes))

    def symbol(hint: Any) -> Any:
        return SimpleNamespace(node=SimpleNamespace(hint=hint))

    assert [_bytes(tensor(nbytes)) for nbytes in (512, 0, symbol(640), symbol(0), symbol(None))] == [512, 0, 640, 0, 0]


def test_a_constant_is_kept_as_an_index_and_not_where_a_kernel_reads_it() -> None:
    # GIVEN a constant of the host that is an index, and one that a kernel reads, beside what is worked out
    owner: Any = torch.nn.Module()
    owner.register_buffer("rows", torch.tensor([0, 1]))
    owner.register_buffer("scale", torch.tensor(2.0))
    graph = torch.fx.Graph(owner)
    x = graph.placeholder("x")
    rows, scale = graph.get_attr("rows"), graph.get_attr("scale")
    made = graph.call_function(aten.arange.default, (2,))
    by_rows = graph.call_function(aten.index.Tensor, (x, [rows]))
    by_made = graph.call_function(aten.index.Tensor, (x, [made]))
    scaled = graph.call_function(aten.mul.Tensor, (by_rows, scale))
    graph.output((by_made, scaled))
    for node in (x, by_rows, by_made, scaled):
        node.meta["val"] = fake(2, 2)
    for node in (rows, made):
        node.meta["val"] = fake(2, device="cpu", dtype=torch.int64)
    scale.meta["val"] = fake(device="cpu")
    # WHEN kept THEN both indices are on the device, and the number stays where it is
    found = fixed.keep_fixed(torch.fx.GraphModule(owner, graph), "cuda", compute=False)
    assert [each.nbytes for each in found] == [16, 16]
