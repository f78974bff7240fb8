"""The corpus without a compiler: what is in it, that every workload runs, what a comparison notices, the table."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paramgraph_kit.bench.measure import compare
from paramgraph_kit.launch.probation import Measured
from paramgraph_kit.trace.reason import Reason
from tests.corpus import FAMILIES, Case, corpus
from tests.corpus.case import missing, normal, tensors
from tests.corpus.check import _verdict, eager
from tests.corpus.refusal import EXPECTED
from tests.corpus.table import markdown
from tests.corpus.timing import SELECTED, ratio, selection, summary

CPU = torch.device("cpu")
OWN = [case for case in corpus() if not case.needs and case.family != "distributed"]
SOURCE = dict.fromkeys(("device", "driver", "torch", "python", "date", "command"), "x")


def test_the_corpus_is_large_and_every_name_is_used_once() -> None:
    # GIVEN the corpus WHEN counted THEN it has every family and at least 60 workloads besides those that are refused
    families = Counter(case.family for case in corpus())
    assert set(families) == set(FAMILIES)
    assert sum(n for family, n in families.items() if family != "refusal") >= 60
    assert max(Counter(case.name for case in corpus()).values()) == 1
    assert not [case.name for case in corpus() if "," in case.name]  # --only is split at commas


def test_the_page_on_changed_models_names_every_such_workload_and_no_other(repository: Path) -> None:
    # GIVEN the page's table WHEN compared with the corpus THEN both have the same names
    rows = [r.split("|") for r in (repository / "docs" / "changed-models.md").read_text().splitlines() if r[:2] == "| "]
    named = [name for row in rows[1:] for name in re.findall(r"`([^`]+)`", row[2])]
    sharded = {c.name for c in corpus("distributed") if "fsdp2" in c.name or "tensor parallel" in c.name}
    assert sorted(named) == sorted({case.name for case in corpus("changed,adapted")} | sharded)


def test_a_family_is_chosen_by_its_whole_name_and_a_workload_by_a_part() -> None:
    # GIVEN parts of names WHEN asked for THEN a family's name never means workloads that happen to contain it
    assert {case.family for case in corpus("training")} == {"training"}
    assert [case.name for case in corpus("alexnet,held out")] == [
        "alexnet inference",
        "alexnet training",
        "held outputs",
    ]
    assert corpus("no such workload") == []


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's forward mode uses it
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning")  # as newer torch has it
@pytest.mark.parametrize("case", OWN, ids=lambda case: case.name)
def test_every_workload_of_our_own_runs_and_returns_tensors(case: Case) -> None:
    # GIVEN a workload that needs no other package WHEN two steps are run THEN each returns what can be compared
    assert eager(case, CPU)["compared"] >= 2


@pytest.mark.parametrize("case", OWN, ids=lambda case: case.name)
def test_inputs_depend_on_the_seed_and_on_nothing_else(case: Case) -> None:
    # GIVEN a workload WHEN its inputs are made twice THEN they are equal for one seed, and others for the next
    first, again, other = case.inputs(0, CPU), case.inputs(0, CPU), case.inputs(1, CPU)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(a.shape != b.shape or not torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_what_a_workload_needs_and_is_not_here_is_said() -> None:
    # GIVEN needs that this machine does not have WHEN asked THEN one line says which
    def needing(*needs: str) -> Case:
        return Case("x", lambda _: nn.Identity(), normal((1,)), lambda *_: [], needs=needs)

    assert missing(needing("torch>=2.11", "numpy"), CPU) == ""
    assert missing(needing("cuda"), CPU) == "needs a CUDA device"
    assert missing(replace(needing(), ranks=99), torch.device("cuda")).startswith("needs 99 CUDA devices, there are ")
    assert missing(needing("no.such.package"), CPU) == "needs no.such.package, which is not installed"
    assert missing(needing("numpy>=99"), CPU).startswith("needs numpy 99 or newer, this is ")


def test_tensors_are_found_in_whatever_a_model_returns() -> None:
    # GIVEN nested results WHEN flattened THEN order is kept and everything else is left out
    a, b, c = torch.zeros(1), torch.ones(1), torch.ones(2)
    found = tensors(({"x": a, "y": [b, None]}, 3, "text", c))
    assert [id(t) for t in found] == [id(a), id(b), id(c)]


class Scripted:
    """Stands in for a Run: each step returns what the script says, then always the first again."""

    optimizer = None
    device = CPU

    def __init__(self, *results: list[float]) -> None:
        self.base = nn.Identity()
        self._results = chain(results, repeat(results[0]))

    def step(self, _: int) -> list[Tensor]:
        return [torch.tensor([x]) for x in next(self._results)]


def _compared(*results: list[float]) -> tuple[int, int]:
    run: Any = Scripted(*results)
    row = compare(run, steps=1)
    return row["different"], row["baseline_differs_from_itself"]


def test_a_comparison_counts_what_differs_where_the_baseline_is_sure() -> None:
    # GIVEN two ungraphed results and one from graphs WHEN compared THEN only what is certain is called different
    nan = float("nan")
    assert _compared([1.0, nan], [1.0, nan], [1.0, nan]) == (0, 0)
    assert _compared([1.0, 2.0], [1.0, 2.0], [1.0, 2.5]) == (1, 0)
    assert _compared([1.0, 2.0], [1.0, 2.1], [1.0, 7.0]) == (0, 1)
    assert _compared([0.0, 2.0], [0.0, 2.0], [-0.0, 2.0]) == (1, 0)
    assert _compared([1.0, 2.0], [1.0, 2.0], [1.0]) == (1, 0)
    # AND a baseline that only happened to agree with itself is asked again
    assert _compared([1.0, 2.0], [1.0, 2.0], [1.5, 2.5], [1.0, 2.0], [1.0, 2.1]) == (1, 1)


def _judged(case: Case, **row: Any) -> str:
    full = {"different": 0, "reasons": [], "launches": 3, "kernels": 2, "kernels_in_graphs": 2, "strict": True} | row
    return str(_verdict(case, full)["status"])


def test_a_verdict_never_takes_a_wrong_number_or_a_missed_reason_for_good() -> None:
    # GIVEN a plain workload and one that must be refused
    plain = Case("x", lambda _: nn.Identity(), normal((1,)), lambda *_: [])
    refused = Case("x", lambda _: nn.Identity(), normal((1,)), lambda *_: [], expect=("opaque-node",))
    graphed = Case("x", lambda _: nn.Identity(), normal((1,)), lambda *_: [], graphed=True)
    # WHEN judged THEN what was launched, refused, missed and wrong are told apart
    assert _judged(plain) == "equal"
    assert _judged(plain, launches=0) == "ungraphed"
    assert _judged(plain, different=1) == "wrong"
    assert _judged(refused, reasons=["opaque-node: a host node"]) == "refused"
    assert _judged(refused, reasons=["opaque-node: a host node"], different=1) == "wrong"
    assert _judged(refused, reasons=["unexplained-word: a word"]) == "missed"
    either = replace(refused, expect=("opaque-node|unexplained-word", "cpu-op"))
    assert _judged(either, reasons=["unexplained-word: a word", "cpu-op: x"]) == "refused"
    assert _judged(either, reasons=["unexplained-word: a word"]) == "missed"
    assert _judged(graphed, kernels_in_graphs=1) == "missed"
    assert _judged(plain, strict=False) == _judged(refused, reasons=["opaque-node: x"], strict=False) == "missed"


def test_every_opaque_operation_is_a_workload() -> None:
    # GIVEN the operations that hide something WHEN looked up THEN each is in the family with its code
    from tests.corpus.opaque import OPERATIONS

    assert set(EXPECTED) == set(OPERATIONS)
    codes = {case.name: case.expect for case in corpus("refusal")}
    assert all(codes[name.replace("_", " ")] == ((code,) if code else ()) for name, (code, _) in EXPECTED.items())


def test_the_table_begins_with_what_is_bad_and_counts_kernels() -> None:
    # GIVEN rows of several statuses
    rows = [
        {
            "workload": "good",
            "status": "equal",
            "compared": 8,
            "different": 0,
            "kernels": 9,
            "kernels_in_graphs": 8,
            "reasons": ["cpu-op: runs on cpu (a|b)"],
            "peak_bytes": 3 << 20,
            "process_s": 4.2,
        },
        {"workload": "bad", "status": "wrong", "compared": 8, "different": 2, "baseline_differs_from_itself": 1},
        {"workload": "gone", "status": "failed", "error": "killed by SIGSEGV"},
    ]
    # WHEN drawn
    text = markdown({"source": SOURCE, "rows": rows})
    # THEN the worst comes first, with numbers and reasons
    assert text.index("| bad | wrong | 8, 2 differ, 1 unstable without graphs |") < text.index("| gone | failed |")
    assert "| good | equal | 8 | 8 / 9 | 3 | 4.2 | cpu-op: runs on cpu (a\\|b) |" in text
    assert "| failed | 1 | an error, a crash, or no end in time |" in text


def test_times_are_summed_up_over_what_could_run() -> None:
    # GIVEN three workloads, one of which trees cannot run and one that nobody can
    rows: list[dict[str, Any]] = [
        {"workload": "a", "us": {"no graphs": 400.0, "graph trees": 100.0, "paramgraph": 50.0}, "errors": {}},
        {"workload": "b", "us": {"no graphs": 100.0, "graph trees": 100.0, "paramgraph": 200.0}, "errors": {}},
        {"workload": "c", "us": {"no graphs": 90.0, "paramgraph": 100.0}, "errors": {"graph trees": "no | way"}},
        {"workload": "d", "error": "needs timm, which is not installed"},
    ]
    # WHEN summed up THEN the mean is over those with both, the worst over all that have another
    found = summary(rows)
    assert found["geometric_mean_over_trees"] == 1.0
    assert found["compared_with_trees"] == 2
    assert found["worst_over_better"] == {"ratio": 2.0, "workload": "b"}
    assert ratio(rows[3], "no graphs") is None
    text = markdown({"source": SOURCE, "rows": [], "times": rows})
    assert "| c | 90 | no \\| way | 100 | - | 1.11 |" in text
    assert text.index("| b | 100 |") < text.index("| c | 90 |") < text.index("| a | 400 | 100 | 50 | 0.50 | 0.50 |")


def test_what_selection_found_is_counted_and_shown() -> None:
    # GIVEN a workload of three graphs that were timed, of which one was slower than its code without
    graphs = [
        {"partition": "forward 0 partition 0", "graph_us": 10.0, "ungraphed_us": 20.0, "kept": True},
        {"partition": "backward 0 partition 0", "graph_us": 30.0, "ungraphed_us": 40.0, "kept": True},
        {"partition": "forward 1 partition 0", "why": "one call took longer", "kept": False},
    ]
    rows: list[dict[str, Any]] = [{"workload": "a", "us": {"paramgraph": 50.0, SELECTED: 45.0}, "selection": graphs}]
    # WHEN summed up and drawn
    found = summary(rows)
    text = markdown({"source": SOURCE, "rows": [], "times": rows})
    # THEN what lost is out, and nothing that was kept had lost
    assert (found["graphs_measured"], found["graphs_not_kept"], found["kept_and_slower"]) == (3, 1, 0)
    assert "1 of 3 graphs were slower than the same code without, and were not kept" in text
    assert "| a | - | - | 50 | - | - | 45 | 2 of 3 |" in text


@pytest.mark.parametrize("graph_us", [10.0, 30.0])
def test_selection_is_read_from_launchers(graph_us: float) -> None:
    # GIVEN a launcher whose graph took less than its code without, or more
    measured = Measured(graph_us, 20.0, 3)
    kept = graph_us < 20
    variants = {0: SimpleNamespace(probation=SimpleNamespace(measured=measured))} if kept else {0: None}
    reasons = [] if kept else [Reason("slower-as-graph", f"one call took {measured.label}")]
    launcher = SimpleNamespace(name="forward 0 partition 0", variants=variants, reasons=reasons)
    # WHEN read THEN there is one row, and it says which
    (row,) = selection([launcher])
    assert row["kept"] == kept
    assert row.get("graph_us", graph_us) == graph_us
    assert kept or "30 us from a graph, 20 us without" in row["why"]
