"""One workload in one mode, in a process of its own: what a step costs, what it holds, whether its bits are right."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import statistics
import time
import timeit
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from paramgraph_kit.backend import paramgraph
from paramgraph_kit.backend.registry import compiled_graphs
from paramgraph_kit.bench.workloads import Workload, compile_workload
from paramgraph_kit.driver.tensors import same_bits
from paramgraph_kit.driver.torch_names import torch_name

AGAIN = 12  # more runs of the baseline where a result differs from it
MODES: dict[str, dict[str, Any]] = {
    "no graphs": {"backend": paramgraph, "options": {"select": "never"}},  # the same Inductor code
    "graph trees": {"mode": "reduce-overhead"},
    "paramgraph": {"backend": paramgraph},
}


@dataclass
class Run:
    """A compiled workload that can be stepped."""

    workload: Workload
    mode: str
    device: torch.device
    how: dict[str, Any]

    def __post_init__(self) -> None:
        self.base: nn.Module = self.workload.build(self.device)
        self.optimizer = self.workload.optimizer(self.base) if self.workload.optimizer else None
        self.model = compile_workload(self.workload, self.base, **self.how)
        self.samples = [self.workload.inputs(seed, self.device) for seed in range(4)]

    def step(self, seed: int) -> list[Tensor]:
        """One step on fresh copies of sample inputs, so that their addresses move."""
        if self.mode == "graph trees":
            torch.compiler.cudagraph_mark_step_begin()
        torch.manual_seed(seed)
        inputs = [x.clone() for x in self.samples[seed % len(self.samples)]]
        return self.workload.step(self.model, inputs, self.optimizer)


def measure(
    workload: Workload, mode: str, turns: Iterable[int], cores: Collection[int] = (), *, warmup: int = 6
) -> dict[str, Any]:
    """Times in microseconds (medians), memory in bytes, of one mode.

    ``turns`` says how many steps to time at each turn; between turns other modes may have theirs. All are timed on the
    same ``cores``: on a shared machine cores differ by a factor of two, and a process that sits on a slow one stays.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    torch.backends.cudnn.deterministic = True
    started = time.perf_counter()
    run = Run(workload, mode, device, MODES[mode])
    for seed in range(warmup):
        run.step(seed)
    # Inductor's compile workers hold CUDA contexts of their own, which the device counts and no user of a step does.
    torch_name("shutdown_compile_workers")()
    # Compiling, tuning and capturing leave blocks in the allocator's cache that no later step needs.
    gc.collect()
    torch.cuda.empty_cache()
    for seed in range(3):
        run.step(seed)
    torch.cuda.synchronize()
    setup = time.perf_counter() - started
    cpu: list[list[float]] = []
    total: list[list[float]] = []
    for steps in turns:
        for seed in range(3):
            run.step(seed)
        if not cpu:
            keep_to(cores)
            torch.cuda.reset_peak_memory_stats()
        times = [_timed(run, seed) for seed in range(steps)]
        cpu.append([launched for launched, _ in times])
        total.append([done for _, done in times])
    stepping, reserved = _used(device), torch.cuda.memory_reserved(device)
    result: dict[str, Any] = {
        "workload": workload.name,
        "mode": mode,
        "cpu_us": _median([*chain(*cpu)]),
        "total_us": _median([*chain(*total)]),
        "cpu_us_turns": [_median(turn) for turn in cpu],
        "total_us_turns": [_median(turn) for turn in total],
        "stepping_bytes": stepping,
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(device),
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(device),
        "setup_s": round(setup, 1),
        "steps": sum(map(len, cpu)),
    }
    gc.collect()
    torch.cuda.empty_cache()
    result["rest_bytes"] = _used(device)
    result["rest_reserved_bytes"] = torch.cuda.memory_reserved(device)
    result["stepping_reserved_bytes"] = reserved
    result["held_outputs"] = _held_outputs(run)
    if mode == "paramgraph":
        result["graphs"] = graph_facts()
        result["bits"] = compare(run)
    return result


def quick_cores(count: int = 2) -> list[int]:
    """The cores on which a short Python loop runs fastest now."""
    allowed, times = os.sched_getaffinity(0), {}
    for core in allowed:
        os.sched_setaffinity(0, {core})
        times[core] = min(timeit.repeat("sum(range(2000))", number=50, repeat=5))
    os.sched_setaffinity(0, allowed)
    return sorted(times, key=times.__getitem__)[:count]


def keep_to(cores: Collection[int]) -> None:
    """Let every thread of this process run on these cores only; no cores: as it was."""
    for thread in os.listdir("/proc/self/task") if cores else ():
        with contextlib.suppress(OSError):  # it has ended
            os.sched_setaffinity(int(thread), cores)


def _timed(run: Run, seed: int) -> tuple[float, float]:
    """Microseconds of one step: until everything is launched, and until the device is done."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    run.step(seed)
    launched = time.perf_counter()
    torch.cuda.synchronize()
    return (launched - start) * 1e6, (time.perf_counter() - start) * 1e6


def _median(times: list[float]) -> float:
    return round(statistics.median(times), 1)


def _used(device: torch.device) -> int:
    """Bytes of device memory that this process holds: context, code, graphs and everything else included."""
    from paramgraph_kit.driver.cuda.held import held_bytes

    torch.cuda.synchronize()
    return held_bytes(device.index or 0)


def _held_outputs(run: Run) -> str:
    """Whether what one call returned is still there after the next."""
    if run.workload.training:
        return "not applicable"
    first = run.step(0)
    kept = [t.clone() for t in first]
    run.step(1)
    try:
        same = all(same_bits(a, b) for a, b in zip(first, kept, strict=True))
    except RuntimeError as error:
        return f"raises: {str(error).splitlines()[0][:90]}"
    return "valid" if same else "overwritten"


def graph_facts() -> list[dict[str, Any]]:
    """What was graphed: one row for each partition that is alive."""
    rows = []
    for graph in compiled_graphs():
        for launcher in graph.launchers:
            variants = [v for v in launcher.variants.values() if v is not None]
            rows.append(
                {
                    "partition": launcher.name,
                    "executables": len(variants),
                    "nodes": [len(v.captured.recording.nodes) for v in variants],
                    "words": [v.plan.words for v in variants],
                    "stages": [len(v.plan.stages) for v in variants],
                    "slots": [sum(len(stage.slots) for stage in v.plan.stages) for v in variants],
                    "workspace_bytes": [v.plan.workspace_bytes for v in variants],
                    "patching": [v.patching for v in variants],
                    "launches": [v.state.launches for v in variants],
                    "patched_launches": [v.state.patches for v in variants],
                    "ungraphed_calls": launcher.ungraphed_calls,
                    "reasons": [r.label() for r in launcher.reasons + graph.reasons],
                    "launches_outside": graph.outside,
                }
            )
    return rows


def compare_bits(
    workload: Workload, *, steps: int = 6, device: torch.device | None = None, **options: Any
) -> dict[str, Any]:
    """Compile a workload with the backend's ``options`` and compare it with itself without graphs: see ``compare``."""
    where = device or torch.device("cuda", torch.cuda.current_device())
    torch.backends.cudnn.deterministic = True
    run = Run(workload, "paramgraph", where, {"backend": paramgraph, "options": options})
    run.step(0)  # compiles, tunes and captures
    return compare(run, steps)


def compare(run: Run, steps: int = 6) -> dict[str, Any]:
    """Graphs against the very same compiled code without them: every compared tensor of every step.

    Each step is done three times from the same state: twice ungraphed, then from graphs, on fresh copies of its
    inputs and with the allocator disturbed, so that everything lies elsewhere than at capture. Inductor may tune a
    kernel otherwise when it loads it again, so one compilation serves all three. Where the baseline differs from
    itself nothing can be said, so such tensors are counted apart: ``different`` is how many others differ from the
    baseline. Where one does, the baseline runs ``AGAIN`` times more.
    """
    different = compared = unstable = 0
    in_the_way: list[Tensor] = []
    before = _launches()
    for seed in range(steps):
        state = _state(run)

        def result(graphs: bool, seed: int = seed, state: Any = state) -> list[Tensor]:
            for launcher in [launcher for graph in compiled_graphs() for launcher in graph.launchers]:
                (launcher.resume if graphs else launcher.pause)()
            _restore(run, state)
            in_the_way.append(torch.empty(37 * 512 * (len(in_the_way) % 16 + 1), device=run.device))
            return [t.detach().clone() for t in run.step(seed)]

        reference, again, ours = result(False), result(False), result(True)
        compared += len(reference)
        different += abs(len(reference) - len(ours))
        pairs = [*zip(reference, again, ours, strict=False)]
        stable = [k for k, (a, b, _) in enumerate(pairs) if same_bits(a, b)]
        suspects = [k for k in stable if not same_bits(reference[k], ours[k])]
        for number in range(AGAIN if suspects else 0):  # sums in no fixed order are equal now and then: ask more often
            _work_beside(run.device, number)
            more = result(False)
            stable = [k for k in stable if same_bits(reference[k], more[k])]
        unstable += len(pairs) - len(stable)
        different += len({*suspects} & {*stable})
    return {
        "compared": compared,
        "different": different,
        "baseline_differs_from_itself": unstable,
        "launches": _launches() - before,
        "reasons": sorted({reason for row in graph_facts() for reason in row["reasons"]}),
    }


def _work_beside(device: torch.device, times: int) -> None:
    """Keep the device busy from another stream: additions come in another order then, more than by waiting."""
    if device.type == "cuda":
        with torch.cuda.stream(torch.cuda.Stream(device)):
            square = torch.ones(2048, 2048, device=device)
            for _ in range(times):
                square = square @ square


def _launches() -> int:
    return sum(n for row in graph_facts() for n in row["launches"])


def _state(run: Run) -> tuple[dict[str, Tensor], Any]:
    """What a step changes: buffers and, with an optimizer, parameters and its own state."""
    names = dict(run.base.named_buffers())
    if run.optimizer is not None:
        names |= dict(run.base.named_parameters())
    optimizer = copy.deepcopy(run.optimizer.state_dict()) if run.optimizer else None
    return {name: value.detach().clone() for name, value in names.items()}, optimizer


def _restore(run: Run, state: tuple[dict[str, Tensor], Any]) -> None:
    values = dict(run.base.named_buffers()) | dict(run.base.named_parameters())
    with torch.no_grad():
        for name, value in state[0].items():
            values[name].copy_(value)
    if run.optimizer is not None:
        run.optimizer.load_state_dict(copy.deepcopy(state[1]))
