"""Lines that give a parameter other memory, which a graph does not see: it goes on with that of its capture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import CodeType

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.observer import Step
from paramgraph_kit.doctor.observe.one_call import Call
from paramgraph_kit.doctor.observe.source_lines import gives_memory
from paramgraph_kit.trace.model import Failure

TOLD = "a parameter has other memory after each call"


def problems(
    call: Call, codes: Sequence[CodeType], names: Iterable[str], read_by: Sequence[Step] = ()
) -> list[Failure]:
    """Such lines, of what the call has read, or ``read_by``; ``names`` are those of all tensors that are known."""
    read = {key for step in (*call.steps, *read_by) for key in step.outside}
    moved = {name for key, name in call.moved.items() if key in read}
    others = set(names) - moved
    lines = gives_memory(codes) if moved else ()
    return [BY_ID["parameter-rebound"].failure(TOLD, frame) for name, frame in lines if name not in others]
