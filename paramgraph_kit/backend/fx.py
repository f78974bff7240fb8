"""Compile a Dynamo graph without Inductor: one aten operation is one kernel, and regions are cut in FX.

The simulator's counterpart of Inductor. No decompositions: each operation runs the kernel that eager runs.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from paramgraph_kit.backend.regions import RegionInfo, saved_only
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.partition.nodes import tensors_in
from paramgraph_kit.partition.program import Run as Run
from paramgraph_kit.partition.program import program
from paramgraph_kit.partition.region import Region
from paramgraph_kit.partition.split import Split, split

Wrap = Callable[[Run, RegionInfo], Run]
Observe = Callable[[str, Split], None]

_numbers = itertools.count()


def compile_fx_graph(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    wrap: Wrap,
    *,
    device_type: str | None = None,
    number: int | None = None,
    observe: Observe | None = None,
    partition_fn: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Compile a Dynamo graph, forward and backward, passing each graphed region through ``wrap``.

    Args:
        gm: the graph that Dynamo hands to a backend.
        example_inputs: its (fake) inputs.
        wrap: ``wrap(run, info)`` returns what is called in place of ``run``: a callable from a list of inputs,
            which it owns and may empty, to the sequence of outputs.
        device_type: the device whose work may be graphed; by default that of ``driver.select``.
        number: names the compiled graphs ("forward 3"); by default a count of this process.
        observe: called once for each compiled graph with its name and its split, ungraphed regions included.
        partition_fn: decides what the forward saves for the backward; by default what Inductor takes.
    """
    kind = device_type if device_type is not None else _selected_device_type()
    index = next(_numbers) if number is None else number

    def compiler(phase: str) -> Callable[[torch.fx.GraphModule, Sequence[Any]], Run]:
        def compile_graph(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Run:
            name = f"{phase} {index}"
            cut = split(graph, kind)
            if observe is not None:
                observe(name, cut)
            static = _static_inputs(cut, phase)
            device = _device_of(graph, kind)
            runs = [_wrapped(region, wrap, name, phase, static, device, cut) for region in cut.regions]
            return program(cut, runs)

        return compile_graph

    compiled: Callable[..., Any] = torch_name("aot_autograd")(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        partition_fn=partition_fn or torch_name("min_cut_rematerialization_partition"),
        keep_inference_input_mutations=True,
    )(gm, example_inputs)
    return compiled


def _wrapped(
    region: Region, wrap: Wrap, graph: str, phase: str, static: frozenset[str], device: torch.device, cut: Split
) -> Run:
    if not region.graphed:
        return region.run
    returned = returned_to_the_caller()
    info = RegionInfo(
        graph=graph,
        partition=region.index,
        is_backward=phase == "backward",
        is_inference=phase == "inference",
        device=device,
        operations=region.operations,
        kernels=region.kernels,
        static_input_idxs=tuple(i for i, name in enumerate(region.inputs) if name in static),
        mutated_input_idxs=region.mutated,
        aliases=region.aliases,
        frames=region.frames,
        random=region.random,
        together=saved_only(cut.outputs, returned, region.outputs) if phase == "forward" else frozenset(),
    )
    return wrap(region.run, info)


def returned_to_the_caller() -> int:
    """How many results of the forward being compiled are the caller's; what comes after is saved for the backward."""
    context = torch_name("TracingContext").try_get()
    metadata = getattr(context, "fw_metadata", None)
    return int(getattr(metadata, "num_forward", sys.maxsize))


def _static_inputs(cut: Split, phase: str) -> frozenset[str]:
    """Parameters and buffers, as Inductor finds them: by the context in a forward, by name in a backward."""
    if phase == "backward":
        found = [name for name in cut.inputs if name.startswith("primals_")]
    else:
        context = torch_name("TracingContext").try_get()
        metadata = getattr(context, "fw_metadata", None)
        found = [cut.inputs[i] for i in getattr(metadata, "static_input_indices", ())]
    return frozenset(found) | frozenset(cut.constants)


def _device_of(graph: torch.fx.GraphModule, device_type: str) -> torch.device:
    for node in graph.graph.nodes:
        for tensor in tensors_in(node.meta.get("val")):
            if tensor.device.type == device_type:
                return tensor.device
    return torch.device(device_type)


def _selected_device_type() -> str:
    from paramgraph_kit.driver.select import driver

    return driver().device.type
