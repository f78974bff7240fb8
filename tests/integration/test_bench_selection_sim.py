"""What ``bench --selection`` says of partitions, on the simulated device: decisions, and the truth beside them."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.bench import selection
from paramgraph_kit.bench.selection import _applied, _mlp, _module, measure_selection, run, small_work

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
DEVICE = pgk.device()

CHILD = """
import json, sys
if sys.argv[-1] == "fails":
    raise SystemExit("no such kernel")
print("ready to be timed", flush=True)
assert int(sys.stdin.readline().split()[0]) >= 50
print("ready to be timed", flush=True)
sys.stdin.readline()
row = {"workload": sys.argv[-1], "partition": "forward 0", "kept": True, "verdict": "right"}
print(json.dumps({"rows": [row | dict.fromkeys(("measured_us", "alone_us", "in_a_row_us"), [1.0, 2.0])]}))
"""


def test_each_partition_is_timed_both_ways() -> None:
    # GIVEN a forward and a backward pass
    torch._dynamo.reset()
    work = partial(_module, lambda: _mlp(8), 4, 8, training=True)
    # WHEN measured
    rows = measure_selection("an MLP", work, DEVICE.type, [1])
    # THEN both have a decision, what it rests on, and times of both ways
    assert [row["partition"].split()[0] for row in rows] == ["forward", "backward"]
    for row in rows:
        assert row["kept"] in (True, False)
        assert "us from a graph" in row["why"] if not row["kept"] else len(row["measured_us"]) == 2
        assert all(us > 0 for way in ("alone_us", "in_a_row_us") for us in row[way])
        assert row["verdict"]


@pytest.mark.usefixtures("slow_launches")
def test_a_slow_graph_is_found_out() -> None:
    # GIVEN launches that take ten milliseconds
    torch._dynamo.reset()
    # WHEN measured THEN the graph is dropped, and that is right
    (row,) = measure_selection("a sine", partial(_applied, lambda x: x.sin() * 2, 16), DEVICE.type, [1])
    assert (row["kept"], row["verdict"]) == (False, "right")
    assert row["alone_us"][0] > 9e3 > row["alone_us"][1]


def test_rows_are_kept_as_they_come_and_a_failure_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(selection, "small_work", lambda: dict.fromkeys(("fine", "fails", "unasked")))
    monkeypatch.setattr(selection, "quick_cores", lambda: [0])
    status = run(
        [sys.executable, "-c", CHILD], tmp_path, {"device": "x"}, seconds=20, jobs=1, only=lambda n: n != "unasked"
    )
    rows: list[dict[str, Any]] = [json.loads(line) for line in (tmp_path / "selection.jsonl").read_text().splitlines()]
    assert status == 1
    assert [row.get("verdict", row.get("error")) for row in rows[1:]] == ["right", "no such kernel"]
    said = capsys.readouterr().out
    assert "| fine | forward 0 | kept | 1 / 2 | 1 / 2 | 1 / 2 | right |" in said
    assert "1 right, 0 even (within 3%), 0 wrong, of 2." in said


def test_there_are_twelve_workloads_at_least() -> None:
    assert len(small_work()) >= 12
