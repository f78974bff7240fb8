"""One workload of the list in a process of its own: our graphs beside the same code without them, or graph trees.

What ``select="measure"`` decides is part of it: the first turn is when it times, because then nothing else runs. Every
other way is the same compiled code with other partitions launched from graphs, so they differ in nothing else.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from paramgraph_kit.backend import paramgraph
from paramgraph_kit.backend.registry import compiled_graphs
from paramgraph_kit.backend.report import make_report
from paramgraph_kit.bench.measure import keep_to
from paramgraph_kit.bench.selection import _decision, verdict
from paramgraph_kit.driver.select import twin
from paramgraph_kit.driver.tensors import same_bits
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.launch.launcher import Launcher, Variant
from paramgraph_kit.launch.probation import MOST
from tests.corpus.case import tensors
from tests.corpus.published.listed import WHOLE, Built, Inputs, Listed

OURS, TREES = "ours", "graph trees"  # the two processes of a workload
PLAIN, ALL, CHOSEN = "no graphs", "paramgraph", "select=measure"  # what the first of them times
FEW = 32  # partitions up to which each is timed without its graph, too
LONG = 8 * MOST  # steps in which the calls of every graph show what they have to
Row = dict[str, Any]


class Stepped:
    """A compiled workload: ``step(seed)`` on fresh copies of inputs, so that they lie elsewhere each time."""

    def __init__(self, listed: Listed, built: Built, device: torch.device, way: str) -> None:
        self.listed, self.built, self.way, self.device = listed, built, way, device
        if not listed.training:
            built.model.to(torch.bfloat16 if device.type == "cuda" and listed.note != "slow" else torch.float32)
        model = built.model.train(listed.training)
        self.parameters = list(model.parameters())
        self.samples = [_cast(built.inputs(seed), model, listed) for seed in range(2)]
        self.others = {graph.order for graph in compiled_graphs()}
        how: Row = {"mode": "reduce-overhead"}
        if way == OURS:
            how = {"backend": paramgraph, "options": {"select": "measure"}}
        self.compiled: Any = torch.compile(model, **how)

    def step(self, seed: int = 0) -> list[Tensor]:
        """One forward pass, or forward and backward as there, without an optimizer."""
        if self.way == TREES:
            torch.compiler.cudagraph_mark_step_begin()
        sample = self.samples[seed % len(self.samples)]
        if isinstance(sample, dict):
            given: Inputs = {name: x.clone() for name, x in sample.items()}
        else:
            given = tuple(x.clone() for x in sample)
        if not self.listed.training:
            with torch.no_grad():
                return tensors(self._call(given))
        half = self.device.type == "cuda" and self.listed.note != WHOLE
        with torch.autocast("cuda", torch.bfloat16) if half else nullcontext():
            loss = self.built.loss(self._call(given), given)
        loss.backward()
        found = [loss.detach()] + [p.grad for p in self.parameters if p.grad is not None]
        for p in self.parameters:
            p.grad = None
        return found

    def _call(self, given: Inputs) -> Any:
        if isinstance(given, dict) and "image" in given:  # a detector takes a list of them
            return self.compiled([given["image"]])
        return self.compiled(**given) if isinstance(given, dict) else self.compiled(*given)


def _cast(given: Inputs, model: nn.Module, listed: Listed) -> Inputs:
    """Inference there is all in bfloat16, inputs as well; training has autocast."""
    half = torch.bfloat16 if torch.cuda.is_available() else torch.float32  # where a model has no parameters
    dtype = None if listed.training else next((p.dtype for p in model.parameters()), half)

    def cast(x: Tensor) -> Tensor:
        return x.to(dtype) if dtype is not None and x.is_floating_point() else x

    if isinstance(given, dict):
        return {name: cast(x) for name, x in given.items()}
    return tuple(cast(x) for x in given)


def measure(
    listed: Listed, way: str, device: torch.device, layers: int | None, turns: Iterable[int], cores: Collection[int]
) -> Row:
    """Medians of microseconds for each way; ``turns`` are milliseconds that each may take."""
    assert listed.build is not None
    started = time.perf_counter()
    torch.backends.cudnn.deterministic = True
    built = listed.build(listed, device, layers)
    run = Stepped(listed, built, device, way)
    for seed in range(2 if way == OURS else 4):  # ours times its calls from the second on: no more until it is alone
        run.step(seed)
    twin().synchronize()
    torch_name("shutdown_compile_workers")()
    gc.collect()
    twin().empty_cache()  # what compiling needed: others are on the same card
    row: Row = {"short": listed.short, "way": way, "layers": built.layers}
    row["prepared_s"] = round(time.perf_counter() - started, 1)
    return row | (_ours if way == OURS else _trees)(run, turns, cores)


def _trees(run: Stepped, turns: Iterable[int], cores: Collection[int]) -> Row:
    times = _Times(run)
    copied: int | None = None
    for milliseconds in turns:
        if copied is None:
            keep_to(cores)
            copied = _copied_by_trees(run)
        times.take(TREES, milliseconds)
    return {"copied_bytes": copied} | times.row()


def _ours(run: Stepped, turns: Iterable[int], cores: Collection[int]) -> Row:
    graphs = [graph for graph in compiled_graphs() if graph.order not in run.others]
    launchers = [launcher for graph in graphs for launcher in graph.launchers]
    held = {k: v for k, launcher in enumerate(launchers) for v in launcher.variants.values() if v is not None}
    decisions: list[Row] = []
    ways: dict[str, frozenset[int]] = {}
    different: dict[frozenset[int], str] = {}  # ways that launch the same graphs are one
    times, bits = _Times(run), Row()
    for milliseconds in turns:
        if not ways:
            keep_to(cores)
            for seed in range(LONG):  # images of other sizes have graphs of their own
                run.step(seed)
                if seed > 2 * MOST + 3 and all(
                    v is None or v.probation.over for x in launchers for v in x.variants.values()
                ):
                    break
            decisions = [{"partition": launcher.name} | _decision(launcher) for launcher in launchers]
            ways = _ways(decisions, held)
            for name, graphed in ways.items():
                different.setdefault(graphed, name)
            bits = _bits(run, launchers, held)
            gc.collect()
        for graphed, name in different.items():
            _launch(launchers, held, graphed)
            times.take(name, milliseconds)
    us = times.row()
    for name, graphed in ways.items():
        for kind in ("us", "cpu_us"):
            us[kind][name] = us[kind][different[graphed]]
    for k, found in enumerate(decisions):
        alone = us["us"].pop(f"without {k}", us["us"][PLAIN] if [k] == [*held] else None)
        us["cpu_us"].pop(f"without {k}", None)
        if alone is not None:
            found |= {"alone_us": [us["us"][ALL], alone]}
            found["verdict"] = verdict(found)
    report = make_report()
    return us | {
        "partitions": decisions,
        "kernels": report.kernels,
        "copied_bytes": report.copied_bytes,
        "reasons": sorted({reason.label()[:200] for reason in report.reasons}),
        "bits": bits,
    }


def _ways(decisions: list[Row], held: Mapping[int, Variant]) -> dict[str, frozenset[int]]:
    """Which partitions each way launches from their graphs.

    >>> ways = _ways([{"kept": True}, {"kept": False}, {"kept": None}], dict.fromkeys([0, 1]))
    >>> {name: sorted(graphed) for name, graphed in ways.items()}
    {'no graphs': [], 'paramgraph': [0, 1], 'select=measure': [0], 'without 0': [1], 'without 1': [0]}
    """
    every = frozenset(held)
    chosen = frozenset(k for k, found in enumerate(decisions) if k in held and found["kept"] is not False)
    apart = {f"without {k}": every - {k} for k in held} if 1 < len(held) <= FEW else {}
    return {PLAIN: frozenset(), ALL: every, CHOSEN: chosen} | apart


def _launch(launchers: list[Launcher], held: Mapping[int, Variant], graphed: Collection[int]) -> None:
    for k, launcher in enumerate(launchers):
        launcher.pause()
        if k in graphed:  # one that measuring has dropped is launched again, to see what it would have cost
            launcher.paused, launcher.current = False, held[k].launch


def _bits(run: Stepped, launchers: list[Launcher], held: Mapping[int, Variant]) -> Row:
    """Results of two steps with all graphs against the same code without any, which runs twice."""
    found = {"compared": 0, "different": 0, "unstable": 0}
    for seed in range(2):

        def result(graphed: Collection[int], seed: int = seed) -> list[Tensor]:
            _launch(launchers, held, graphed)
            torch.manual_seed(seed)
            return [t.detach().clone() for t in run.step(seed)]

        buffers = [(b, b.clone()) for b in run.built.model.buffers()]
        first = result(())
        for b, before in buffers:
            b.copy_(before)
        again = result(())
        for b, before in buffers:
            b.copy_(before)
        ours = result(held)
        for a, b, c in zip(first, again, ours, strict=True):
            found["compared"] += 1
            stable = same_bits(a, b)
            found["unstable"] += not stable
            found["different"] += stable and not same_bits(a, c)
    return found


def _copied_by_trees(run: Stepped) -> int | None:
    """Bytes that one step of graph trees copies into their static inputs; None where this torch has other names."""
    try:
        from torch._inductor.cudagraph_trees import CUDAGraphNode

        copying: Callable[..., Any] = CUDAGraphNode._copy_inputs_and_remove_from_src
    except (ImportError, AttributeError):
        return None
    total = 0

    def counted(self: Any, targets: Any, given: Any) -> Any:
        nonlocal total
        total += sum(given[k].nbytes for k in self.non_static_input_idx if isinstance(given[k], Tensor))
        return copying(self, targets, given)

    with mock.patch.object(CUDAGraphNode, "_copy_inputs_and_remove_from_src", counted):
        run.step()
    return total


class _Times:
    """Seconds of every step of every way: until all is launched, and until the device is done."""

    def __init__(self, run: Stepped) -> None:
        self.all: dict[str, list[tuple[float, float]]] = {}
        self._run, self._wait = run, twin().synchronize

    def take(self, way: str, milliseconds: float) -> None:
        """Time steps for so long, three at least."""
        for seed in range(2):
            self._run.step(seed)
        found, until = self.all.setdefault(way, []), time.perf_counter() + milliseconds / 1e3
        least = len(found) + 3
        while len(found) < least or time.perf_counter() < until:
            self._wait()
            start = time.perf_counter()
            self._run.step(len(found))
            launched = time.perf_counter()
            self._wait()
            found.append((launched - start, time.perf_counter() - start))

    def row(self) -> Row:
        """Medians in microseconds."""
        pairs = {way: [*zip(*found, strict=True)] for way, found in self.all.items()}
        cpu, total = ({way: round(statistics.median(both[n]) * 1e6, 1) for way, both in pairs.items()} for n in (0, 1))
        return {"cpu_us": cpu, "us": total, "steps": {way: len(found) for way, found in self.all.items()}}
