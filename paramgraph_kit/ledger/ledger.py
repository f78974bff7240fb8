"""Who holds how much device memory, read from the allocator at moments that the caller names."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from paramgraph_kit.trace.errors import UnsupportedError
from paramgraph_kit.trace.model import PoolAction, PoolEvent


class HasMemory(Protocol):
    """The part of ``driver.api.Driver`` that a ledger reads."""

    name: str

    def memory(self) -> tuple[int, int, int]:
        """(allocated, reserved, in use on the device) in bytes."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Device memory at one moment, in bytes, as the allocator and the device report it."""

    label: str
    allocated: int  # in live blocks
    reserved: int  # held by the caching allocator, live or not
    device: int  # in use on the device, by anyone

    def __sub__(self, other: Reading) -> Reading:
        return Reading(
            f"{other.label} to {self.label}",
            self.allocated - other.allocated,
            self.reserved - other.reserved,
            self.device - other.device,
        )


class Ledger:
    """Reads memory on entering, at every mark, and on leaving.

    >>> from types import SimpleNamespace
    >>> readings = iter([(0, 0, 9), (512, 2048, 2057), (0, 2048, 2057)])
    >>> with Ledger(SimpleNamespace(name="demo", memory=lambda: next(readings))) as ledger:
    ...     _ = ledger.mark("call 0")
    >>> ledger
    Ledger('demo', 3 readings, peak 512 bytes allocated, 2048 reserved)
    >>> ledger.growth.reserved
    2048
    """

    def __init__(self, driver: HasMemory) -> None:
        self.driver = driver
        self.readings: list[Reading] = []
        self._open = False

    def __enter__(self) -> Ledger:
        self.readings.clear()
        self._open = True
        self.mark("start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A reading may itself fail after an error on the device, and must not hide that error.
        if error is None:
            self.mark("end")
        self._open = False

    def mark(self, label: str) -> Reading:
        """Read the memory now and keep it under ``label``.

        Raises:
            UnsupportedError: outside ``with``.
        """
        if not self._open:
            raise UnsupportedError(
                f"ledger.mark({label!r}) outside of its with block; use: with Ledger(driver) as ledger"
            )
        allocated, reserved, device = self.driver.memory()
        reading = Reading(label, allocated, reserved, device)
        self.readings.append(reading)
        return reading

    @property
    def peak(self) -> Reading:
        """The largest of each value; they need not be of the same moment, nor is anything seen between marks."""
        readings = self._some()
        return Reading(
            "peak",
            max(r.allocated for r in readings),
            max(r.reserved for r in readings),
            max(r.device for r in readings),
        )

    @property
    def growth(self) -> Reading:
        """The last reading less the first."""
        readings = self._some()
        return readings[-1] - readings[0]

    def pool_events(self, pool: str = "default", start: int = 0) -> list[PoolEvent]:
        """The readings as allocator events, so that they can be part of a trace.

        A reading has totals and no blocks: one event stands for each change, at an address that is made up.

        Args:
            pool: the name that the events carry.
            start: the time of the first event.
        """
        events: list[PoolEvent] = []
        segments, blocks = _Total(PoolAction.SEGMENT_ALLOC, PoolAction.SEGMENT_FREE), _Total()
        for call, reading in enumerate(self.readings):
            changes = (*segments.to(reading.reserved), *blocks.to(reading.allocated))
            for action, address, size in changes:
                events.append(PoolEvent(start + len(events), pool, action, address, size, call))
        return events

    def table(self) -> str:
        """All readings as text, in bytes."""
        rows = [("reading", "allocated", "reserved", "device")]
        rows += [(r.label, f"{r.allocated:,}", f"{r.reserved:,}", f"{r.device:,}") for r in self.readings]
        widths = [max(len(row[n]) for row in rows) for n in range(4)]
        lines = (f"{row[0]:<{widths[0]}}  " + "  ".join(f"{row[n]:>{widths[n]}}" for n in range(1, 4)) for row in rows)
        return "\n".join(lines)

    def __repr__(self) -> str:
        if not self.readings:
            return f"Ledger({self.driver.name!r}, 0 readings)"
        count = "1 reading" if len(self.readings) == 1 else f"{len(self.readings)} readings"
        peak = self.peak
        return f"Ledger({self.driver.name!r}, {count}, peak {peak.allocated} bytes allocated, {peak.reserved} reserved)"

    def _some(self) -> list[Reading]:
        if not self.readings:
            raise UnsupportedError("this ledger has no readings; use: with Ledger(driver) as ledger")
        return self.readings


class _Total:
    """Made-up pieces that add up to a total: it grows by one piece, and shrinks from the newest."""

    def __init__(self, alloc: PoolAction = PoolAction.ALLOC, free: PoolAction = PoolAction.FREE) -> None:
        self.alloc, self.free = alloc, free
        self.pieces: list[tuple[int, int]] = []  # (address, size)

    def to(self, total: int) -> list[tuple[PoolAction, int, int]]:
        events: list[tuple[PoolAction, int, int]] = []
        held = sum(size for _, size in self.pieces)
        while held > total:
            address, size = self.pieces.pop()
            held -= size
            events.append((self.free, address, size))
        if held < total:
            self.pieces.append((held, total - held))
            events.append((self.alloc, held, total - held))
        return events
