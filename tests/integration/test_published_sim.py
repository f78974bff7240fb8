"""PyGraph's list on the simulated device: what a row holds, the table, and a run whose children fail or are late."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import paramgraph_kit as pgk
from tests.corpus.published import __main__ as command
from tests.corpus.published.listed import LISTED, Built, Inputs, Listed
from tests.corpus.published.measure import ALL, CHOSEN, OURS, PLAIN, TREES, measure
from tests.corpus.published.table import markdown

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")

CHILD = """
import json, sys, time
short, way = sys.argv[-2:]
if short == "DLRM" and way == "ours":
    raise SystemExit("no such kernel")
if short == "ALNET":
    time.sleep(60)
for _ in range(4):
    print("ready to be timed", flush=True)
    if sys.stdin.readline().split()[0] == "0":
        break
partition = {"partition": "forward 0", "kept": True, "measured_us": [1, 2], "alone_us": [1, 2], "verdict": "right"}
ours = {"us": {"no graphs": 20.0, "paramgraph": 8.0, "select=measure": 8.0}, "partitions": [partition]}
ours |= {"kernels": [4, 5], "copied_bytes": 0, "layers": [2, 24]}
ours["bits"] = {"compared": 3, "different": 0, "unstable": 0}
trees = {"us": {"graph trees": 10.0}, "copied_bytes": 2000000, "layers": [2, 24]}
print(json.dumps({"short": short, "way": way} | (ours if way == "ours" else trees)))
"""


def _small(listed: Listed, device: torch.device, layers: int | None) -> Built:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)).to(device)

    def inputs(seed: int) -> Inputs:
        return (torch.randn(listed.batch, 4, generator=torch.Generator().manual_seed(seed)).to(device),)

    return Built(model, inputs, lambda output, _: output.square().mean(), (1, 1))


@pytest.mark.parametrize("training", [False, True])
def test_a_row_has_all_ways_of_the_same_code(training: bool) -> None:
    # GIVEN a workload of the list's kind WHEN measured in three turns
    torch._dynamo.reset()
    listed = Listed("S", "small", "here", training, 3, _small)
    row = measure(listed, OURS, pgk.device(), None, [1, 1, 1], set())
    # THEN each way has its time, each partition a decision and what is true of it, and no bit differs
    assert row["us"].keys() == {PLAIN, ALL, CHOSEN}
    assert len(row["partitions"]) == 1 + training
    assert all(part["kept"] in (True, False) and part["verdict"] for part in row["partitions"])
    assert row["bits"] == {"compared": 2 * (5 if training else 1), "different": 0, "unstable": 0}
    assert row["copied_bytes"] == 0
    assert row["kernels"][1]


@pytest.mark.usefixtures("slow_launches")
def test_what_measuring_drops_is_still_timed_from_its_graph() -> None:
    # GIVEN a graph whose launches are slow
    torch._dynamo.reset()
    # WHEN measured THEN it is dropped, rightly, and its own time stands beside that of what was chosen
    row = measure(Listed("S", "small", "here", False, 3, _small), OURS, pgk.device(), None, [1, 1], set())
    (part,) = row["partitions"]
    assert part["kept"] is False
    assert part["verdict"] == "right"
    assert row["us"][ALL] > 10_000 > row["us"][CHOSEN] == row["us"][PLAIN]


def test_each_workload_of_the_list_has_its_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN a list of which one fails, and one before others is never ready WHEN run and written down
    listed = [each for each in LISTED if each.short in ("DLRM", "ALNET", "DCGAN")]
    rows = [*command.measured(listed, [sys.executable, "-c", CHILD], seconds=4, ready=1.5)]
    (tmp_path / "published.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    status = command.main(["--table", str(tmp_path), "--out", str(tmp_path)])
    # THEN there is a line for all 25, with times, with what went wrong, or with what is missing
    assert status == 1
    text = (tmp_path / "published.md").read_text()
    assert text in capsys.readouterr().out
    lines = {line.split(":")[0].strip("| "): line for line in text.splitlines() if line.startswith("| ")}
    assert len(lines) == 1 + len(LISTED) == 26
    assert "| 20 | 10 | 8 | 0.40 | 0.80 | 8 | 1 of 1 | 4 of 5 | 2.00 / 0 | 0 of 3 |" in lines["DCGAN"]
    assert "written again; 2 of 24 layers" in lines["DCGAN"]
    assert "ours: no such kernel" in lines["DLRM"]
    assert "ours: not done in time; graph trees: not done in time" in lines["ALNET"]
    assert "fetches the weights of OpenAI's CLIP" in lines["DALLE2"]
    assert "compiles for minutes" in lines["VM"] or "torchvision is not installed" in lines["VM"]
    assert '`select="measure"` kept 1 of 1 graphs: 1 right,' in text


def test_models_of_the_suite_come_from_its_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN the suite's files, of which only those that define a model can be imported
    listed = next(each for each in LISTED if each.short == "EOS")
    folder = tmp_path / "torchbenchmark" / "models" / "pyhpc_equation_of_state"
    folder.mkdir(parents=True)
    (tmp_path / "torchbenchmark" / "__init__.py").write_text("raise ImportError('a data set is missing')")
    (folder / "eos_pytorch.py").write_text("gsw_dHdT = lambda s, t, p: s * t + p")
    assert listed.absent == "torchbenchmark is not installed"
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    # WHEN built THEN it is their code, on inputs of the suite's shapes
    assert listed.absent == ""
    assert listed.build is not None
    built = listed.build(dataclasses.replace(listed, batch=512), torch.device(pgk.device()), None)
    given = built.inputs(0)
    assert isinstance(given, tuple)
    assert built.model(*given).shape == (16, 16, 2)
    del sys.modules["eos_pytorch"]


def test_no_gpu_is_said_and_the_list_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN no GPU WHEN it is asked to measure or to list THEN it says so, or lists all
    assert command.main([]) == 2
    assert "no GPU here" in capsys.readouterr().err
    assert command.main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 25
    assert TREES in markdown([])
