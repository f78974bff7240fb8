"""Training on several ranks: the ranks of each mode meet, take turns and hand in, here on the CPU and uncompiled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from scripts.distributed import child, command
from scripts.distributed.table import markdown

SIZE = '{"layers": 1, "dim": 16, "heads": 2, "hidden": 24, "tokens": 4}'


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed")
def test_two_ranks_train_alike_and_hand_in_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN one strategy in one mode
    monkeypatch.setattr(command, "STRATEGIES", ("fsdp2",))
    monkeypatch.setattr(command, "MODES", ("paramgraph",))
    # WHEN run
    status = command.main(["--device", "cpu", "--steps", "2", "--size", SIZE, "--out", str(tmp_path)])
    # THEN losses of both ranks are compared, and the table says what ran
    (row,) = json.loads((tmp_path / "distributed.json").read_text())["rows"]
    assert status == 0, row
    assert (row["ranks"], row["different"], row["launches"]) == (2, 0, 0)
    assert [len(losses) for losses in row["losses"]] == [2, 2]
    assert row["losses"][0] != row["losses"][1]
    assert row["compared"] > 4
    assert "cpu, nothing compiled" in capsys.readouterr().out


def test_what_differs_is_counted_and_fails() -> None:
    # GIVEN losses and parameters of two runs WHEN one of each differs THEN both count, and the row is bad
    a, b = torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])
    assert child._differing(([1.0, 2.0], [a, a]), ([1.0, 2.5], [a, b])) == 2
    assert child._differing(([float("nan")], [a]), ([float("nan")], [a.clone()])) == 0
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
    assert "| ddp | no graphs | 10 / 20 | 3 / 3 / 3 | - | - |" in text
    assert "| ddp | graph trees | failed: RuntimeError: overwritten |" in text
    assert "| 1 of 40 (ungraphed runs among themselves: 4) | 9 of 2 executables, 8 patched |" in text


def test_too_few_gpus_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN fewer GPUs than ranks WHEN run THEN it says how many there are
    many = torch.cuda.device_count() + 1
    assert command.main(["--ranks", str(many)]) == 2
    said = f"distributed: it needs {many} GPUs, here are {many - 1}\n"
    assert capsys.readouterr().err == said
