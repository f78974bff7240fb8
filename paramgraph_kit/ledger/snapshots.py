"""Every block and segment of the caching allocator at moments that the caller names, pool by pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from paramgraph_kit.driver.files import display_name, is_library
from paramgraph_kit.trace.model import Frame, PoolAction, PoolEvent

DEFAULT: tuple[int, int] = (0, 0)
LIVE = ("active_allocated", "active_awaiting_free", "active_pending_free")

_Held = dict[tuple[str, int], int]  # (pool, address) -> size


class Snapshots:
    """Appends to a list of events what has changed in the allocator since the last moment.

    The addresses, sizes and pools are the allocator's own. What comes and goes between two moments is not seen, and
    nothing is recorded while work runs, so that watching costs nothing there. Where the allocator's history is on
    (``torch.cuda.memory._record_memory_history()``), a block that came has the line of the user's that asked for it.

    >>> live = {"address": 0, "size": 512, "state": "active_allocated"}
    >>> segment = {"address": 0, "total_size": 2048, "segment_pool_id": (0, 0), "blocks": [live]}
    >>> states = iter([[], [segment]])
    >>> events = []
    >>> snapshots = Snapshots(events, lambda: next(states))
    >>> snapshots.mark(), snapshots.mark(0)
    (0, 2)
    >>> [(event.pool, str(event.action), event.size, event.call) for event in events]
    [('default', 'segment alloc', 2048, 0), ('default', 'alloc', 512, 0)]
    """

    def __init__(self, events: list[PoolEvent], take: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
        self.events = events
        self._time = events[-1].time + 1 if events else 0
        self._take = take  # what torch.cuda.memory_snapshot returns
        self._names: dict[tuple[int, int], str] = {DEFAULT: "default"}
        self._segments: _Held = {}
        self._blocks: _Held = {}

    def mark(self, call: int | None = None) -> int:
        """Append what is new, freed blocks first, all at one time; returns how many events that were.

        Args:
            call: which call of the workload the events belong to.
        """
        segments: _Held = {}
        blocks: _Held = {}
        lines: dict[tuple[str, int], Frame | None] = {}
        for segment in self._take():
            pool = self._name(segment["segment_pool_id"])
            segments[pool, segment["address"]] = segment["total_size"]
            for block in segment["blocks"]:
                if block["state"] in LIVE:
                    blocks[pool, block["address"]] = block["size"]
                    lines[pool, block["address"]] = line_of(block.get("frames", ()))
        changes = [
            *_gone(self._blocks, blocks, PoolAction.FREE),
            *_gone(self._segments, segments, PoolAction.SEGMENT_FREE),
            *_gone(segments, self._segments, PoolAction.SEGMENT_ALLOC),
            *_gone(blocks, self._blocks, PoolAction.ALLOC),
        ]
        self._segments, self._blocks = segments, blocks
        for pool, action, address, size in changes:
            line = lines.get((pool, address)) if action is PoolAction.ALLOC else None
            self.events.append(PoolEvent(self._time, pool, action, address, size, call, line))
        self._time += 1  # also where nothing has changed
        return len(changes)

    def _name(self, pool: Any) -> str:
        # Ids differ from run to run; the order in which pools appear does not.
        return self._names.setdefault(tuple(pool), f"private {len(self._names)}")


def line_of(frames: Sequence[Mapping[str, Any]]) -> Frame | None:
    """The innermost line of Python that is the user's own, of a stack as torch's allocator has it."""
    for frame in frames:
        file = str(frame["filename"])
        if not is_library(file) and (file.endswith(".py") or file.startswith("<")):
            return Frame(display_name(file), int(frame["line"]), str(frame["name"]))
    return None


def _gone(before: _Held, after: _Held, action: PoolAction) -> list[tuple[str, PoolAction, int, int]]:
    return [
        (pool, action, address, size) for (pool, address), size in before.items() if after.get((pool, address)) != size
    ]
