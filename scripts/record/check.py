"""``python -m scripts.record --check FOLDER``: whether recordings hold what the explorer shows, one line for each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paramgraph_kit.trace import NodeKind, Origin, PoolAction, Role, Trace, TraceError, load

UNEQUAL = {"story-2-captured": 1}  # comparisons that must differ: nobody told the graph of a new tensor
WITHOUT_TIMES = ("graph-trees", "story-2-captured")  # launched by others than us


def missing(name: str, trace: Trace) -> list[str]:
    """What a recording lacks, in words; nothing if it is complete.

    >>> from paramgraph_kit.trace import Source
    >>> source = Source(Origin.SIMULATED, "simulated device", "-", "2.13.0", "3.11", "2026-11-20")
    >>> missing("story-3-parameterized", Trace(source))
    ['graphs', 'launches', 'comparisons']
    """
    wanted = [] if name.startswith(("failures", "story-1")) else ["comparisons"]
    if not name.endswith(("no-graphs", "failures", "story-1-broken")):
        wanted = ["graphs", *(["launches"] if "offload" not in name else []), *wanted]
    has = {"graphs": trace.captures, "launches": trace.launches, "comparisons": trace.proofs}
    found = [what for what in wanted if not has[what]]
    differ = sum(not proof.equal for proof in trace.proofs)
    if differ != UNEQUAL.get(name, 0) * bool(trace.proofs):
        found.append(f"{differ} comparisons differ")
    if name.startswith(("failures", "story-1")) and not trace.failures:
        found.append("failures")
    return found + _names(trace) + (_measured(name, trace) if trace.source.origin is Origin.RECORDED else [])


def _names(trace: Trace) -> list[str]:
    """Graphs that were compiled know whose each input is, and which line each node comes from."""
    found = []
    for capture in trace.captures:
        inputs = [a for a in capture.allocations if a.role is Role.INPUT]
        kernels = [node for node in capture.nodes if node.kind is NodeKind.KERNEL]
        if inputs and not any(a.name and a.shape for a in inputs):
            found.append(f"names of capture {capture.id}")
        if inputs and not any(node.frame or node.module for node in kernels):
            found.append(f"lines of capture {capture.id}")
        patched = [x for x in trace.launches if x.capture == capture.id and x.words_patched]
        if patched and not any(x.addresses for x in patched):
            found.append(f"addresses of capture {capture.id}")
    return found


def _measured(name: str, trace: Trace) -> list[str]:
    """What only a device tells."""
    found = []
    if trace.launches and not any(part in name for part in WITHOUT_TIMES) and trace.launches[0].gpu_us is None:
        found.append("times on the GPU")
    allocated = [event for event in trace.pool_events if event.action is PoolAction.ALLOC]
    if allocated and not any(event.frame for event in allocated):
        found.append("lines of memory")
    return found


def check(folder: Path, names: Sequence[str]) -> int:
    """Print what each of these recordings lacks; returns the exit status."""
    complete = True
    for name in names:
        try:
            trace = load(folder / f"{name}.pgtrace")
            lacks = missing(name, trace)
            says = f"lacks {', '.join(lacks)}" if lacks else f"complete  [{trace.source.label()}]"
        except TraceError as error:
            lacks, says = [name], str(error)
        complete = complete and not lacks
        print(f"{name:<26} {says}", flush=True)
    return 0 if complete else 1
