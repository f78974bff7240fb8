"""The report: which graphs are a model's, what they cost, and why the rest is not in them."""

from __future__ import annotations

import dataclasses
import gc
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paramgraph_kit as pgk
from paramgraph_kit.trace import Role

DEVICE = pgk.device()

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="counts kernels of the simulator")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    gc.collect()
    yield
    torch._dynamo.reset()
    gc.collect()


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x)))  # type: ignore[no-any-return]


class Breaks(Plain):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.a(x))
        torch._dynamo.graph_break()
        return self.b(y)  # type: ignore[no-any-return]


class Leaves(Plain):
    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        return self.b(y) + y.cpu().sum().to(y.device)  # type: ignore[no-any-return]


class Blocks(nn.Module):
    def __init__(self, how: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(how(Plain()) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def inputs() -> Tensor:
    return torch.randn(4, 8).to(DEVICE)


def run(model: Any, times: int = 3) -> None:
    with torch.no_grad():
        kept = [model(inputs()) for _ in range(times)]
    del kept


def test_nothing_compiled_is_said_and_not_raised() -> None:
    # GIVEN a model that nobody called WHEN
    report = pgk.report(pgk.compile(Plain()))
    # THEN
    assert str(report).splitlines()[2:] == [
        'nothing is compiled yet: call the model once, compiled with backend="paramgraph"',
        "if it was called, each call is eager, as after a graph break in a loop: TORCH_LOGS=graph_breaks says where",
    ]
    assert repr(report) == "Report(0 of 0 partitions graphed)"
    assert "nothing is compiled yet" in report._repr_html_()


def test_a_graphed_model_in_numbers() -> None:
    # GIVEN
    model = pgk.compile(Plain().to(DEVICE))
    # WHEN called with three inputs at three addresses
    run(model)
    report = pgk.report(model)
    # THEN the first call captured, two launched, and both had to patch
    (row,) = report.rows
    assert (row.graphed, row.kernels, row.nodes, row.executables) == (True, 3, 3, 1)
    assert (row.launches, row.patched, row.ungraphed_calls, row.copied_bytes) == (2, 2, 1, 0)
    # two addmm with bias, input, weight and result, and a relu with input and result
    assert row.words == 4 + 2 + 4
    assert report.kernels == (3, 3)
    assert row.workspace_bytes == report.workspace_bytes == 2 * 512
    assert row.graph_bytes == report.graph_bytes > 0
    assert row.patching == "simulated"
    assert report.reasons == ()


def test_text_and_html_say_the_same_and_are_deterministic() -> None:
    # GIVEN
    model = pgk.compile(Plain().to(DEVICE))
    run(model)
    # WHEN
    report = pgk.report(model)
    text = str(report)
    # THEN
    lines = text.splitlines()
    assert lines[0] == "paramgraph report"
    assert lines[1] == report.trace.source.label()
    assert lines[1].startswith("simulated: ")
    assert lines[3].split()[3:-1] == ["graphed", "3", "3", "1", "10", "2", "2", "1,024"]
    assert "kernels in graphs     3 of 3 (100 %)" in lines
    assert "inputs copied         0 bytes a call" in lines
    assert "not in graphs" not in text
    assert str(pgk.report(model)) == text
    assert "0x" not in text
    assert repr(report) == "Report(1 of 1 partitions graphed, 3 of 3 kernels in graphs)"
    bundle = report._repr_mimebundle_()
    assert bundle["text/plain"] == text
    assert "<td>3 of 3 (100 %)</td>" in bundle["text/html"]


def test_graph_breaks_count_with_the_users_line() -> None:
    # GIVEN a forward that Dynamo resumes after a break
    model = pgk.compile(Breaks().to(DEVICE))
    run(model)
    # WHEN
    report = pgk.report(model)
    # THEN both halves are there, and why they are two
    assert len(report.rows) == 2
    assert report.kernels == (3, 3)
    (reason,) = report.reasons
    line = inspect.getsourcelines(Breaks.forward)[1] + 2
    assert reason.code == "graph-break"
    assert reason.frame is not None
    assert (reason.frame.file, reason.frame.line) == (__file__, line)
    assert str(report).splitlines()[-1].startswith("  graph break: ")
    # and nothing is called complete beside it
    assert " %)" not in str(report)
    assert "of the compiled parts; what runs at 1 graph break is eager, and not counted" in str(report)
    assert str(report).endswith(f"test_report.py:{line} torch._dynamo.graph_break()")


def test_what_is_not_graphed_is_counted_and_explained() -> None:
    # GIVEN a model with a detour over the CPU
    model = pgk.compile(Leaves().to(DEVICE))
    run(model)
    # WHEN
    report = pgk.report(model)
    # THEN
    inside, total = report.kernels
    assert total is not None
    assert 0 < inside < total
    outside = [row for row in report.rows if not row.graphed]
    assert [row.partition for row in outside] == ["outside"]
    assert {reason.code for reason in report.reasons} >= {"device-copy", "cpu-op"}
    copy = next(reason for reason in report.reasons if reason.code == "device-copy")
    assert copy.frame is not None
    assert "y.cpu().sum()" in copy.frame.text


def test_a_refused_partition_is_ungraphed_with_its_reason() -> None:
    # GIVEN the same code asked not to be graphed
    model = pgk.compile(Plain().to(DEVICE), select="never")
    run(model)
    # WHEN
    report = pgk.report(model)
    # THEN
    assert [row.graphed for row in report.rows] == [False]
    assert report.kernels == (0, 3)
    assert report.rows[0].ungraphed_calls == 3
    assert "select='never' was asked for" in str(report)
    assert "addresses patched by  nobody: there is no graph" in str(report)


def test_unknown_kernels_stay_unknown() -> None:
    # GIVEN a refused partition whose kernels nobody counted, as on a GPU
    model = pgk.compile(Plain().to(DEVICE), select="never")
    run(model)
    from paramgraph_kit.backend.registry import compiled_graphs

    for graph in compiled_graphs():
        graph.kernels.clear()
    # WHEN
    report = pgk.report(model)
    # THEN no number is made up
    assert report.kernels == (0, None)
    assert "kernels in graphs     0 of an unknown number" in str(report)
    assert "unknown" in str(report).splitlines()[3]


def test_each_model_has_its_own_graphs() -> None:
    # GIVEN two models of different classes, two of torch's own class, and a function
    before = len(pgk.report().rows)  # Dynamo itself keeps the first half of a function with a graph break for ever
    first, second = pgk.compile(Plain().to(DEVICE)), pgk.compile(Leaves().to(DEVICE))
    third = pgk.compile(nn.Sequential(nn.Linear(8, 8)).to(DEVICE))
    fourth = pgk.compile(nn.Sequential(nn.Linear(8, 8), nn.ReLU()).to(DEVICE))
    double = pgk.compile(lambda x: x * 2)
    for model in (first, second, third, fourth, double):
        run(model)
    # WHEN
    reports = [pgk.report(model) for model in (first, second, third, fourth, double)]
    # THEN each report counts its own, and the report of everything has all
    own = [report.kernels for report in reports]
    assert own[0] == (3, 3)
    assert own[2:] == [(1, 1), (2, 2), (1, 1)]
    assert len(pgk.report().rows) == before + sum(len(report.rows) for report in reports)


def test_compiled_parts_belong_to_the_whole_and_to_whoever_calls_it() -> None:
    # GIVEN a model compiled block by block, called from a function that is not compiled
    model = Blocks(pgk.compile).to(DEVICE)

    def step(x: Tensor) -> Tensor:
        return model(x) + 1  # type: ignore[no-any-return]

    run(step)
    # WHEN / THEN one graph serves all layers, whichever way one asks
    for what in (model, model.layers[0], step):
        report = pgk.report(what)
        assert len(report.rows) == 1
        assert (report.rows[0].launches, report.rows[0].ungraphed_calls) == (8, 1)


def test_training_has_a_forward_and_a_backward() -> None:
    # GIVEN
    model = pgk.compile(Plain().to(DEVICE))
    # WHEN
    for _ in range(2):
        model(inputs()).sum().backward()
    # THEN
    names = [row.graph.split()[0] for row in pgk.report(model).rows]
    assert names == ["forward", "backward"]


def test_the_trace_has_every_word_and_where_memory_comes_from() -> None:
    # GIVEN
    model = pgk.compile(Plain().to(DEVICE))
    run(model)
    # WHEN
    trace = pgk.report(model).trace
    # THEN
    (partition,), (capture,) = trace.partitions, trace.captures
    assert (partition.graphed, partition.kernels, capture.partition) == (True, 3, partition.id)
    assert "aten.addmm" in partition.operations
    assert capture.edges == ((0, 1), (1, 2))
    assert [node.lane for node in capture.nodes] == [0, 0, 0]
    assert capture.words_patched == 10
    roles = [allocation.role for allocation in capture.allocations]
    assert roles.count(Role.INPUT) == 5
    assert roles.count(Role.OUTPUT) == 1
    assert [a.offset for a in capture.allocations if a.role is Role.WORKSPACE] == [0, 512]
    names = {a.name for a in capture.allocations if a.role is not Role.WORKSPACE}
    assert names == {"x", "a.weight", "a.bias", "b.weight", "b.bias", "output 0"}
    text = pgk.explore(model).text()
    assert "capture 0: 3 nodes, 2 edges, 10 words to patch" in text


def test_a_dropped_model_leaves_the_report() -> None:
    # GIVEN
    before = pgk.report().rows
    model = pgk.compile(Plain().to(DEVICE))
    run(model)
    assert len(pgk.report(model).rows) == 1
    # WHEN its compiled code goes
    torch._dynamo.reset()
    gc.collect()
    # THEN
    assert pgk.report(model).rows == ()
    assert pgk.report().rows == before


def test_copies_are_counted_where_they_are_made() -> None:
    # GIVEN a launched graph, an input of which every launch has to copy, and one copied because it was in use
    from paramgraph_kit.backend.registry import compiled_graphs
    from paramgraph_kit.backend.tracing import copied_each_launch, live_variants

    model = pgk.compile(Plain().to(DEVICE))
    run(model)
    graph = next(g for g in compiled_graphs() if pgk.report(model).rows[0].graph == g.name)
    (launcher,) = graph.launchers
    (variant,) = live_variants(launcher)
    position = next(k for k, spec in enumerate(variant.captured.specs) if spec is not None and spec.size == (4, 8))
    spec = variant.captured.specs[position]
    assert spec is not None
    variant.captured.specs[position] = dataclasses.replace(spec, alignment=4)

    launcher.code = dataclasses.replace(launcher.code, aligned=lambda: (position,))  # what Inductor's path says
    # WHEN / THEN 4 x 8 floats are copied in each of the two launches
    assert copied_each_launch(launcher, variant) == 128
    assert pgk.report(model).copied_bytes == 2 * 128
    assert "inputs copied         256 bytes in 2 launches" in str(pgk.report(model))


def test_what_a_parameterized_function_is_captured_again_for_is_named() -> None:
    # GIVEN a function that gets another shape, and another number, at each call
    def f(table: torch.Tensor, weight: float) -> torch.Tensor:
        return table.sin() * weight

    shaped, numbered = pgk.parameterize(f), pgk.parameterize(f)
    with torch.no_grad():
        for rows in (2, 3, 4):
            shaped(torch.ones(rows, 8).to(DEVICE), 0.5)
            numbered(torch.ones(2, 8).to(DEVICE), 0.5 * rows)
    # WHEN reported THEN each is named
    assert "3 graphs, each call is a new one: table had the shape (3, 8), then (4, 8)" in str(pgk.report(shaped))
    assert "3 graphs, each call is a new one: other numbers among its arguments" in str(pgk.report(numbered))


def test_graphs_that_are_captured_again_and_again_and_never_launched_are_a_warning() -> None:
    # GIVEN a model that gets another shape at each call
    model = torch.compile(Plain().to(DEVICE), backend="paramgraph", dynamic=True)
    with torch.no_grad():
        for rows in (2, 3, 4):
            model(torch.ones(rows, 8).to(DEVICE))
        # WHEN reported THEN it says that nothing was ever launched
        told = str(pgk.report(model))
        assert "captured 3 times, each call is a new one" in told
        # AND what of which input was another each time
        assert "had the shape (3, 8), then (4, 8)" in told
        # and no longer once something was
        model(torch.ones(3, 8).to(DEVICE))
        assert "never launched" not in str(pgk.report(model))
