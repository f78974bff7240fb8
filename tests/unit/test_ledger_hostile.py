"""Memory snapshots that mean harm, or are merely broken: one line, two seconds and 200 MB at the most."""

from __future__ import annotations

import pickle
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from paramgraph_kit.explore import explore
from paramgraph_kit.ledger import read_snapshot
from paramgraph_kit.trace import TraceError

PRIME = (1 << 61) - 1  # integers that differ by it have one hash
FRAME = {"filename": "/home/me/train.py", "line": 12, "name": "step"}


def segment(**changes: Any) -> dict[str, Any]:
    return {"device": 0, "address": 4096, "total_size": 2048, "segment_pool_id": (0, 0), "blocks": [], **changes}


def entry(action: str = "alloc", **changes: Any) -> dict[str, Any]:
    return {"action": action, "addr": 4096, "size": 512, "frames": [FRAME], **changes}


def history(*entries: Any) -> bytes:
    return pickle.dumps({"segments": [segment()], "device_traces": [list(entries)]})


def again(of: dict[str, Any], count: int) -> bytes:
    """A history that names one entry ``count`` times, with two bytes for each."""
    head = b"\x80\x02}(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00device_traces]("
    return head + b"(" + pickle.dumps(of, 2)[2:-1] + b"q\xff" + b"h\xff" * count + b"le" + b"u."


BLOCKS = [{"size": 512, "state": "active_allocated"}] * 3000
HOSTILE = {
    "room for four billion values": (b"\x80\x02}r\xff\xff\xff\x7f.", "at a place that no file of this size has"),
    "bytes that are not there": (b"\x80\x04\x8e" + struct.pack("<Q", 1 << 34) + b"x.", "cut off"),
    "bytes in place": (b"\x80\x05\x96" + struct.pack("<Q", 1 << 34) + b"x.", "more than plain values"),
    "eight million dictionaries": (b"\x80\x04(" + b"}" * 8_000_000 + b"l.", "more memory than a file of this size"),
    "lists in lists": (b"\x80\x04" + b"]" * 4_000_000 + b"a" * 3_999_999 + b".", "more memory than a file of this"),
    "keys of one hash": (pickle.dumps({9 * n * PRIME: 0 for n in range(1, 9_000)}), "an integer of more than 64 bits"),
    "a name of many lines": (b"\x80\x04\x8c\x0aos\nrm -rf\n\x8c\x04a\nbc\x93.", "it names os rm -rf .a bc"),
    "a name of two million letters": (
        b"\x80\x04X" + struct.pack("<I", 2_000_000) + b"a" * 2_000_000 + b"\x8c\x01b\x93.", "aaa...",
    ),
    "a file that ends": (history(entry())[:-30], "cut off"),
    "endless numbers": (pickle.dumps({"segments": [segment(total_size=float("inf"))]}), "OverflowError"),
    "no number": (history(entry(addr=float("nan"))), "ValueError"),
    "a size below nothing": (pickle.dumps({"segments": [segment(address=-5)]}), "-5 is no size or address"),
    "a device of its own making": (history(entry("oom", device_free="x" * 9_999)), "ValueError"),
    "text that is none": (history(entry(frames=[{**FRAME, "filename": [[]]}])), "a frame has a file and a name"),
    "a line that is none": (history(entry(frames=[{**FRAME, "line": -1}])), "-1 is no size or address"),
    "blocks that many segments share": (
        pickle.dumps({"segments": [segment(address=n << 30, blocks=BLOCKS) for n in range(3000)]}), "200,000 blocks",
    ),
    "many segments": (
        history(*(entry("segment_alloc", addr=n << 12, size=4096) for n in range(50_000))), "20,000 segments",
    ),
    "segments in segments": (
        history(*(entry("segment_alloc", addr=n << 12, size=4096) for n in range(15_000)),
                *([entry("segment_map", addr=1, size=1 << 60)] * 15_000)), "20,000 segments",
    ),
    "many pools": (
        pickle.dumps({"segments": [segment(address=n << 12, segment_pool_id=(0, n)) for n in range(20_000)]}),
        "1,000 pools",
    ),
    "itself": (b"\x80\x02}q\x00X\x08\x00\x00\x00segmentsh\x00s.", "AttributeError"),
    "nothing": (pickle.dumps(None), "AttributeError"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_snapshot_is_told_in_a_line_and_at_once(name: str, tmp_path: Path) -> None:
    # GIVEN a file that asks for more than it is
    content, says = HOSTILE[name]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(content)
    # WHEN it is read
    began = time.process_time()
    with pytest.raises(TraceError) as raised:
        read_snapshot(path)
    # THEN it is refused in time, in one short line that says why
    assert time.process_time() - began < 2
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500 + len(str(path))


@pytest.mark.parametrize("action", ["alloc", "segment_alloc"])
def test_one_entry_named_often_costs_no_more_than_the_last_ones(action: str, tmp_path: Path) -> None:
    # GIVEN a history of a megabyte that has half a million entries
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(again(entry(action, frames=[]), 500_000))
    # WHEN it is read THEN the last of them are there, and the trace says so
    trace = read_snapshot(path)
    assert trace.title.endswith(", the last 200,000 of 500,001 entries")
    assert len(trace.pool_events) <= 200_002


def test_memory_stays_within_bounds(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    for content in (HOSTILE["eight million dictionaries"][0], HOSTILE["room for four billion values"][0]):
        path.write_bytes(content)
        tracemalloc.start()
        with pytest.raises(TraceError):
            read_snapshot(path)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 200e6


def test_a_stack_that_many_entries_share_is_looked_at_once(tmp_path: Path) -> None:
    # GIVEN 5,000 entries with one stack of 100,000 frames, none of them the user's
    frames = [{"filename": "/usr/x.cpp", "line": 1, "name": "n"}] * 100_000
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(history(*(entry(addr=512 * n, frames=frames) for n in range(5000))))
    # WHEN read THEN it takes no time for each
    began = time.process_time()
    assert len(read_snapshot(path).pool_events) == 5001
    assert time.process_time() - began < 2


def test_what_memory_snapshot_returns_is_read_too(tmp_path: Path) -> None:
    # GIVEN a pickle of torch.cuda.memory_snapshot(), which has the segments alone
    path = tmp_path / "segments.pickle"
    path.write_bytes(pickle.dumps([segment(blocks=[{"size": 512, "state": "active_allocated", "frames": [FRAME]}])]))
    # WHEN / THEN
    trace = read_snapshot(path)
    assert [event.size for event in trace.pool_events] == [2048, 512]
    assert trace.pool_events[1].frame is not None
    assert "2.0 KiB reserved" in explore(trace).text()


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_that_torch_may_write_is_read(protocol: int, tmp_path: Path) -> None:
    more = {"allocator_settings": {"max_split_size": -1, "ratio": 0.5, "on": True}, "external_annotations": [], "e": ()}
    content = {
        "segments": [segment(address=1 << 47)],
        "device_traces": [[entry(addr=n * 512) for n in range(600)]],
        **more,
    }
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(content, protocol))
    assert len(read_snapshot(path).pool_events) == 601
