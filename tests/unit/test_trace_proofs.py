"""Comparisons that a trace keeps: bit by bit, of whatever holds numbers, and loud where nothing can be compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.explore import Explorer
from paramgraph_kit.explore.page import page
from paramgraph_kit.explore.steps import NOTHING, comparison
from paramgraph_kit.explore.text import proof_lines
from paramgraph_kit.trace import ParamgraphError, Proof, Trace, dumps, loads
from tests.unit import explore_sample as sample

NAN, INF = float("nan"), float("inf")


def compared(got: Any, expected: Any) -> tuple[int, int, int, float | None]:
    proof = Trace(sample.SOURCE).compare("a", got, expected)
    return proof.tensors, proof.values, proof.differing, proof.largest


@pytest.mark.parametrize("make", [torch.tensor, np.array], ids=["torch", "numpy"])
@pytest.mark.parametrize(
    ("got", "expected", "says"),
    [
        ([1.0, 2.0], [1.0, 2.0], (1, 2, 0, 0.0)),
        ([1.0, 2.0], [1.0, 2.5], (1, 2, 1, 0.5)),
        ([NAN, 1.0], [NAN, 1.0], (1, 2, 0, 0.0)),
        ([NAN, 1.0], [0.0, 4.0], (1, 2, 2, None)),
        ([INF, 1.0], [INF, 1.0], (1, 2, 0, 0.0)),
        ([INF, 1.0], [-INF, 1.0], (1, 2, 1, None)),
        ([0.0], [-0.0], (1, 1, 1, 0.0)),
        ([1, -5], [1, 5], (1, 2, 1, 10.0)),
        ([True, False], [True, True], (1, 2, 1, 1.0)),
        ([1 + 1j], [1 - 2j], (1, 1, 1, 3.0)),
        ([[1.0], [2.0]], [[1.0], [2.0]], (1, 2, 0, 0.0)),
        ([], [], (1, 0, 0, 0.0)),
    ],
)
def test_tensors_and_arrays_are_compared_bit_by_bit(make: Any, got: Any, expected: Any, says: Any) -> None:
    # GIVEN two of a kind WHEN compared THEN each value whose bits differ counts, and the largest difference is known
    assert compared(make(got), make(expected)) == says


def test_what_is_nested_is_compared_throughout() -> None:
    # GIVEN what models return WHEN compared THEN all of it counts
    def result(x: float) -> Any:
        return {"loss": torch.tensor(x), "rest": [torch.ones(2, dtype=torch.bfloat16), (3, 0.5)]}

    assert compared(result(1.0), result(1.0)) == (4, 5, 0, 0.0)
    assert compared(result(1.0), result(3.0)) == (4, 5, 1, 2.0)


def test_tensors_of_the_device_are_read_back_views_and_gradients_too() -> None:
    # GIVEN a tensor of the device that needs a gradient, and a transposed one
    x = torch.arange(6.0).reshape(2, 3).to(pgk.device())
    # WHEN compared THEN layout does not matter, and nothing complains
    assert compared(x.clone().requires_grad_(), x) == (1, 6, 0, 0.0)
    assert compared(x.t(), x.t().contiguous()) == (1, 6, 0, 0.0)
    assert compared(x.t(), x.t() + 1) == (1, 6, 6, 1.0)


@pytest.mark.parametrize(
    ("got", "expected", "says"),
    [
        (torch.ones(2), torch.ones(3), "compare: a is (2,) of torch.float32, but (3,) of torch.float32 is expected"),
        (torch.ones(2), torch.ones(2).double(), "(2,) of torch.float64 is expected"),
        (torch.ones(2), [1.0, 1.0], "compare: a is a list where the other has a tensor"),
        ([torch.ones(2)], [torch.ones(2)] * 2, "compare: a has 1 items, but 2 are expected"),
        ({"x": 1}, {"y": 1}, "compare: a has the keys ['x'], but ['y'] are expected"),
        (["one"], ["one"], "compare: a str with a str"),
        (1, 1.0, "compare: a int with a float"),
    ],
)
def test_what_cannot_be_compared_is_said_and_not_kept(got: Any, expected: Any, says: str) -> None:
    # GIVEN two that do not fit WHEN compared THEN one line says so, and the trace has no proof
    trace = Trace(sample.SOURCE)
    with pytest.raises(ParamgraphError) as caught:
        trace.compare("a", got, expected)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert trace.proofs == []


def test_a_comparison_survives_a_file() -> None:
    # GIVEN a trace with a comparison WHEN it goes through a file THEN the result is there
    trace = Trace(sample.SOURCE)
    trace.compare("fixed against eager", torch.ones(3), torch.ones(3))
    trace.compare("frozen against eager", torch.ones(3), torch.zeros(3))
    assert loads(dumps(trace)).proofs == trace.proofs
    assert [proof.equal for proof in trace.proofs] == [True, False]


def story(*proofs: list[Proof]) -> dict[str, Trace]:
    return {f"step {n}": Trace(sample.SOURCE, proofs=list(each)) for n, each in enumerate(proofs)}


def test_steps_show_what_was_compared_and_nothing_where_nothing_was() -> None:
    # GIVEN a broken step without numbers, a frozen one with wrong ones, a fixed one compared twice
    new, again = "a new tensor", "after a copy"
    steps = story([], [Proof(new, 1, 8, 8, 0.5)], [Proof(new, 1, 8, 0), Proof(new, 1, 8, 0), Proof(again, 1, 8, 0)])
    # WHEN compared
    facts = {fact.name: fact for fact in comparison(steps).facts}
    # THEN each thing that was compared has a row, and a change is marked
    row = facts["numbers: a new tensor"]
    assert row.values == (NOTHING, "8 of 8 values differ, by 0.5 at most", "equal, 16 values in 2 comparisons")
    assert row.changed == (False, False, True)
    assert facts["numbers: after a copy"].values == (NOTHING, NOTHING, "equal, 8 values")
    # AND text and page say it too
    assert "numbers: a new tensor" in Explorer(steps).text()
    assert "8 of 8 values differ, by 0.5 at most" in page(steps)


def test_many_comparisons_are_counted_and_the_unequal_ones_named() -> None:
    # GIVEN more comparisons than rows
    proofs = [Proof(f"class {n}", 1, 4, 0) for n in range(9)] + [Proof("the last", 1, 4, 1, None)]
    # WHEN shown THEN they are counted, the one that differs is there, and none is called equal that is not
    (fact,) = comparison(story(proofs)).facts
    assert (fact.name, *fact.values) == (
        "numbers compared",
        "9 of 10 comparisons equal; 1 of 4 values differ, not finite",
    )
    assert proof_lines(proofs) == [
        "9 of 10 comparisons equal, 36 values",
        "the last: 1 of 4 values differ, not finite",
    ]
    assert proof_lines(proofs[:9]) == ["all 9 comparisons equal, 36 values"]


def test_labels_cannot_bring_markup_or_lines() -> None:
    # GIVEN a hostile label WHEN shown THEN it is text in one line
    steps = story([Proof(f"{sample.HOSTILE}\n2", 1, 1, 0)], [])
    assert sample.HOSTILE not in page(steps)
    assert all(line.count("alert") <= 1 for line in Explorer(steps).text().splitlines())
