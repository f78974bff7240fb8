"""Traces as lines of JSON for the front end: each line holds what is new since the line before.

A line has the columns that trace files have (``trace.columns``), so a growing trace is encoded once, row by row, and
whoever holds the lines so far needs only those that follow. The notebook's widget and the page read the same lines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from paramgraph_kit.explore.names import ALL_FAMILIES, readable
from paramgraph_kit.explore.steps import comparison
from paramgraph_kit.explore.text import proof_lines
from paramgraph_kit.trace.columns import BadValueError, Tables, encode_rows
from paramgraph_kit.trace.errors import TraceError
from paramgraph_kit.trace.model import Capture, Failure, Frame, Launch, Partition, PoolEvent, Trace
from paramgraph_kit.trace.wording import one_line

LARGEST_EXACT = 1 << 53  # a JavaScript number holds no larger integer

Json = dict[str, Any]


class Journal:
    """The lines of one or more traces, and how far each trace has been read."""

    def __init__(self, steps: Mapping[str, Trace]) -> None:
        self._tables = Tables(clean=readable)
        self._sent_strings = self._sent_frames = 0
        self._readers = [_Reader(trace, self._tables) for trace in steps.values()]
        self._compared: Json | None = None
        self._steps = dict(steps)
        self.lines: list[bytes] = [_line({"families": told_families(), "steps": self._heads()})]

    def advance(self, *, compare: bool = True) -> bytes:
        """Read what is new in the traces, and return it as lines; nothing new gives nothing.

        Args:
            compare: also compare the steps, which reads each trace from its beginning.

        Raises:
            TraceError: a trace holds a value that cannot be shown.
        """
        fresh = []
        try:
            for at, reader in enumerate(self._readers):
                rows = reader.rows()
                if rows:
                    fresh.append(_line({"step": at, **self._new_tables(), **rows}))
        except BadValueError as error:
            raise TraceError(f"this trace cannot be shown: {error}; correct that value") from None
        if compare and len(self._steps) > 1:
            compared = comparison(self._steps).as_json()
            if compared != self._compared:
                self._compared = compared
                fresh.append(_line({"comparison": compared}))
        self.lines += fresh
        return b"".join(fresh)

    def whole(self) -> bytes:
        """Every line so far."""
        return b"".join(self.lines)

    def _heads(self) -> list[Json]:
        return [
            {
                "name": one_line(name),
                "title": one_line(trace.title),
                "source": one_line(trace.source.label()),
                "origin": str(trace.source.origin),
            }
            for name, trace in self._steps.items()
        ]

    def _new_tables(self) -> Json:
        # Frames first: encoding them adds their strings.
        frames = encode_rows(Frame, self._tables.frames[self._sent_frames :], self._tables)
        self._sent_frames = len(self._tables.frames)
        strings = self._tables.strings[self._sent_strings :]
        self._sent_strings = len(self._tables.strings)
        return {"strings": strings, "frames": frames}


class _Reader:
    """How far one trace has been read."""

    def __init__(self, trace: Trace, tables: Tables) -> None:
        self.trace, self.tables = trace, tables
        self.partitions: list[Partition] = []
        self.captures = self.launches = self.failures = self.pool_events = 0
        self.timed = False  # whether it was told when its launches ran on the device
        self.proved = ""

    def rows(self) -> Json:
        """The rows that are new, as columns."""
        trace = self.trace
        found: Json = {}
        # Other threads append while this reads. Launches are sliced before captures and captures before partitions,
        # each of which is there before it is referred to, so that no line refers to what it does not hold.
        launches, failures = trace.launches[self.launches :], trace.failures[self.failures :]
        events = trace.pool_events[self.pool_events :]
        captures, partitions = trace.captures[self.captures :], list(trace.partitions)
        if launches:
            found["launches"] = encode_rows(Launch, launches, self.tables)
            self.timed = self.timed or (not self.launches and launches[0].gpu_us is not None)
        if self.launches and not self.timed and trace.launches[0].gpu_us is not None:
            # When launches that were told before ran on the device is known when the recording ends.
            self.timed, sent = True, trace.launches[: self.launches]
            found["times"] = {name: [getattr(launch, name) for launch in sent] for name in ("gpu_start_us", "gpu_us")}
        if failures:
            found["failures"] = encode_rows(Failure, failures, self.tables)
        if events:
            found["pool_events"] = encode_rows(PoolEvent, events, self.tables)
        if captures:
            found["captures"] = _captures(captures, self.tables)
        proved = "; ".join(proof_lines(trace.proofs))
        if proved != self.proved:
            self.proved = found["proved"] = proved
        known = len(self.partitions)
        changed = [at for at, part in enumerate(partitions) if at >= known or part != self.partitions[at]]
        if changed:
            rows = encode_rows(Partition, [partitions[at] for at in changed], self.tables)
            found["partitions"] = {"at": changed, "rows": rows}
        self.partitions = partitions
        self.launches += len(launches)
        self.failures += len(failures)
        self.pool_events += len(events)
        self.captures += len(captures)
        return found


def _captures(captures: list[Capture], tables: Tables) -> Json:
    columns = encode_rows(Capture, captures, tables)
    words = columns["nodes"]["rows"]["words"]["rows"]
    words["value"] = [hex(v) if v is not None and abs(v) >= LARGEST_EXACT else v for v in words["value"]]
    return columns


def told_families() -> list[Json]:
    """The kinds of kernels, with the patterns of their names and their colours."""
    return [
        {name: getattr(family, name) for name in ("key", "word", "fill", "line", "names")} for family in ALL_FAMILIES
    ]


def _line(content: Json) -> bytes:
    try:
        text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise BadValueError(str(error)) from None
    return text.encode("ascii") + b"\n"
