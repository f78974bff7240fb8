"""Regions of a cut to the last name: what they give on, what they launch, and why a body inside keeps one out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.partition import order, rules
from paramgraph_kit.partition.region import _Boxed
from paramgraph_kit.partition.rules import _control_flow_reason, _unsafe_reason
from paramgraph_kit.partition.split import split
from tests.unit.test_exact_cuts import aten, node_of
from tests.unit.test_partition_lanes import call, define_missing
from tests.unit.test_partition_rules import GPU, traced


@pytest.fixture(autouse=True, scope="module")
def _known() -> None:
    define_missing()


def test_a_region_gives_on_what_later_ones_and_the_caller_want() -> None:
    # GIVEN a graph with an operation in its middle that no graph takes
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        inner = x.sin()
        kept, read = inner.cos(), inner.exp()
        return kept, read.cpu(), read.tan().neg()

    cut = split(traced(function, GPU), "cuda")
    # WHEN cut THEN each region gives on what is wanted behind it, and nothing that it alone needs
    found = [(region.graphed, region.operations, region.outputs) for region in cut.regions]
    assert found == [
        (True, ("aten.sin", "aten.cos", "aten.exp"), ("cos", "exp")),
        (False, ("aten._to_copy",), ("_to_copy",)),
        (True, ("aten.tan", "aten.neg"), ("neg",)),
    ]
    assert [region.inputs for region in cut.regions[1:]] == [("exp",), ("exp",)]


def test_a_region_launches_where_any_of_its_operations_does() -> None:
    # GIVEN a graph that allocates besides what it computes, or that allocates alone WHEN cut THEN the first is graphed
    (region,) = split(traced(lambda x: (torch.empty_like(x), x.sin()), GPU), "cuda").regions
    assert (region.graphed, region.kernels, region.reasons) == (True, 1, ())
    (region,) = split(traced(lambda x: (torch.empty_like(x),), GPU), "cuda").regions
    assert (region.graphed, region.kernels, [reason.code for reason in region.reasons]) == (False, 0, ["no-kernels"])


def test_a_look_from_a_storage_on_is_an_operation_that_no_graph_takes() -> None:
    # GIVEN a look at an input by its offset in the storage WHEN cut THEN it runs by itself, and the rest is graphed
    cut = split(traced(lambda x: x.as_strided([2], [1], 1) * 2, GPU), "cuda")
    found = [(region.graphed, region.operations, [reason.code for reason in region.reasons]) for region in cut.regions]
    assert found == [(False, ("aten.as_strided",), ["unsafe-op"]), (True, ("aten.mul",), [])]


def test_operations_among_waits_stay_where_they_stand() -> None:
    # GIVEN kernels on two streams with a wait between, and a check that no graph has
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(2)
    streams = torch.ops.streams
    first = call(graph, aten.sin.default, x, lane=1)
    call(graph, streams.record_event.default, 3, 1)
    call(graph, streams.wait_event.default, 3, 0)
    second = call(graph, aten.cos.default, x)
    third = call(graph, aten.neg.default, first)
    graph.output((second, third))
    # WHEN cut THEN one region has them in order, with a lane, and the call owes stream 1 its place
    cut = split(torch.fx.GraphModule(torch.nn.Module(), graph), "cpu")
    (region,) = cut.regions
    assert (region.graphed, region.operations, region.kernels) == (True, ("aten.sin", "aten.cos", "aten.neg"), 3)
    assert region.run != region.module.forward
    assert cut.around is not None
    assert (cut.around.streams, cut.around.recorded, cut.around.awaited) == ((1,), [3], [])
    # AND a graph without any owes nothing
    assert split(traced(lambda x: x.sin(), GPU), "cuda").around is None


def test_another_order_may_take_just_the_memory_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a graphed and an ungraphed kernel whose results stay, so that every order takes the same
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(4)
    nodes = [graph.call_function(target, (x,)) for target in (aten.sin.default, aten.cos.default)]
    for node in nodes:
        node.meta["val"] = torch.ones(4)
    before: dict[torch.fx.Node, set[torch.fx.Node]] = {node: set() for node in nodes}
    # WHEN ordered with no memory to spare THEN the ungraphed one comes first, and with less it stays
    for budget, first in ((1.0, nodes[1]), (0.99, nodes[0])):
        monkeypatch.setattr(order, "memory_budget", lambda budget=budget: budget)
        assert order.schedule(nodes, before, {nodes[1]}, set(nodes), "cpu")[0] is first


def test_code_of_a_region_takes_its_list_apart_where_there_is_something_in_it() -> None:
    # GIVEN the names of a region's inputs, as torch writes them, or none WHEN its head is written THEN in these words
    code = _Boxed()
    written = code.gen_fn_def(["self", "x : torch.Tensor", "y=None"], " -> int")
    assert written == "def forward(self, boxed) -> int:\n    x, y, = boxed\n    boxed.clear()"
    assert code.gen_fn_def(["self"], "") == "def forward(self, boxed):\n    boxed.clear()"


def body_of(*targets: Any) -> torch.fx.GraphModule:
    """A body of a higher-order operation, of these operations on its input."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(2, device="meta")
    for target in targets:
        arguments = (1, 0) if target.namespace == "streams" else (x,)
        made = call(graph, target, *arguments)
        made.meta["val"] = torch.ones(2, device="meta")
    graph.output(x)
    return torch.fx.GraphModule(torch.nn.Module(), graph)


EIGH = ("unsafe-op", "cuSOLVER's eigensolver cannot be captured, inside by aten._linalg_eigh")


@pytest.mark.parametrize(
    ("targets", "found"),
    [
        (("sin", "cos"), None),
        (("sin", "wait"), ("user-stream", "streams are ordered inside")),
        (
            ("sin", "eigh", "wait"),
            ("unsafe-op", "cuSOLVER's eigensolver cannot be captured, inside by aten._linalg_eigh"),
        ),
        (("eigh",), EIGH),
    ],
)
def test_a_body_keeps_its_operation_out_by_what_comes_first_in_it(targets: Any, found: Any) -> None:
    # GIVEN an operation with two bodies, of which the second has these WHEN asked THEN by the first that no graph takes
    named = {"sin": aten.sin.default, "cos": aten.cos.default, "eigh": aten._linalg_eigh.default}
    named["wait"] = torch.ops.streams.wait_event.default
    owner: Any = torch.nn.Module()
    owner.first, owner.second = body_of(aten.sin.default), body_of(*(named[each] for each in targets))
    graph = torch.fx.Graph(owner)
    bodies = graph.get_attr("first"), graph.get_attr("second")
    node = graph.call_function(torch.ops.higher_order.auto_functionalized_v2, bodies)
    assert _control_flow_reason(node, "meta") == found
    # AND a branch is told as one, whatever is in it; an operation without bodies has none
    branch = graph.call_function(torch.ops.higher_order.cond, (True, *bodies))
    assert _control_flow_reason(branch, "meta") == ("control-flow", "a branch or loop on the value of a tensor")
    assert _control_flow_reason(graph.call_function(aten.sin.default, bodies), "meta") is None


def test_what_is_unsafe_is_told_by_what_it_makes_or_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN operations that torch lists as unsafe, or not
    listed = {"is": True}
    real = torch_name
    monkeypatch.setattr(
        rules, "torch_name", lambda name: (lambda node: listed["is"]) if name.startswith("is_cuda") else real(name)
    )
    x, sparse = torch.ones(2), torch.eye(2).to_sparse()
    # WHEN asked THEN one sparse result among others is enough, and a mask is told
    for made in ([x, sparse], [sparse], sparse):
        said = _unsafe_reason(node_of(aten.sin.default, x, val=made))
        assert said == ("unsafe-op", "makes a sparse tensor, whose size the host must know")
    said = _unsafe_reason(node_of(aten.sin.default, x, val=x))
    assert said == ("unsafe-op", "torch lists it as unsafe in CUDA graphs")
    said = _unsafe_reason(node_of(aten.index_put.default, x, [x], x, val=x))
    assert said == ("unsafe-op", "a mask as index: the host must wait for the number of its true elements")
    # AND what runs an operation that is tagged so is as that is
    listed["is"] = False
    library: Any = torch.library.Library("pgk_exact_regions", "DEF")  # type: ignore[no-untyped-call]
    library.define("unsafe(Tensor x) -> Tensor", tags=(torch.Tag.cudagraph_unsafe,))
    tagged = torch.ops.pgk_exact_regions.unsafe.default
    assert _unsafe_reason(node_of(aten.sin.default, x, val=x)) is None
    for first, told in ((tagged, True), (aten.sin.default, False)):
        node = torch.fx.Graph().call_function(torch.ops.higher_order.auto_functionalized_v2, (first,))
        said = _unsafe_reason(node)
        assert said == (("unsafe-op", f"{tagged} is tagged cudagraph_unsafe") if told else None)
