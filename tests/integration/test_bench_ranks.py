"""Training on several ranks: the ranks of each mode meet, take turns and hand in, here on the CPU and uncompiled."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from scripts.distributed import child, command
from scripts.distributed.table import markdown
from scripts.distributed.training import digest

SIZE = '{"layers": 2, "dim": 16, "heads": 4, "kv_heads": 2, "hidden": 24, "tokens": 4}'


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed")
@pytest.mark.parametrize("strategy", ["fsdp2-70b", pytest.param("ddp", marks=pytest.mark.sweep)])
def test_two_ranks_train_alike_and_hand_in_one_row(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN one strategy in one mode
    monkeypatch.setattr(command, "MODES", ("paramgraph",))
    # WHEN run
    arguments = ["--device", "cpu", "--steps", "2", "--size", SIZE, "--out", str(tmp_path), "--limit", "600"]
    status = command.main([*arguments, "--only", strategy])
    # THEN losses of both ranks are compared, and the table says what ran
    (row,) = json.loads((tmp_path / "distributed.json").read_text())["rows"]
    assert status == 0, row
    assert (row["ranks"], row["different"], row["launches"]) == (2, 0, 0)
    assert [len(losses) for losses in row["losses"]] == [2, 2]
    assert row["losses"][0] != row["losses"][1]
    assert row["compared"] > 4
    said = capsys.readouterr()
    assert "cpu, nothing compiled" in said.out
    assert f"* {strategy}: 2 layers, d=16, 4/2 heads, ff=24" in said.out
    # AND what fills a GPU has its times written before its bits are compared
    timed = [f"{strategy}, paramgraph: timed"] if strategy == "fsdp2-70b" else []
    assert said.err.splitlines() == [*timed, f"{strategy}, paramgraph: done"]


CHILD = """
import json, os, sys, time
mode = sys.argv[sys.argv.index("--mode") + 1]
row = {"strategy": "fsdp2-70b", "mode": mode, "cpu_us": 1, "total_us": 2}
if mode == "graph trees":
    time.sleep(60)
if mode == "paramgraph" and os.environ["RANK"] == "0":
    print(json.dumps(row | {"bits": "not compared in time"}), flush=True)
print(json.dumps(row), flush=True)
if mode == "paramgraph" and os.environ["RANK"] == "1":
    time.sleep(0.5)
    sys.exit("ValueError: a rank that fails")
time.sleep(1)
"""


def test_rows_are_written_as_they_come_and_time_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN modes one after the other, of which the last hangs
    (tmp_path / "hangs.py").write_text(CHILD)
    monkeypatch.setattr(command, "CHILD", (str(tmp_path / "hangs.py"),))
    # WHEN time is up THEN what was measured is there, and the one that hung says so
    started = time.monotonic()
    assert command.main(["--device", "cpu", "--out", str(tmp_path), "--limit", "4"]) == 1
    assert time.monotonic() - started < 50
    rows = json.loads((tmp_path / "distributed.json").read_text())["rows"]
    said = ["no graphs", "ValueError: a rank that fails", "not done in time"]
    assert [row.get("error", row["mode"]) for row in rows] == said
    # AND what is known of a row stays
    assert [row.get("total_us") for row in rows] == [2, 2, None]


def test_a_row_is_there_before_its_bits_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN ours, timed at once and not compared before time is up
    text = CHILD.replace("paramgraph", "nothing").replace("time.sleep(1)", "time.sleep(60)")
    (tmp_path / "slow.py").write_text(text.replace("print(json.dumps(row)", "print(json.dumps(row | {'bits': 'open'})"))
    monkeypatch.setattr(command, "CHILD", (str(tmp_path / "slow.py"),))
    monkeypatch.setattr(command, "MODES", ("paramgraph",))
    # WHEN run THEN its row has times, says so, and counts as not done
    assert command.main(["--device", "cpu", "--out", str(tmp_path), "--limit", "3"]) == 1
    (row,) = json.loads((tmp_path / "distributed.json").read_text())["rows"]
    assert (row["total_us"], row["bits"]) == (2, "open")
    assert command.bad(row)


def test_what_differs_is_counted_and_fails() -> None:
    # GIVEN losses and parameters of two runs WHEN one of each differs THEN both count, and the row is bad
    a, b, nan = (digest(torch.tensor(values)) for values in ([0.0, 1.0], [-0.0, 1.0], [float("nan"), 1.0]))
    assert child._differing(([1.0, 2.0], [a, a]), ([1.0, 2.5], [a, b])) == 2
    assert child._differing(([float("nan")], [nan]), ([float("nan")], [nan])) == 0
    # AND what ungraphed runs do not repeat either says nothing of graphs
    assert child._differing(([1.0, 2.0], [a, a]), ([1.0, 2.5], [b, b]), ([1.0, 3.0], [a, b])) == 1
    row: dict[str, Any] = {"strategy": "ddp", "mode": "paramgraph", "different": 2}
    assert command.bad(row)
    assert command.bad(row | {"different": 0, "error": "out of memory"})
    assert not command.bad(row | {"different": 0})
    assert not command.bad({"mode": "graph trees", "error": "overwritten"})


def test_the_table_shows_failures_bits_and_memory() -> None:
    # GIVEN rows of every kind
    memory = dict.fromkeys(("stepping_bytes", "peak_reserved_bytes", "rest_bytes"), 3 << 20)
    times = {"cpu_us": 10.0, "total_us": 20.0}
    rows = [
        {"strategy": "ddp", "mode": "no graphs", **times, **memory},
        {"strategy": "ddp", "mode": "graph trees", "error": "RuntimeError: overwritten"},
        {"strategy": "ddp", "mode": "paramgraph", **times, **memory, "different": 1, "compared": 40}
        | {"baseline_differs_from_itself": 4, "launches": 9, "executables": 2, "patched_launches": 8},
    ]
    # WHEN drawn
    text = markdown({"source": {"device": "a GPU", "command": "run"}, "ranks": 2, "rows": rows})
    # THEN
    assert "| ddp | no graphs | 10 / 20 | 3 / 3 / 3 | - | - | - |" in text
    assert "| ddp | paramgraph | 10 / 20 | 3 / 3 / 3 | +0 / +0 / +0 |" in text
    assert "| ddp | graph trees | failed: RuntimeError: overwritten |" in text
    assert "| 1 of 36 (4 more differ between ungraphed runs, too) | 9 of 2 executables, 8 patched |" in text


def test_too_few_gpus_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN fewer GPUs than ranks WHEN run THEN it says how many there are
    many = torch.cuda.device_count() + 1
    assert command.main(["--ranks", str(many)]) == 2
    said = f"distributed: it needs {many} GPUs, here are {many - 1}\n"
    assert capsys.readouterr().err == said
