"""Compiling without Inductor, as the simulator and ``parameterize`` do: one aten operation is one kernel.

Regions are cut in the FX graph by Inductor's rules and launched by the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch.fx

from paramgraph_kit.backend.direct.calls import Codes, DirectCall
from paramgraph_kit.backend.direct.recipe import GraphCode
from paramgraph_kit.backend.fx import Run, compile_fx_graph
from paramgraph_kit.backend.registry import CompiledGraph, Piece, place_of
from paramgraph_kit.driver.api import Driver
from paramgraph_kit.launch.code import PartitionCode
from paramgraph_kit.launch.launcher import Launcher, Options
from paramgraph_kit.partition.region import Region
from paramgraph_kit.partition.split import Split


def compile_with_eager_kernels(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    new_graph: Callable[[str], CompiledGraph],
    driver: Driver,
    options: Options,
    number: int,
    partition_fn: Callable[..., Any] | None = None,
    names: Sequence[str] | None = None,
) -> DirectCall:
    """Compile a graph for the device of ``driver``; ``new_graph(phase)`` registers each FX graph.

    ``names`` are what the user calls the inputs, where Dynamo has not noted it.
    """
    graphs: dict[str, CompiledGraph] = {}
    constants: dict[str, list[Any]] = {}

    def graph_of(name: str) -> CompiledGraph:
        if name not in graphs:
            graphs[name] = new_graph(name.split()[0])
        return graphs[name]

    def observe(name: str, cut: Split, prefix: str) -> None:
        graph = graph_of(name)
        graph.kept += cut.kept
        graph.constants += [x for x in cut.constants.values() if isinstance(x, torch.Tensor)]
        constants.setdefault(name, []).extend(cut.constants.values())
        for region in cut.regions:
            if not region.graphed:
                graph.outside += region.kernels
                graph.pieces.append(
                    Piece(place_of(f"{prefix}{region.index}"), region.kernels, region.operations, region.reasons)
                )
                for reason in region.reasons:
                    graph.refuse(reason)

    def wrap(graph_name: str, region: Region, code: PartitionCode) -> Run:
        graph = graph_of(graph_name)

        def recut(error: BaseException) -> Run | None:
            run = code.recut(error)
            if run is not None:  # its launchers have joined the others
                graph.launchers.remove(launcher)
            return run

        launcher = Launcher(driver, replace(code, recut=recut), options)
        graph.launchers.append(launcher)
        graph.positions[launcher.name] = place_of(launcher.name.rpartition(" ")[2])
        graph.operations[launcher.name] = region.operations
        graph.kernels[launcher.name] = region.kernels
        return launcher

    codes = Codes()

    def finish(run: Run, name: str) -> Run:
        kept = constants.setdefault(name, [])
        code = GraphCode(run, graph_of(name), backward=name.startswith("backward"), constants=kept)
        code.wanted = not hasattr(run, "around")  # no launch alone does what a graph with streams owes others
        return codes.add(code)

    compiled = compile_fx_graph(
        gm,
        example_inputs,
        wrap,
        device_type=driver.device.type,
        number=number,
        observe=observe,
        partition_fn=partition_fn,
        finish=finish,
        names=names,
    )
    call = DirectCall(compiled, codes)
    call.graphs = graphs  # the registry holds graphs weakly: they live as long as this
    return call
