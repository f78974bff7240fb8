"""Torch's own memory snapshots become traces, and nothing in such a file is run."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from paramgraph_kit.explore import explore
from paramgraph_kit.ledger import Snapshots, read_snapshot
from paramgraph_kit.trace import PoolAction, PoolEvent, TraceError

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
    assert [(event.pool, event.action, event.size) for event in trace.pool_events] == [
        ("default", PoolAction.SEGMENT_ALLOC, 2048),
        ("default", PoolAction.ALLOC, 512),
        ("default", PoolAction.FREE, 512),
        ("private 1", PoolAction.ALLOC, 64),
    ]
    frame = trace.pool_events[1].frame
    assert frame is not None
    assert frame.label() == "/home/me/train.py:12"
    assert "private 1" in explore(trace).text()


def test_without_a_history_the_state_is_shown(tmp_path: Path) -> None:
    # GIVEN a snapshot of what is held WHEN it is read THEN live blocks are there, at one time
    trace = read_snapshot(written(tmp_path, {"segments": SEGMENTS, "device_traces": []}))
    assert [(event.pool, event.action, event.size, event.time) for event in trace.pool_events] == [
        ("default", PoolAction.SEGMENT_ALLOC, 2048, 0),
        ("default", PoolAction.ALLOC, 512, 0),
        ("private 1", PoolAction.SEGMENT_ALLOC, 4096, 0),
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
