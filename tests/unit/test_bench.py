"""The comparison's machinery without a GPU: children that take turns, the table, and the words where there is none."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from paramgraph_kit.bench import command, main
from paramgraph_kit.bench.measure import keep_to, quick_cores
from paramgraph_kit.bench.plot import memory_svg, time_svg
from paramgraph_kit.bench.table import markdown

CHILD = """
import json, sys
print("something else")
print("ready to be timed", flush=True)
turns = []
while len(turn := sys.stdin.readline().split()) == 2:
    turns.append(turn)
    print("ready to be timed", flush=True)
print(json.dumps({"workload": sys.argv[2], "mode": sys.argv[3], "turns": turns}))
"""


def test_a_child_waits_for_its_turn_and_hands_in_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN two children that are warm and wait
    monkeypatch.setattr(command, "COMMAND", (sys.executable, "-c", CHILD))
    children = [command._Child("llama", mode) for mode in ("no graphs", "paramgraph")]
    for child in children:
        child.wait_until_ready()
    # WHEN each gets its turns
    for steps in (5, 7):
        for child in children:
            child.take_a_turn(steps, "0,1")
    # THEN each hands in its row
    assert [child.result() for child in children] == [
        {"workload": "llama", "mode": mode, "turns": [["5", "0,1"], ["7", "0,1"]]}
        for mode in ("no graphs", "paramgraph")
    ]


def test_a_child_that_fails_is_a_row_with_its_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a child that dies before it is warm
    monkeypatch.setattr(command, "COMMAND", (sys.executable, "-c", "raise SystemExit('no such model')"))
    child = command._Child("llama", "paramgraph")
    child.wait_until_ready()
    child.take_a_turn(5, "0")
    # WHEN asked THEN it does not hang, and the error is in the row and on the terminal
    assert child.result() == {"workload": "llama", "mode": "paramgraph", "error": "no such model"}
    assert "no such model" in capsys.readouterr().err


def _row(mode: str, total: float, memory: int, **more: Any) -> dict[str, Any]:
    keys = ("stepping_bytes", "peak_reserved_bytes", "rest_bytes")
    return (
        {"workload": "w", "mode": mode, "cpu_us": total / 2, "total_us": total, "total_us_turns": [total]}
        | dict.fromkeys(keys, memory)
        | more
    )


def test_the_table_shows_ratios_what_is_added_and_what_failed() -> None:
    # GIVEN one workload in three modes and one that failed
    rows = [
        _row("no graphs", 400, 100 << 20),
        _row("graph trees", 100, 350 << 20, held_outputs="raises: Error"),
        _row("paramgraph", 90, 110 << 20, held_outputs="valid", bits={"compared": 7, "different": 0}),
        {"workload": "other", "mode": "paramgraph", "error": "out of memory"},
    ]
    source = {"device": "GPU", "driver": "1", "torch": "2", "python": "3", "date": "2026-01-01", "command": "bench"}
    # WHEN drawn
    text = markdown({"source": source, "rows": rows})
    # THEN the numbers, their hardware and the failure are there
    assert text.startswith("GPU, driver 1, torch 2, Python 3, 2026-01-01; `bench`.")
    assert "| w | 200 / 400 | 50 / 100 | 45 / 90 | 0.90 | 7 tensors equal |" in text
    assert "| w | 100 / 100 / 100 | +250 / +250 / +250 | +10 / +10 / +10 | raises: Error / valid |" in text
    assert "| other | - | - | failed: out of memory | - | failed: out of memory |" not in text
    assert "failed: out of memory" in text


def test_a_difference_is_named_beside_the_baseline_s_own() -> None:
    # GIVEN results whose bits differ WHEN drawn THEN the baseline's own differences stand beside them
    bits = {"compared": 9, "different": 4, "baseline_differs_from_itself": 3}
    source = dict.fromkeys(("device", "driver", "torch", "python", "date", "command"), "x")
    text = markdown({"source": source, "rows": [_row("paramgraph", 1, 1, bits=bits)]})
    assert "4 of 9 differ (the baseline differs from itself in 3)" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_it_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN no GPU WHEN run THEN one line and a status, no numbers
    assert main([]) == 2
    assert capsys.readouterr().err == "bench: no GPU here; it measures real launches only\n"


def test_every_thread_is_kept_to_the_cores_asked_for() -> None:
    # GIVEN a second thread WHEN the process is kept to the quickest core THEN both threads are on it and nowhere else
    before = os.sched_getaffinity(0)
    stop, found = threading.Event(), []

    def work() -> None:
        stop.wait()
        found.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=work)
    thread.start()
    cores = quick_cores(1)
    try:
        keep_to(cores)
        stop.set()
        thread.join()
        assert [os.sched_getaffinity(0), *found] == [set(cores)] * 2
    finally:
        stop.set()
        keep_to(before)


def test_pictures_show_each_mode_and_leave_out_what_is_missing() -> None:
    # GIVEN a workload that ran in all modes, one whose trees failed, and one without anything to compare with
    rows = [_row("no graphs", 8.0, 8 << 20), _row("graph trees", 4.0, 40 << 20), _row("paramgraph", 2.0, 8 << 20)]
    rows += [row | {"workload": "b <i>"} for row in rows[::2]]
    rows += [{"workload": "b <i>", "mode": "graph trees", "error": "no"}, rows[2] | {"workload": "alone"}]
    result = {"source": {"device": "a GPU", "date": "2026-01-01"}, "rows": rows}
    # WHEN drawn
    times, memory = time_svg(result), memory_svg(result)
    # THEN bars have their lengths and labels, and text is escaped
    assert times == time_svg(result)
    assert "0.50: 4 us" in times
    assert times.count("0.25: 2 us") == 2
    assert "+32 MiB" in memory
    assert memory.count("+0 MiB") == 2
    assert "b &lt;i&gt;" in times
    assert "alone" not in times + memory
    assert ElementTree.fromstring(times).get("role") == ElementTree.fromstring(memory).get("role") == "img"
