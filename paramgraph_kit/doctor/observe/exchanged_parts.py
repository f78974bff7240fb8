"""Parameters, buffers and modules of a module that a call has exchanged for others: its graph reads the first ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from types import CodeType

import torch

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.observer import Step
from paramgraph_kit.doctor.observe.source_lines import written_at
from paramgraph_kit.doctor.restore.holder import Change
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.trace.model import Failure

_MOST_PARTS = 64  # of a module that is exchanged


def exchanged_parts(
    changes: Iterable[Change], steps: Iterable[Step], codes: Collection[CodeType], told: Iterable[Failure]
) -> Iterator[Failure]:
    """Those that a call has read before; where no line names what it sets, they are told where they are read."""
    reads = dict[int, Step]()
    for step in steps:
        for key in step.outside:
            reads.setdefault(key, step)
    known = {(f.code, f.frame) for f in told}
    for change in changes:
        gone = _memory(change.before) - _memory(change.after)
        read = next((reads[key] for key in reads if key in gone), None)
        if read is None:
            continue
        is_parameter = isinstance(change.before, torch.nn.Parameter)
        rule = BY_ID["parameter-rebound" if is_parameter else "stale-input"]
        what = "module" if isinstance(change.before, torch.nn.Module) else "parameter" if is_parameter else "tensor"
        failure = rule.failure(
            f"{change.name} is another {what} after each call", written_at(change, codes) or read.place.frame()
        )
        if failure.frame is not None and (failure.code, failure.frame) not in known:
            known.add((failure.code, failure.frame))
            yield failure


def _memory(value: object) -> set[int]:
    if isinstance(value, torch.nn.Module):
        return {storage_key(t) for t in [*value.parameters(), *value.buffers()][:_MOST_PARTS]}
    return {storage_key(value)} if isinstance(value, torch.Tensor) else set()
