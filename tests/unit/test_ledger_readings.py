"""The ledger: what it reads, when, and how its readings become events and figures."""

from __future__ import annotations

import random

import pytest

from paramgraph_kit.explore.pools import pool_series
from paramgraph_kit.ledger import Ledger, Reading
from paramgraph_kit.trace import PoolAction, UnsupportedError


class Device:
    """A device with a caching allocator of two numbers."""

    name = "hand-written"

    def __init__(self) -> None:
        self.live = 0
        self.held = 0
        self.fails = False

    def allocate(self, size: int) -> None:
        self.live += size
        self.held = max(self.held, self.live)

    def free(self, size: int) -> None:
        self.live -= size

    def memory(self) -> tuple[int, int, int]:
        if self.fails:
            raise RuntimeError("the device is gone")
        return self.live, self.held, self.held + 1000


def test_readings_are_what_the_device_says_at_each_mark() -> None:
    # GIVEN a device whose memory changes between marks
    device = Device()
    with Ledger(device) as ledger:
        # WHEN marked
        device.allocate(512)
        assert ledger.mark("call 0") == Reading("call 0", 512, 512, 1512)
        device.allocate(1024)
        device.free(1536)
        ledger.mark("call 1")
    # THEN the readings, the peak and the growth are those values
    assert [r.label for r in ledger.readings] == ["start", "call 0", "call 1", "end"]
    assert ledger.peak == Reading("peak", 512, 1536, 2536)
    assert ledger.growth == Reading("start to end", 0, 1536, 1536)
    assert repr(ledger) == "Ledger('hand-written', 4 readings, peak 512 bytes allocated, 1536 reserved)"
    assert ledger.table().splitlines() == [
        "reading  allocated  reserved  device",
        "start            0         0   1,000",
        "call 0         512       512   1,512",
        "call 1           0     1,536   2,536",
        "end              0     1,536   2,536",
    ]


@pytest.mark.parametrize("seed", range(10))
def test_events_add_up_to_the_readings(seed: int) -> None:
    # GIVEN readings that go up and down at random
    rng = random.Random(seed)
    ledger = Ledger(Device())
    ledger.readings = [
        Reading(str(n), rng.randrange(9) << 9, rng.randrange(9) << 20, 0) for n in range(rng.randrange(1, 30))
    ]
    # WHEN made into events
    events = ledger.pool_events("run", start=7)
    # THEN the pool is, after each call's last event, what was read
    last = {event.call: n for n, event in enumerate(events)}
    at = -1
    for call, reading in enumerate(ledger.readings):
        at = last.get(call, at)
        series = pool_series(events[: at + 1])
        assert (series[0].reserved[-1] if series else 0) == reading.reserved
        assert (series[0].live[-1] if series else 0) == reading.allocated
    assert [event.time for event in events] == list(range(7, 7 + len(events)))
    assert {event.pool for event in events} <= {"run"}
    assert all(event.size > 0 for event in events)
    assert {event.action for event in events} <= set(PoolAction)


def test_an_error_inside_is_not_hidden_by_a_failing_device() -> None:
    # GIVEN a device that dies with the work WHEN the block is left THEN the work's error comes out
    device = Device()

    def work() -> None:
        with Ledger(device):
            device.fails = True
            raise ValueError("the work failed")

    with pytest.raises(ValueError, match="the work failed"):
        work()


def test_use_outside_with_is_refused_in_one_line() -> None:
    # GIVEN a ledger that was not entered, and one that was left WHEN marked THEN the error shows how
    ledger = Ledger(Device())
    with pytest.raises(UnsupportedError, match=r"^ledger\.mark\('x'\) outside of its with block; use: with Ledger"):
        ledger.mark("x")
    with pytest.raises(UnsupportedError, match="no readings"):
        _ = ledger.peak
    assert repr(ledger) == "Ledger('hand-written', 0 readings)"
    with ledger:
        pass
    with pytest.raises(UnsupportedError, match="outside of its with block"):
        ledger.mark("x")


def test_entering_again_starts_afresh() -> None:
    # GIVEN a ledger used once WHEN used again THEN it has only the new readings
    ledger = Ledger(Device())
    for _ in range(2):
        with ledger:
            pass
    assert [r.label for r in ledger.readings] == ["start", "end"]
