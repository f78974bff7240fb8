"""The runner: children that crash, hang or talk too much, a journal that was cut off, and going on where it stopped."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.corpus import command
from tests.corpus.timing import Timed, in_batches


def _child(monkeypatch: pytest.MonkeyPatch, source: str, limit: float = 60) -> dict[str, Any]:
    monkeypatch.setattr(command, "COMMAND", (sys.executable, "-c", source))
    return command.run_child("held outputs", "sim", eager=False, limit=limit)


def test_the_last_line_of_json_is_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a child that prints more than its row WHEN run THEN the row is found, with the process's time
    row = _child(monkeypatch, "print('{\"status\": \"equal\"}'); print('goodbye'); print('3')")
    assert row["status"] == "equal"
    assert row["process_s"] >= 0


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("import os; os.kill(os.getpid(), 11)", "killed by SIGSEGV"),
        ("import sys; print('first', file=sys.stderr); raise SystemExit('no such model')", "no such model"),
        ("raise SystemExit(3)", "exit status 3 and no output"),
    ],
)
def test_a_child_that_dies_is_one_failure(monkeypatch: pytest.MonkeyPatch, source: str, error: str) -> None:
    # GIVEN a child that dies WHEN run THEN it is a row with the reason
    row = _child(monkeypatch, source)
    assert (row["status"], row["error"]) == ("failed", error)


def test_a_child_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a child that never ends WHEN its time is over THEN it is a failure
    row = _child(monkeypatch, "import time; time.sleep(600)", limit=0.5)
    assert row == {"status": "failed", "error": "not done after 0 s", "total_s": 0.5}


def test_a_journal_that_was_cut_off_keeps_what_is_whole(tmp_path: Path) -> None:
    # GIVEN a journal with a workload run twice and half a line
    journal = tmp_path / "corpus.jsonl"
    rows = [
        {"workload": "a", "status": "failed"},
        {"workload": "b", "status": "equal"},
        {"workload": "a", "status": "x"},
    ]
    journal.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"workload": "c", "st')
    # WHEN read THEN the last whole row of each is there
    assert command.read(journal) == {"a": rows[2], "b": rows[1]}
    assert command.read(tmp_path / "nowhere.jsonl") == {}


SIM_CHILD = """
import json, sys
name = sys.argv[sys.argv.index("--child") + 1]
print(json.dumps({"status": "equal" if "held" in name else "wrong", "compared": 1, "different": 0}))
"""


def test_rows_are_kept_and_missing_ones_alone_are_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a run of one workload and a failure of another that an earlier run left
    monkeypatch.setattr(command, "COMMAND", (sys.executable, "-c", SIM_CHILD))
    arguments = ["--device", "sim", "--out", str(tmp_path)]
    assert command.main([*arguments, "--only", "held outputs"]) == 0
    journal = tmp_path / "corpus.jsonl"
    journal.write_text(journal.read_text() + json.dumps({"workload": "outputs fed back", "status": "failed"}) + "\n")
    # WHEN the missing of three are run
    status = command.main([*arguments, "--missing", "--only", "held outputs,outputs fed back,views of one"])
    # THEN the good one is kept as it was, the others are run, and a wrong one is the exit status
    ran = [line.split(":")[0].split(maxsplit=1)[1] for line in capsys.readouterr().err.splitlines()]
    assert ran[0] == "held outputs"
    assert set(ran[1:]) == {"outputs fed back", "views of one storage"}
    assert status == 1
    assert {r["workload"] for r in json.loads((tmp_path / "corpus.json").read_text())["rows"]} == set(ran)
    assert "| wrong | 2 |" in (tmp_path / "corpus.md").read_text()


def test_no_workload_is_started_after_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a budget that is over at once WHEN run THEN nothing is started, and what there is is written
    monkeypatch.setattr(command, "COMMAND", (sys.executable, "-c", "raise SystemExit('must not run')"))
    assert command.main(["--device", "sim", "--out", str(tmp_path), "--budget", "-1"]) == 0
    assert json.loads((tmp_path / "corpus.json").read_text())["rows"] == []


TIMED_CHILD = """
import json, sys
print("talk")
print("ready to be timed", flush=True)
steps = []
while (n := int(sys.stdin.readline())):
    steps.append(n)
    print("ready to be timed", flush=True)
print(json.dumps({"workload": sys.argv[1], "steps": steps}))
"""


def test_each_workload_of_a_batch_gets_all_its_turns() -> None:
    # GIVEN workloads of which one dies before it is warm
    def start(name: str) -> Timed:
        source = TIMED_CHILD if name != "broken" else "raise SystemExit('no such model')"
        return Timed([sys.executable, "-c", source, name], name, limit=60)

    # WHEN timed in batches of two THEN each has its turns, and the broken one is a row with its error
    batches = list(in_batches(["a", "broken", "c"], start, jobs=2, rounds=2, steps=5))
    assert batches == [
        [{"workload": "a", "steps": [5, 5]}, {"workload": "broken", "error": "no such model"}],
        [{"workload": "c", "steps": [5, 5]}],
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_nothing_is_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN no GPU WHEN asked for times THEN one line and a status, no numbers
    assert command.main(["--time", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "corpus --time: no GPU here; it measures real launches only\n"


def test_the_names_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN the command WHEN asked for names THEN family and name, one line each
    assert command.main(["--list", "--only", "dlrm"]) == 0
    assert capsys.readouterr().out == "generative   dlrm inference\ngenerative   dlrm training\n"
