"""Torch's own memory snapshots become traces, and nothing in such a file is run."""

from __future__ import annotations

import gzip
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import paramgraph_kit as pgk
from paramgraph_kit.explore import explore
from paramgraph_kit.ledger import Snapshots, read_snapshot
from paramgraph_kit.trace import PoolAction, PoolEvent, TraceError

DATA = Path(__file__).resolve().parents[1] / "data"
USER = [
    {"filename": "/usr/x.cpp", "line": 1, "name": "at::empty"},
    {"filename": "/home/me/train.py", "line": 12, "name": "step"},
]
SEGMENTS = [
    {
        "device": 0,
        "address": 4096,
        "total_size": 2048,
        "segment_pool_id": (0, 0),
        "blocks": [
            {"size": 512, "state": "active_allocated", "frames": USER},
            {"size": 1536, "state": "inactive", "frames": []},
        ],
    },
    {"device": 0, "address": 1 << 40, "total_size": 4096, "segment_pool_id": (0, 7), "blocks": []},
]
HISTORY = [
    {"action": "segment_alloc", "addr": 4096, "size": 2048, "frames": []},
    {"action": "alloc", "addr": 4096, "size": 512, "frames": USER},
    {"action": "free_requested", "addr": 4096, "size": 512, "frames": USER},
    {"action": "free_completed", "addr": 4096, "size": 512, "frames": USER},
    {"action": "alloc", "addr": 1 << 40, "size": 64, "frames": USER},
]


def written(folder: Path, snapshot: Any) -> Path:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    return path


def test_a_history_has_each_block_with_the_line_that_asked_for_it(tmp_path: Path) -> None:
    # GIVEN a snapshot with a history WHEN it is read
    trace = read_snapshot(written(tmp_path, {"segments": SEGMENTS, "device_traces": [HISTORY]}))
    # THEN what came and went is there, pool by pool, at the user's own line
    assert [(event.time, event.pool, event.action, event.size) for event in trace.pool_events] == [
        (0, "private 1", PoolAction.SEGMENT_ALLOC, 4096),  # its coming is not in the history, so it was there before
        (1, "default", PoolAction.SEGMENT_ALLOC, 2048),
        (2, "default", PoolAction.ALLOC, 512),
        (3, "default", PoolAction.FREE, 512),
        (4, "private 1", PoolAction.ALLOC, 512),  # which is the least that the allocator takes
    ]
    frame = trace.pool_events[2].frame
    assert frame is not None
    assert frame.label() == "/home/me/train.py:12"
    assert "private 1" in explore(trace).text()


def entry(action: str, address: int, size: int, **more: Any) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "frames": USER, **more}


def test_what_was_there_before_the_history_began_is_there_from_the_beginning(tmp_path: Path) -> None:
    # GIVEN a history that was switched on after the model was made: weights stay, an older block goes, a segment goes
    weights = {"address": 4096, "size": 512, "state": "active_allocated", "frames": []}
    late = {"address": 5120, "size": 256, "state": "active_allocated", "frames": USER}
    segment = {"device": 0, "address": 4096, "total_size": 2048, "blocks": [weights, late]}
    history = [
        entry("free_requested", 4608, 128),
        entry("free_completed", 4608, 128),
        entry("segment_free", 1 << 20, 8192),
        entry("alloc", 5120, 256),
    ]
    trace = read_snapshot(written(tmp_path, {"segments": [segment], "device_traces": [history]}))
    # WHEN it is read THEN both segments and both blocks are there first
    assert [(event.time, event.action, event.address) for event in trace.pool_events] == [
        (0, PoolAction.SEGMENT_ALLOC, 4096),
        (0, PoolAction.SEGMENT_ALLOC, 1 << 20),
        (0, PoolAction.ALLOC, 4096),
        (0, PoolAction.ALLOC, 4608),
        (1, PoolAction.FREE, 4608),
        (2, PoolAction.SEGMENT_FREE, 1 << 20),
        (3, PoolAction.ALLOC, 5120),
    ]


def test_segments_that_grow_are_one_range(tmp_path: Path) -> None:
    # GIVEN an expandable segment that grew twice, with a block over both pieces, and gave the second one back in part
    history = [
        entry("segment_map", 0, 2048),
        entry("segment_map", 2048, 2048),
        entry("alloc", 0, 4000),
        entry("free_completed", 0, 4000),
        entry("segment_unmap", 3072, 1024),
    ]
    segment = {"device": 0, "address": 0, "total_size": 3072, "is_expandable": True, "blocks": []}
    trace = read_snapshot(written(tmp_path, {"segments": [segment], "device_traces": [history]}))
    # WHEN it is read THEN what is reserved is one range at each time
    reserved = [event for event in trace.pool_events if event.action.value.startswith("segment")]
    assert [(event.time, event.action, event.address, event.size) for event in reserved] == [
        (0, PoolAction.SEGMENT_ALLOC, 0, 2048),
        (1, PoolAction.SEGMENT_FREE, 0, 2048),
        (1, PoolAction.SEGMENT_ALLOC, 0, 4096),
        (4, PoolAction.SEGMENT_FREE, 0, 4096),
        (4, PoolAction.SEGMENT_ALLOC, 0, 3072),
    ]


def test_the_device_that_was_used_is_read_and_what_found_no_room_is_a_failure(tmp_path: Path) -> None:
    # GIVEN a process that worked on its second device, until that was full
    history = [entry("segment_alloc", 0, 2048), entry("oom", 0, 3 << 30, device_free=1 << 20)]
    segment = {"device": 1, "address": 0, "total_size": 2048, "blocks": []}
    trace = read_snapshot(written(tmp_path, {"segments": [segment], "device_traces": [[], history]}))
    # WHEN it is read THEN it is that device's, with the line that asked for too much
    assert "device 1" in trace.source.label()
    assert [event.size for event in trace.pool_events] == [2048]
    (failure,) = trace.failures
    assert (failure.code, failure.title) == ("out-of-memory", "3.0 GiB found no room")
    assert "1.0 MiB left" in failure.message
    assert failure.frame is not None
    assert failure.frame.label() == "/home/me/train.py:12"


def test_what_an_h200_had_reserved_and_allocated_comes_out(tmp_path: Path) -> None:
    # GIVEN a snapshot of training steps, a captured forward and an allocation that failed, on an H200 with torch 2.11;
    # its history began after the first step, and its frames are shortened
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(gzip.decompress((DATA / "h200_memory_snapshot.pickle.gz").read_bytes()))
    # WHEN it is read and followed to its end
    trace = pgk.load(path)
    held: dict[tuple[bool, int], int] = {}
    for event in trace.pool_events:
        key = event.action in (PoolAction.ALLOC, PoolAction.FREE), event.address
        if event.action in (PoolAction.ALLOC, PoolAction.SEGMENT_ALLOC):
            held[key] = event.size
        else:
            del held[key]
    # THEN it is what torch.cuda.memory_reserved() and memory_allocated() said
    assert sum(size for (block, _), size in held.items() if not block) == 205_520_896
    assert sum(size for (block, _), size in held.items() if block) == 176_202_752
    assert [(one.title, one.frame and one.frame.label()) for one in trace.failures] == [
        ("32.0 TiB found no room", "/home/me/train.py:29")
    ]
    asked = {event.frame.line for event in trace.pool_events if event.frame and event.action is PoolAction.ALLOC}
    assert asked == {15, 22, 25, 27}


def test_load_takes_one_as_it_takes_a_trace(tmp_path: Path) -> None:
    # GIVEN a snapshot WHEN it is loaded like a trace, also without torch THEN it is one, which can be saved
    path = written(tmp_path, {"segments": SEGMENTS, "device_traces": [HISTORY]})
    assert pgk.load(path) == read_snapshot(path)
    assert pgk.load(pgk.save(pgk.load(path), tmp_path / "a.pgtrace")).pool_events == read_snapshot(path).pool_events
    with pytest.raises(TraceError, match="no memory snapshot"):
        pgk.load(written(tmp_path, [Hostile(tmp_path)]))


def test_without_a_history_the_state_is_shown(tmp_path: Path) -> None:
    # GIVEN a snapshot of what is held WHEN it is read THEN live blocks are there, at one time
    trace = read_snapshot(written(tmp_path, {"segments": SEGMENTS, "device_traces": []}))
    assert [(event.pool, event.action, event.size, event.time) for event in trace.pool_events] == [
        ("default", PoolAction.SEGMENT_ALLOC, 2048, 0),
        ("private 1", PoolAction.SEGMENT_ALLOC, 4096, 0),
        ("default", PoolAction.ALLOC, 512, 0),
    ]


class Hostile:
    """Runs a command when an ordinary unpickler reads it."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.target}",)


def test_nothing_in_a_file_is_run(tmp_path: Path) -> None:
    # GIVEN a pickle that would run a command WHEN it is read THEN it is refused, and the command did not run
    target = tmp_path / "ran"
    with pytest.raises(TraceError, match=r"no memory snapshot \(it names \w+\.system, and a memory snapshot has plain"):
        read_snapshot(written(tmp_path, {"segments": [Hostile(target)]}))
    assert not target.exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([1, 2], "not the layout of a memory snapshot"),
        ({}, "not the layout of a memory snapshot"),
        ({"segments": [{"device": 0}]}, "not the layout of a memory snapshot"),
    ],
)
def test_what_is_no_snapshot_says_so(tmp_path: Path, content: Any, says: str) -> None:
    # GIVEN another pickle, no pickle, or no file WHEN it is read THEN one line says what is wrong
    with pytest.raises(TraceError, match=says):
        read_snapshot(written(tmp_path, content))
    (tmp_path / "text").write_text("hello")
    with pytest.raises(TraceError, match="no memory snapshot"):
        read_snapshot(tmp_path / "text")
    with pytest.raises(TraceError, match="cannot be read"):
        read_snapshot(tmp_path / "nowhere")


def test_snapshots_name_the_line_of_a_block_that_came() -> None:
    # GIVEN an allocator whose history is on WHEN a block comes and goes THEN it has its line, and its going has none
    block = {"address": 64, "size": 512, "state": "active_allocated", "frames": USER}
    segment = {"address": 64, "total_size": 2048, "segment_pool_id": (0, 0), "blocks": [block]}
    states = iter([[segment], []])
    events: list[PoolEvent] = []
    snapshots = Snapshots(events, lambda: next(states))
    snapshots.mark()
    snapshots.mark()
    lines = [(event.action, event.frame and (event.frame.file, event.frame.line)) for event in events]
    assert lines == [
        (PoolAction.SEGMENT_ALLOC, None),
        (PoolAction.ALLOC, ("/home/me/train.py", 12)),
        (PoolAction.FREE, None),
        (PoolAction.SEGMENT_FREE, None),
    ]
