"""What a launcher asks for where its capture was refused: Inductor's code once more, without what is at fault."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from paramgraph_kit.backend.direct.recipe import GraphCode
from paramgraph_kit.backend.inductor import _Again
from paramgraph_kit.backend.registry import CompiledGraph
from paramgraph_kit.partition.host_reads import refused_kernel
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Reason

WHY = Reason("unexplained-word", "bytes 8..16 differ", operation="kernelHistogram1D")


def refusal(operation: Any) -> RefusedError:
    error = RefusedError(WHY)
    error.launched_by = operation, 0
    return error


def compiled() -> tuple[_Again, GraphCode, list[Any], torch.fx.Graph]:
    """A graph with two histograms and a sum, compiled; what compiles it again notes what it left out."""
    traced = torch.fx.Graph()
    x = traced.placeholder("x")
    for _ in range(2):
        x = traced.call_function(torch.ops.aten.histc.default, (x, 4, 0, 4))
    traced.output((traced.call_function(torch.ops.aten.sum.default, (x,)),))
    graph, launcher, other = CompiledGraph("inference 0"), mock.Mock(), mock.Mock()
    graph.launchers, graph.outside = [launcher], 3
    graph.reasons.append(Reason("no-kernels", "old"))
    code, again, left_out = GraphCode(lambda inputs: "old", graph), _Again(), []

    def compile_(asked: _Again) -> Any:
        assert asked is again
        assert (graph.launchers, graph.reasons, graph.outside) == ([], [], 0)
        left_out.append([node.name for node in traced.nodes if refused_kernel(node)])
        graph.launchers.append(other)
        graph.outside = 2
        return SimpleNamespace(current_callable=lambda inputs: "new") if left_out[-1] else None

    again.ready(code, compile_)
    return again, code, left_out, traced


def run(_: list[Any]) -> str:
    return "old partition"


def test_what_launches_a_refused_kernel_is_left_out_from_the_next_call_on() -> None:
    # GIVEN compiled code of which a launcher's capture was refused for one of two histograms
    again, code, left_out, traced = compiled()
    launcher: Any = code.graph.launchers[0]
    # WHEN it asks for other code THEN its partition goes on for this call, and later calls run what leaves out both
    assert again(run, refusal(torch.ops.aten.histc.default)) is run
    assert left_out == [["histc_default", "histc_default_1"]]
    assert code([]) == "new"
    assert code.kept is not None
    launcher.pause.assert_called_once_with()  # its other partitions are not captured for one call
    assert launcher not in code.graph.launchers
    assert not any(refused_kernel(node) for node in traced.nodes)  # afterwards nothing is


def test_where_nothing_can_be_left_out_all_stays_as_it_is() -> None:
    # GIVEN such code WHEN another operation, none, or an unknown failure is at fault THEN nothing changes
    again, code, _, _ = compiled()
    launchers, reasons = list(code.graph.launchers), list(code.graph.reasons)
    nobody = RefusedError(WHY)
    for error in (refusal(torch.ops.aten.mm.default), nobody, refusal(object()), ValueError("out of memory")):
        assert again(run, error) is None
        assert code([]) == "old"
        assert (code.graph.launchers, code.graph.reasons, code.graph.outside) == (launchers, reasons, 3)
    # AND code of a backward, or with sizes that change, is never compiled again
    assert _Again()(run, refusal(torch.ops.aten.histc.default)) is None
