"""Compile a Dynamo graph without Inductor: one aten operation is one kernel, and regions are cut in FX.

The simulator's counterpart of Inductor. No decompositions: each operation runs the kernel that eager runs.
"""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch.utils.checkpoint import CheckpointPolicy

from paramgraph_kit.backend.attention import host_seeds, on_memory_of_their_own
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.launch.code import PartitionCode
from paramgraph_kit.partition.host_reads import leaving_out
from paramgraph_kit.partition.lanes import before_partitioning, without_additions
from paramgraph_kit.partition.names import input_names, value_names
from paramgraph_kit.partition.nodes import is_random, storage_keys
from paramgraph_kit.partition.program import Run as Run
from paramgraph_kit.partition.program import program
from paramgraph_kit.partition.region import Region
from paramgraph_kit.partition.split import Split, split

Wrap = Callable[[str, Region, PartitionCode], Run]
Observe = Callable[[str, Split, str], None]

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
    finish: Callable[[Run, str], Run] = lambda run, _: run,
    names: Sequence[str] | None = None,
) -> Callable[..., Any]:
    """Compile a Dynamo graph, forward and backward, passing each graphed region through ``wrap``.

    Args:
        gm: the graph that Dynamo hands to a backend.
        example_inputs: its (fake) inputs.
        wrap: ``wrap(graph, region, code)`` returns what is called in place of ``code.run``: a callable from a list
            of inputs, which it owns and may empty, to the sequence of outputs; ``graph`` is the graph's name.
        device_type: the device whose work may be graphed; by default that of ``driver.select``.
        number: names the compiled graphs ("forward 3"); by default a count of this process.
        observe: called with each compiled graph's name, its split, ungraphed regions included, and what its regions are
            named with in front: again for a region that was cut again.
        names: what the user calls the inputs; by default what Dynamo noted about them.
        partition_fn: decides what the forward saves for the backward; by default what Inductor takes.
        finish: ``finish(run, name)`` returns what is called in place of a whole graph's code.
    """
    kind = device_type if device_type is not None else _selected_device_type()
    index = next(_numbers) if number is None else number
    called = input_names(gm) if names is None else names
    before: dict[str, str] = {}  # names of the forward's values, for the backward

    def compiler(phase: str) -> Callable[[torch.fx.GraphModule, Sequence[Any]], Run]:
        def compile_graph(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Run:
            name = f"{phase} {index}"
            cut = split(graph, kind)
            values = value_names(graph, called, before)
            before.update(values)
            apart = frozenset(cut.outputs[k] for k in (*on_memory_of_their_own(graph), *_lent_to_the_caller(graph)))
            run = _Wrapping(kind, wrap, observe, name, values, apart).program(cut)
            # A backward's numbers of streams may be another forward's by now, and autograd orders it by itself.
            return finish(cut.around(run) if cut.around is not None and phase != "backward" else run, name)

        return compile_graph

    def cut_joint(joint: torch.fx.GraphModule, *args: Any, **how: Any) -> Any:
        before_partitioning(joint)
        _save_what_is_drawn(joint)
        return (partition_fn or torch_name("min_cut_rematerialization_partition"))(joint, *args, **how)

    with without_additions():
        compiled: Callable[..., Any] = torch_name("aot_autograd")(
            fw_compiler=compiler("forward"),
            bw_compiler=compiler("backward"),
            inference_compiler=compiler("inference"),
            partition_fn=cut_joint,
            keep_inference_input_mutations=True,
        )(gm, example_inputs)
    return compiled


def _save_what_is_drawn(joint: torch.fx.GraphModule) -> None:
    """Keep random numbers under checkpointing for the backward, which would have to draw the same ones again."""
    for node in joint.graph.nodes:
        if is_random(node) and "recompute" in node.meta:
            for each in (node, *(user for user in node.users if user.target is operator.getitem)):
                each.meta["recompute"] = CheckpointPolicy.MUST_SAVE


@dataclass(frozen=True, slots=True)
class _Wrapping:
    """How the regions of one compiled graph become code, cut once or again."""

    device_type: str
    wrap: Wrap
    observe: Observe | None
    graph: str
    names: Mapping[str, str]
    apart: frozenset[str]  # values that share no allocation with others

    def program(self, cut: Split, prefix: str = "") -> Run:
        """The code of a whole split, its regions named ``prefix`` and their number."""
        if self.observe is not None:
            self.observe(self.graph, cut, prefix)
        return program(cut, [self._wrapped(region, cut, prefix) for region in cut.regions])

    def _wrapped(self, region: Region, cut: Split, prefix: str) -> Run:
        if not region.graphed:
            return region.run
        seeds, names = host_seeds(region.module), self.names
        saves = self.graph.startswith("forward")
        number = f"{prefix}{region.index}"

        def recut(error: BaseException) -> Run | None:
            with leaving_out(error) as known:
                cut = split(region.module, self.device_type) if known else None
            # What is refused may be launched by other code than this operation's: then nothing would change.
            if cut is None or all(each.graphed for each in cut.regions if each.kernels):
                return None
            return self.program(cut, f"{number}.")

        code = PartitionCode(
            f"{self.graph} partition {number}",
            region.run,
            recut=recut,
            layouts=True,  # a region takes no sizes along: where shapes are dynamic, only the tensors tell
            host_seeds=tuple(k for k, name in enumerate(region.inputs) if name in seeds),
            unguarded=tangents_of(region.inputs),
            together=saved_only(cut.outputs, returned_to_the_caller(), region.outputs, self.apart)
            if saves
            else frozenset(),
            names=tuple(names.get(name, "") for name in region.inputs),
            results=tuple(names.get(name, "") for name in region.outputs),
        )
        return self.wrap(self.graph, region, code)


def tangents_of(names: Sequence[str]) -> tuple[int, ...]:
    """Positions of a backward's tangents among its inputs: what the user passed to ``backward``, unguarded.

    >>> tangents_of(["primals_1", "tangents_1"])
    (1,)
    """
    return tuple(k for k, name in enumerate(names) if name.startswith("tangents_"))


def saved_only(
    results: Sequence[Any], returned: int, outputs: Sequence[Any], apart: Collection[Any] = ()
) -> frozenset[int]:
    """Positions among a region's ``outputs`` that its graph saves for the backward and gives to nobody else.

    ``results`` are what the graph returns: first ``returned`` for its caller, then what is saved.

    >>> sorted(saved_only(["loss", "loss", "h", "x"], 1, ["h", "loss", "x"]))
    [0, 2]
    """
    saved = set(results[returned:]) - set(results[:returned]) - set(apart)
    return frozenset(k for k, output in enumerate(outputs) if output in saved)


def _lent_to_the_caller(graph: torch.fx.GraphModule) -> Iterator[int]:
    """Positions of saved results that share a storage with one for the caller, as ``h`` does with ``h.detach()``."""
    results, returned = next(iter(reversed(graph.graph.nodes))).args[0], returned_to_the_caller()
    several = results if isinstance(results, (list, tuple)) else [results]
    nodes = [(k, result) for k, result in enumerate(several) if isinstance(result, torch.fx.Node)]
    lent = {key for k, result in nodes if k < returned for key in storage_keys(result)}
    yield from (k for k, result in nodes if k >= returned and storage_keys(result) & lent)


def returned_to_the_caller() -> int:
    """How many results of the forward being compiled are the caller's; what comes after is saved for the backward."""
    context = torch_name("TracingContext").try_get()
    metadata = getattr(context, "fw_metadata", None)
    return int(getattr(metadata, "num_forward", sys.maxsize))


def _selected_device_type() -> str:
    from paramgraph_kit.driver.select import driver

    return driver().device.type
