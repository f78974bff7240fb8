"""The part of the corpus that the simulated device can run, compared bit for bit as on a GPU."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pytest
import torch

from paramgraph_kit.driver.select import device
from tests.corpus import Case, corpus
from tests.corpus import command as corpus_command
from tests.corpus.case import missing
from tests.corpus.check import check

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs the whole corpus instead")
LONG = {"dcgan training", "blocks with one graph", "llama small training", "texts dynamic"}  # seconds of compiling
SIMULATED = [c for c in corpus() if c.simulated and c.name not in LONG and not missing(c, torch.device("cpu"))]


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> None:
    torch.compiler.reset()
    gc.collect()  # the report speaks of every graph that is alive


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's forward mode uses it
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning")  # as newer torch has it
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # Dynamo's of 2.15
# Every second at each change; `make sweeps` takes the others, and a GPU the whole corpus.
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, marks=[pytest.mark.sweep] * (n % 2), id=c.name)
        for n, c in enumerate(c for c in SIMULATED if not c.expect)
    ],
)
def test_a_workload_is_equal_bit_for_bit(case: Case) -> None:
    # GIVEN a workload WHEN every step is compared at moved addresses THEN nothing differs, and what is not in a graph
    # has a reason
    row = check(case, device())
    assert (row["status"], row["different"], row["baseline_differs_from_itself"]) == ("equal", 0, 0)
    assert row["launches"] > 0
    assert row["strict"]
    assert row["kernels_in_graphs"] == row["kernels"] > 0 or row["reasons"]


@pytest.mark.parametrize("case", [c for c in SIMULATED if c.expect], ids=lambda case: case.name)
def test_what_no_graph_may_take_is_refused_and_right(case: Case) -> None:
    # GIVEN a workload that hides something WHEN compared THEN it is right, and the report says why it is not graphed
    row = check(case, device())
    assert (row["status"], row["different"]) == ("refused", 0)
    assert {reason.partition(": ")[0] for reason in row["reasons"]} & set(case.expect[0].split("|"))


@pytest.mark.sweep  # three processes that import torch; two ranks meet in the measurements' test, too
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed")
def test_a_workload_of_two_ranks_is_two_processes_and_one_row() -> None:
    # GIVEN a workload of two ranks WHEN run on the CPU, uncompiled THEN the ranks find each other, and one hands in
    row = corpus_command.run_child("all-reduce of two ranks", "cpu", eager=True, limit=120)
    assert (row["status"], row.get("error")) == ("eager", None)


def test_the_command_runs_a_workload_in_a_process_of_its_own(tmp_path: Path) -> None:
    # GIVEN the command WHEN one workload is run THEN its row is in the journal and in the table, labelled as simulated
    assert corpus_command.main(["--only", "held outputs", "--out", str(tmp_path)]) == 0
    row = json.loads((tmp_path / "corpus.jsonl").read_text())
    assert (row["workload"], row["family"], row["status"]) == ("held outputs", "state", "equal")
    assert (tmp_path / "corpus.md").read_text().startswith("simulated device")
