"""Ways that are measured side by side: rows as they come, failures and late ones among them, tokens compared."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from paramgraph_kit.bench import side_by_side
from paramgraph_kit.bench.side_by_side import Start, measured, packed, run
from paramgraph_kit.bench.table import calls_markdown
from paramgraph_kit.bench.turns import LATE, Child
from paramgraph_kit.bench.ways import Compared, Ready

# What a process does, by its way; each says when its turns were.
CHILD = """
import json, sys, time
workload, way = sys.argv[-2:]
row = {"workload": workload, "way": way, "note": "", "rest_mib": 5, "peak_mib": 9}
if way == "fails":
    raise SystemExit("no such model")
if way == "hangs early":
    time.sleep(60)
print(json.dumps(row))
print("ready to be timed", flush=True)
turns = []
while len(turn := sys.stdin.readline().split()) == 2:
    if way == "hangs late":
        time.sleep(60)
    turns.append([float(turn[0]), time.monotonic()])
    time.sleep(0.002)
    print("ready to be timed", flush=True)
tokens = [1, 2, 3] if way != "other" else [1, 7, 3]
times = {"cpu_us": 10.0, "total_us": 1000.0, "in_a_row_us": 20.0, "total_us_turns": [1000.0] * len(turns)}
print(json.dumps(row | times | {"turns": turns, "tokens": tokens}))
"""
SOURCE = {"device": "a GPU", "date": "today"}


def workload(name: str, *ways: str, **more: Any) -> Compared:
    return Compared(name, dict.fromkeys(ways, lambda: Ready(lambda: None)), **more)


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    monkeypatch.setattr(side_by_side, "SPARE_S", 0.5)
    monkeypatch.setattr(side_by_side, "TURN_S", 1.0)
    monkeypatch.setattr(side_by_side, "quick_cores", lambda: [0, 1])
    return lambda name, way, limit: Child(
        [sys.executable, "-c", CHILD, name, way], {"workload": name, "way": way}, limit
    )


def test_ways_take_turns_and_tokens_are_compared(start: Start) -> None:
    # GIVEN three ways, of which one gives another token WHEN measured
    ((plain, same, other),) = measured(
        [workload("decoding", "no graphs", "same", "other", tokens=3)], start, seconds=20, jobs=4, gib=80
    )
    # THEN each had a turn before any had its second
    begun = [[at for _, at in row["turns"]] for row in (plain, same, other)]
    assert all(max(nth) < min(following) for nth, following in zip(zip(*begun), list(zip(*begun))[1:]))  # noqa: B905
    assert len(begun[0]) == side_by_side.ROUNDS
    # AND the table says whose tokens are others, and how many a second
    assert plain["note"] == "3,000 tokens/s"
    assert same["note"] == "3,000 tokens/s, the same tokens"
    assert other["note"] == "3,000 tokens/s, OTHER tokens from number 1 on"
    assert (same["other_tokens"], other["other_tokens"]) == (0, 1)


def test_what_fails_or_hangs_is_a_row_and_the_rest_is_kept(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN ways that fail, that never get warm, and that hang when it is their turn; and workloads behind them
    first = workload("first", "no graphs", "fails", "hangs early", "hangs late")
    workloads = [first, *(workload(name, "no graphs", "fails") for name in ("second", "third"))]
    monkeypatch.setattr(side_by_side, "SPARE_S", 3.0)
    # WHEN run in bounded time
    begun = time.monotonic()
    status = run(workloads, start, tmp_path, "calls", SOURCE, seconds=4.5, jobs=4, gib=80)
    # THEN it ends in time and says so
    assert time.monotonic() - begun < 20
    assert status == 1
    source, *rows = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    assert source == {"source": SOURCE}
    found = {(row["workload"], row["way"]): row for row in rows}
    assert found["first", "no graphs"]["total_us"] == 1000.0
    assert found["first", "fails"]["note"] == "failed: no such model"
    # AND what a way that hung had told of its memory is kept
    assert found["first", "hangs early"]["note"] == found["first", "hangs late"]["note"] == f"failed: {LATE}"
    assert "rest_mib" not in found["first", "hangs early"]
    assert found["first", "hangs late"]["rest_mib"] == 5
    # AND nothing is begun when the time is over, which is a row too
    assert found["third", "no graphs"]["note"] == f"failed: {LATE}"
    assert len(rows) == 8
    assert "| fails | | | | | | | failed: no such model |" in capsys.readouterr().out
    assert "no such model" in (tmp_path / "calls.md").read_text()


def test_workloads_that_need_much_memory_do_not_get_ready_together() -> None:
    # GIVEN a workload whose ways do not fit beside one another WHEN packed THEN none is left out or met twice
    workloads = [
        workload("small", "a", "b"),
        workload("large", "a", "b", "c", gib=38.0),
        workload("huge", "a", gib=99.0),
    ]
    batches = packed(workloads, 8, 79)
    assert [(w.name, way) for batch in batches for w, ways in batch for way in ways] == [
        (w.name, way) for w in workloads for way in w.ways
    ]
    assert all(sum(w.gib * len(ways) for w, ways in batch) <= 79 or len(batch) == 1 for batch in batches)


def test_memory_is_shown_over_no_graphs() -> None:
    # GIVEN rows with what the process holds WHEN drawn THEN what is added stands there, and the peak's ratio
    plain: dict[str, Any] = {"workload": "w", "way": "no graphs", "note": ""}
    plain |= {"rest_mib": 100, "peak_mib": 200, "rest_held_mib": 500}
    ours = plain | {"way": "paramgraph", "note": "why", "rest_mib": 90, "peak_mib": 230, "rest_held_mib": 530}
    text = calls_markdown([plain, ours])
    assert "| no graphs | | | | | 100 | 200 | |" in text
    assert "| paramgraph | | | | | -10 (+30) | 1.15 | why |" in text
