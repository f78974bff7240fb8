"""A report is about the model that lives: a cell that runs again makes code that looks the same, and is another."""

from __future__ import annotations

import linecache
from typing import Any

import torch

import paramgraph_kit as pgk

CELL = "/tmp/ipykernel_1/1234.py"  # a kernel names a cell by its text: run again it has the same name
TEXT = """
class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x):
        h = torch.relu(self.first(x))
        return self.second(h * helper(h))

def helper(h):
    torch._dynamo.graph_break()
    return 1 + h.mean()

layer = Layer().to(device)
compiled = torch.compile(layer, backend="paramgraph")
results = [compiled(torch.randn(4, 8, device=device)) for _ in range(3)]
"""


def run_cell(names: dict[str, Any], text: str) -> pgk.Report:
    """Run a cell as a notebook does, and ask for the report."""
    linecache.cache[CELL] = (len(text), None, text.splitlines(keepends=True), CELL)
    with torch.no_grad():
        exec(compile(text, CELL, "exec"), names)
    return pgk.report(names["compiled"])


def test_a_cell_that_runs_again_reports_the_same() -> None:
    # GIVEN a cell whose layer breaks into several graphs, in a function that it calls
    names: dict[str, Any] = {"torch": torch, "device": pgk.device()}
    first = run_cell(names, TEXT)
    assert len(first.rows) >= 2
    # WHEN run again, as it is, while somebody still has the first layer THEN the report is of the second one
    names["kept"] = names["compiled"]
    again = run_cell(names, TEXT)
    assert [(row.kernels, row.graphed, row.launches) for row in again.rows] == [
        (row.kernels, row.graphed, row.launches) for row in first.rows
    ]
    assert not {row.graph for row in again.rows} & {row.graph for row in first.rows}
    assert [row.graph for row in pgk.report(names["kept"]).rows] == [row.graph for row in first.rows]


def test_one_graph_of_two_layers_is_in_both_reports() -> None:
    # GIVEN two layers of one class, which share a graph
    names: dict[str, Any] = {"torch": torch, "device": pgk.device()}
    text = TEXT.replace(" * helper(h)", "")
    (row,) = run_cell(names, text).rows
    layer: torch.nn.Module = names["Layer"]()
    other = torch.compile(layer.to(pgk.device()), backend="paramgraph")
    with torch.no_grad():
        other(torch.randn(4, 8, device=pgk.device()))
    assert [each.graph for each in pgk.report(other).rows] == [row.graph]


SIZES = """
class Net(torch.nn.Module):
    def __init__(self, width, negative):
        super().__init__()
        self.up, self.down, self.negative = torch.nn.Linear(8, width), torch.nn.Linear(width, 4), negative

    def forward(self, x):
        y = self.down(torch.relu(self.up(x)))
        return -y if self.negative else y

def one(width, negative=False):
    compiled = torch.compile(Net(width, negative).to(device), backend="paramgraph")
    with torch.no_grad():
        for _ in range(3):
            compiled(torch.randn(4, 8, device=device))
    return compiled
"""


def test_a_loop_over_sizes_reports_each_model_alone() -> None:
    # GIVEN a loop that compiles one class in several sizes, as one does to compare them
    names: dict[str, Any] = {"torch": torch, "device": pgk.device()}
    exec(SIZES, names)
    sizes = [(8, False), (16, False), (16, True), (32, False)]
    # WHEN each is asked for its report THEN that is about itself, and not about those before it, which are dead
    for width, negative in sizes:
        model = names["one"](width, negative)
        report = pgk.report(model)
        assert len(report.rows) == 1, str(report)
        assert report.rows[0].launches == 2
        assert "compiled again" not in str(report)
    # AND of two that live, each has its own
    other = names["one"](64)
    assert {row.graph for row in pgk.report(other).rows}.isdisjoint(row.graph for row in report.rows)
    assert [row.graph for row in pgk.report(model).rows] == [row.graph for row in report.rows]


def test_who_comes_after_the_limit_is_told_of_it() -> None:
    # GIVEN more models of one class than torch.compile makes graphs for
    names: dict[str, Any] = {"torch": torch, "device": pgk.device()}
    exec(SIZES, names)
    limit = torch._dynamo.config.recompile_limit
    *_, last = (names["one"](8 * n) for n in range(1, limit + 2))
    # WHEN the last one, which is eager, is asked for
    report = pgk.report(last)
    # THEN it has no graphs, and that is why
    assert report.rows == ()
    assert [reason.code for reason in report.reasons] == ["recompile-limit"]
    assert "nothing is compiled yet" not in str(report)
    assert "nothing is compiled yet" not in report._repr_html_()


def sequential(*last: torch.nn.Module) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(8, 8), *last).to(pgk.device())


def called(model: torch.nn.Module) -> Any:
    compiled = torch.compile(model, backend="paramgraph")
    with torch.no_grad():
        for _ in range(3):
            compiled(torch.randn(4, 8, device=pgk.device()))
    return compiled


def test_a_module_of_torchs_own_that_is_made_again_has_the_graph_that_it_uses() -> None:
    # GIVEN a container of torch's, whose code is not the user's, compiled and called
    first = called(sequential(torch.nn.Tanh(), torch.nn.Linear(8, 2)))
    (row,) = pgk.report(first).rows
    # WHEN the cell runs again, whether the first one lives or not
    second = called(sequential(torch.nn.Tanh(), torch.nn.Linear(8, 2)))
    assert [each.graph for each in pgk.report(second).rows] == [row.graph]
    del first, second
    third = called(sequential(torch.nn.Tanh(), torch.nn.Linear(8, 2)))
    # THEN its report is of what it runs, and a diagnosis finds it
    (again,) = pgk.report(third).rows
    assert (again.graph, again.graphed, again.kernels) == (row.graph, row.graphed, row.kernels)
    assert "1 of 1 partitions" in str(pgk.diagnose(third))
    assert [each.graph for each in pgk.report(torch.nn.ModuleDict({"part": third})).rows] == [row.graph]
    # AND one that only looks like it by its parameters has its own
    other = called(sequential(torch.nn.Sigmoid(), torch.nn.Linear(8, 2)))
    (its,) = pgk.report(other).rows
    assert its.graph != again.graph
    assert [each.graph for each in pgk.report(third).rows] == [again.graph]


def test_a_part_like_a_compiled_module_is_not_taken_for_it() -> None:
    # GIVEN a module of torch's that is compiled, and a model with a part like it, which is not
    part = called(sequential(torch.nn.Softplus(), torch.nn.Linear(8, 2)))
    names: dict[str, Any] = {"torch": torch}
    exec(
        "class Whole(torch.nn.Module):\n"
        "    def __init__(self, part):\n"
        "        super().__init__()\n"
        "        self.part = part\n\n"
        "    def forward(self, x):\n"
        "        return self.part(x) + 1\n",
        names,
    )
    whole = called(names["Whole"](sequential(torch.nn.Softplus(), torch.nn.Linear(8, 2))))
    # WHEN asked THEN each has its own graph
    assert {row.graph for row in pgk.report(part).rows}.isdisjoint(row.graph for row in pgk.report(whole).rows)
    assert len(pgk.report(whole).rows) == 1


def test_a_module_of_torchs_own_whose_forward_is_compiled_has_its_graph() -> None:
    # GIVEN a container of torch's whose forward is compiled in its place, as pieces of a larger model are
    model = sequential(torch.nn.Hardtanh(), torch.nn.Linear(8, 2))
    compile_forward(model)
    # WHEN asked for it, or for its forward THEN the report has what was launched
    (row,) = pgk.report(model).rows
    assert row.graphed
    assert [each.graph for each in pgk.report(model.forward).rows] == [row.graph]
    # AND one like it is told of the graph that it uses, one unlike it of its own
    alike = sequential(torch.nn.Hardtanh(), torch.nn.Linear(8, 2))
    compile_forward(alike)
    assert len(pgk.report(alike).rows) == 1
    other = sequential(torch.nn.Hardsigmoid(), torch.nn.Linear(8, 2))
    assert not pgk.report(other).rows


def compile_forward(model: torch.nn.Module) -> None:
    model.forward = torch.compile(model.forward, backend="paramgraph")
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(4, 8, device=pgk.device()))
