"""Memory snapshots that torch has pickled (``torch.cuda.memory._dump_snapshot``); nothing that is in them is run."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from paramgraph_kit.ledger.snapshots import DEFAULT, LIVE, line_of
from paramgraph_kit.trace.errors import TraceError
from paramgraph_kit.trace.files import path_of, unreadable
from paramgraph_kit.trace.model import Origin, PoolAction, PoolEvent, Source, Trace

_ACTIONS = {
    "alloc": PoolAction.ALLOC,
    "free_completed": PoolAction.FREE,
    "segment_alloc": PoolAction.SEGMENT_ALLOC,
    "segment_map": PoolAction.SEGMENT_ALLOC,
    "segment_free": PoolAction.SEGMENT_FREE,
    "segment_unmap": PoolAction.SEGMENT_FREE,
}


class _Plain(pickle.Unpickler):
    """Reads dictionaries, lists, tuples, text and numbers; a file that names anything else is refused."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}, and a memory snapshot has plain values only")


def read_snapshot(path: str | os.PathLike[str], *, device: int = 0) -> Trace:
    """The allocator's history of one device, or its state where no history was recorded, as a trace to explore.

    Args:
        path: what ``torch.cuda.memory._dump_snapshot`` wrote, or a pickle of ``torch.cuda.memory._snapshot()``.
        device: whose history.

    Raises:
        TraceError: it cannot be read, is no such snapshot, or holds more than plain values.

    Examples:
        >>> pgk.explore(read_snapshot("snapshot.pickle"))  # doctest: +SKIP
    """
    source_file = path_of(path)
    try:
        with source_file.open("rb") as file:
            snapshot = _Plain(file).load()
    except OSError as error:
        raise unreadable(source_file, error) from None
    except Exception as error:  # a damaged pickle raises almost anything
        raise TraceError(
            f"{path}: no memory snapshot ({error}); dump one with torch.cuda.memory._dump_snapshot"
        ) from None
    try:
        segments = [each for each in snapshot["segments"] if each.get("device", 0) == device]
        traces = snapshot.get("device_traces") or []
        history = traces[device] if device < len(traces) else []
        events = _history(history, segments) if history else _state(segments)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise TraceError(f"{path}: not the layout of a memory snapshot ({type(error).__name__}: {error})") from None
    source = Source(Origin.RECORDED, f"device {device} of a memory snapshot", "-", "unknown", "unknown", "date unknown")
    return Trace(source, f"memory snapshot {source_file.name}", pool_events=events)


def _history(history: Sequence[Mapping[str, Any]], segments: Sequence[Mapping[str, Any]]) -> list[PoolEvent]:
    names = _Names(segments)
    events: list[PoolEvent] = []
    for entry in history:
        action = _ACTIONS.get(entry["action"])
        if action is not None:
            pool = names.of(int(entry["addr"]))
            frame = line_of(entry.get("frames", ()))
            events.append(PoolEvent(len(events), pool, action, int(entry["addr"]), int(entry["size"]), None, frame))
    return events


def _state(segments: Sequence[Mapping[str, Any]]) -> list[PoolEvent]:
    """What is held now, all at one time: the order in which it came is not known."""
    names = _Names(segments)
    events: list[PoolEvent] = []
    for segment in segments:
        address = int(segment["address"])
        pool = names.of(address)
        events.append(PoolEvent(0, pool, PoolAction.SEGMENT_ALLOC, address, int(segment["total_size"])))
        for block in segment["blocks"]:
            address = int(block.get("address", address))
            size = int(block["size"])
            if block["state"] in LIVE:
                frame = line_of(block.get("frames", ()))
                events.append(PoolEvent(0, pool, PoolAction.ALLOC, address, size, None, frame))
            address += size
    return events


class _Names:
    """The pool of an address, by the segments that are there; what was freed before is taken for the default pool's."""

    def __init__(self, segments: Sequence[Mapping[str, Any]]) -> None:
        names = {DEFAULT: "default"}
        self._ranges = []
        for segment in segments:
            pool = tuple(segment.get("segment_pool_id", DEFAULT))
            name = names.setdefault(pool, f"private {len(names)}")
            self._ranges.append((int(segment["address"]), int(segment["total_size"]), name))

    def of(self, address: int) -> str:
        return next((name for start, size, name in self._ranges if start <= address < start + size), "default")
