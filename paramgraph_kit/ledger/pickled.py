"""Memory snapshots that torch has pickled (``torch.cuda.memory._dump_snapshot``); nothing that is in them is run."""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paramgraph_kit.ledger.plain import LARGEST, plain
from paramgraph_kit.ledger.snapshots import DEFAULT, LIVE, line_of
from paramgraph_kit.trace.errors import TraceError
from paramgraph_kit.trace.files import path_of, unreadable
from paramgraph_kit.trace.model import Failure, Frame, Origin, PoolAction, PoolEvent, Source, Trace
from paramgraph_kit.trace.wording import bytes_text, one_line

MOST_FAILURES = 20
SMALLEST_BLOCK = 512
# What a picture can show, and what keeps a file that names one thing many times from taking minutes.
MOST_ENTRIES = 200_000  # of a history: the last ones
MOST_BLOCKS = 200_000  # at one moment
MOST_SEGMENTS, MOST_POOLS, MOST_FILES = 20_000, 1_000, 4_000
MOST_FRAMES = 512  # of one stack, from the innermost
MOST_STEPS = 2_000_000  # through segments that lie in one another
MOST_SAID = 200  # letters of what is wrong
_BLOCKS = {"alloc": PoolAction.ALLOC, "free_completed": PoolAction.FREE}
_SEGMENTS = {"segment_alloc": True, "segment_map": True, "segment_free": False, "segment_unmap": False}  # comes
_GROWS = ("segment_map", "segment_unmap")  # pieces of expandable segments
_Range = tuple[int, int]  # start and size


def is_pickled(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as torch's snapshots do."""
    try:
        with path_of(path).open("rb") as file:
            return file.read(1) == b"\x80"
    except OSError:
        return False  # whoever reads it says so


def read_snapshot(path: str | os.PathLike[str], *, device: int | None = None) -> Trace:
    """The allocator's history of one device, or its state where no history was recorded, as a trace to explore.

    What was there before the history began is there from the first moment on. Allocations that found no room are its
    failures.

    Args:
        path: what ``torch.cuda.memory._dump_snapshot`` wrote, or a pickle of ``torch.cuda.memory._snapshot()``.
        device: whose history; the first device's that has any if None.

    Raises:
        TraceError: it cannot be read, is no such snapshot, or holds more than plain values.

    Examples:
        >>> pgk.explore(read_snapshot("snapshot.pickle"))  # doctest: +SKIP
    """
    source_file = path_of(path)
    try:
        size = source_file.stat().st_size
        data = source_file.read_bytes() if size <= LARGEST else b""
    except OSError as error:
        raise unreadable(source_file, error) from None
    if size > LARGEST:
        raise TraceError(
            f"{path}: larger than {bytes_text(LARGEST)}; record fewer entries, with "
            "torch.cuda.memory._record_memory_history(max_entries=100_000)"
        )
    try:
        snapshot = plain(data)
    except ValueError as error:
        raise TraceError(
            f"{path}: no memory snapshot ({_brief(error)}); dump one with torch.cuda.memory._dump_snapshot"
        ) from None
    try:
        if isinstance(snapshot, list):  # torch.cuda.memory_snapshot() has the segments alone
            snapshot = {"segments": snapshot}
        traces = snapshot.get("device_traces") or []
        if device is None:
            used = [n for n, entries in enumerate(traces) if entries] or [
                s.get("device", 0) for s in snapshot["segments"]
            ]
            device = min(used, default=0)
        segments = [each for each in snapshot["segments"] if each.get("device", 0) == device]
        history = traces[device] if device < len(traces) else []
        earlier = max(0, len(history) - MOST_ENTRIES)
        history, lines = history[earlier:], _Lines()
        pool_events = _history(history, segments, lines)
        told = [entry for entry in history if entry["action"] == "oom"][-MOST_FAILURES:]
        failures = [_no_room(entry, lines) for entry in told]
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError) as error:
        raise TraceError(f"{path}: not the layout of a memory snapshot ({_brief(error, named=True)})") from None
    source = Source(Origin.RECORDED, f"device {device} of a memory snapshot", "-", "unknown", "unknown", "date unknown")
    title = f"memory snapshot {source_file.name}"
    title += f", the last {MOST_ENTRIES:,} of {earlier + MOST_ENTRIES:,} entries" if earlier else ""
    return Trace(source, title, failures=failures, pool_events=pool_events)


def _brief(error: Exception, *, named: bool = False) -> str:
    said = one_line(f"{type(error).__name__}: {error}" if named else str(error))
    return said if len(said) <= MOST_SAID else f"{said[:MOST_SAID]}..."


def _number(value: Any) -> int:
    """An address, a size or a line."""
    number = int(value)
    if not 0 <= number < 1 << 63:
        raise ValueError(f"{number if number.bit_length() < 100 else 'a number of many digits'} is no size or address")
    return number


class _Lines:
    """The user's own lines in stacks, each looked at once, as far as there are not endlessly many files."""

    def __init__(self) -> None:
        self._known: dict[int, Frame | None] = {}  # by the list of frames, which the snapshot keeps
        self._files: set[str] = set()

    def of(self, holder: Mapping[str, Any]) -> Frame | None:
        """The innermost line of the user's own that asked for it."""
        frames = holder.get("frames", ())
        if id(frames) not in self._known:
            shown = frames[:MOST_FRAMES]
            if not all(type(each["filename"]) is type(each["name"]) is str for each in shown):
                raise TypeError("a frame has a file and a name that are text")
            files = {each["filename"] for each in shown}
            if len(self._files) < MOST_FILES or files <= self._files:
                self._files |= files
                line = line_of(shown)
                self._known[id(frames)] = line if line is None or _number(line.line) >= 0 else None
            else:
                self._known[id(frames)] = None
        return self._known[id(frames)]


def _history(
    history: Sequence[Mapping[str, Any]], segments: Sequence[Mapping[str, Any]], lines: _Lines
) -> list[PoolEvent]:
    """What was held when the history began, all at one time, then every entry of it."""
    names, reserved, live = _Names(segments), _Ranges(), {}
    if sum(len(segment["blocks"]) for segment in segments) > MOST_BLOCKS:
        raise ValueError(f"more than {MOST_BLOCKS:,} blocks")
    for segment in segments:
        address = _number(segment["address"])
        reserved.change(address, _number(segment["total_size"]), comes=True)
        for block in segment["blocks"]:
            address = _number(block.get("address", address))
            if block["state"] in LIVE:
                live[address] = (_number(block["size"]), lines.of(block))
            address += _number(block["size"])
    taken = {}  # bytes by the place of an allocation in the history, which has what was asked for
    for place, entry in reversed(list(enumerate(history))):  # what it has done is undone, from the end to the beginning
        action, address, size = entry["action"], _number(entry.get("addr", 0)), _number(entry["size"])
        if action in _SEGMENTS:
            reserved.change(address, size, comes=not _SEGMENTS[action], grows=action in _GROWS)
        elif action == "alloc":
            taken[place], _ = live.pop(address, (_rounded(size), None))
        elif action == "free_completed":
            live[address] = (_rounded(size), None)
    events = [PoolEvent(0, names.of(at), PoolAction.SEGMENT_ALLOC, at, size) for at, size in reserved]
    for address, (size, line) in sorted(live.items()):
        events.append(PoolEvent(0, names.of(address), PoolAction.ALLOC, address, size, None, line))
    now = 1 if events else 0
    for place, entry in enumerate(history):
        action, address, size = entry["action"], _number(entry.get("addr", 0)), _number(entry["size"])
        frame = lines.of(entry)
        if action in _SEGMENTS:
            gone, came = reserved.change(address, size, comes=_SEGMENTS[action], grows=action in _GROWS)
            events += [PoolEvent(now, names.of(at), PoolAction.SEGMENT_FREE, at, n) for at, n in gone]
            events += [PoolEvent(now, names.of(at), PoolAction.SEGMENT_ALLOC, at, n, None, frame) for at, n in came]
        elif action in _BLOCKS:
            size = taken.get(place, _rounded(size))
            events.append(PoolEvent(now, names.of(address), _BLOCKS[action], address, size, None, frame))
        else:
            continue
        now += 1
    return events


def _rounded(size: int) -> int:
    """What the allocator takes for so many bytes, at least."""
    return -(-size // SMALLEST_BLOCK) * SMALLEST_BLOCK


def _no_room(entry: Mapping[str, Any], lines: _Lines) -> Failure:
    """An allocation that failed."""
    free = f"; the device had {bytes_text(_number(entry['device_free']))} left" if "device_free" in entry else ""
    return Failure(
        "out-of-memory",
        f"{bytes_text(int(entry['size']))} found no room",
        f"out of memory{free}",
        lines.of(entry),
        "The memory view shows what was held at that moment, each block at the line that asked for it.",
        "free what is held longest, or torch.cuda.empty_cache() where much is reserved and little of it is live",
    )


class _Ranges:
    """What is reserved, as ranges of addresses; expandable segments grow and shrink at their ends."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}
        self._steps = 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((start, self._sizes[start]) for start in self._starts)

    def change(self, start: int, size: int, *, comes: bool, grows: bool = False) -> tuple[list[_Range], list[_Range]]:
        """Add or take away a range; returns the ranges that are no more, and those that are new."""
        gone, came, end = [], [(start, size)], start + size
        first = max(bisect_left(self._starts, start) - 1, 0)
        last = bisect_right(self._starts, end)
        self._steps += last - first
        if len(self._starts) > MOST_SEGMENTS or self._steps > MOST_STEPS:
            raise ValueError(f"more than {MOST_SEGMENTS:,} segments, or segments that lie in one another")
        for at in self._starts[first:last]:
            low, high = at, at + self._sizes[at]
            if comes and grows and (high == start or low == end):
                gone.append((at, self._sizes[at]))
                low, high = min(low, came[0][0]), max(high, sum(came[0]))
                came = [(low, high - low)]
            elif not comes and low < end and high > start:
                gone.append((at, self._sizes[at]))
        if not comes:
            came = [(at, start - at) for at, _ in gone if at < start]
            came += [(end, at + size - end) for at, size in gone if at + size > end]
        for at, _ in gone:
            del self._starts[bisect_left(self._starts, at)]
            del self._sizes[at]
        for at, each in came:
            if at not in self._sizes:
                insort(self._starts, at)
            self._sizes[at] = each
        return gone, came


class _Names:
    """The pool of an address, by the segments that are there; what was freed before is taken for the default pool's."""

    def __init__(self, segments: Sequence[Mapping[str, Any]]) -> None:
        names = {DEFAULT: "default"}
        ranges = []
        for segment in segments:
            pool = tuple(segment.get("segment_pool_id", DEFAULT))
            name = names.setdefault(pool, f"private {len(names)}")
            if len(names) > MOST_POOLS:
                raise ValueError(f"more than {MOST_POOLS:,} pools")
            ranges.append((_number(segment["address"]), _number(segment["total_size"]), name))
        self._ranges = sorted(ranges)
        self._starts = [start for start, _, _ in self._ranges]

    def of(self, address: int) -> str:
        at = bisect_right(self._starts, address) - 1
        if at < 0 or address >= sum(self._ranges[at][:2]):
            return "default"
        return self._ranges[at][2]
