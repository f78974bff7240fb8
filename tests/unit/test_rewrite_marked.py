"""Whole numbers that are no places: what a branch or a mask keeps from being looked up stays so."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from paramgraph_kit.rewrite.proving.closeness import RETURNS
from paramgraph_kit.rewrite.proving.marked import MISSING, Cut, looked_up, marks, of_one_kind
from tests.integration.rewritten import rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="no such number is tried on a GPU")


def test_one_element_of_each_tensor_of_whole_numbers_is_marked() -> None:
    # GIVEN labels, a mask and a table, and a program that asks for a number of its own
    labels, mask, table = torch.arange(4), torch.ones(4, dtype=torch.bool), torch.zeros(9, 2)
    tree = ast.parse("keep = y != 255")
    # WHEN numbers that are no places are asked for
    found = marks(((labels, mask), {}), [table], [tree])
    # THEN only the labels have each of them once, and what they were given is as it was
    assert [change(labels).tolist() for change in found.values()] == [
        [0, 1, MISSING, 3],
        [0, 1, 10, 3],
        [0, 1, 255, 3],
    ]
    assert labels.tolist() == [0, 1, 2, 3]


def test_a_small_type_has_no_number_beyond_it() -> None:
    # GIVEN bytes WHEN marked with a number that they cannot hold THEN they stay
    pixels = torch.zeros(3, dtype=torch.uint8)
    assert all(change(pixels) is pixels for change in marks(((pixels,), {}), [torch.zeros(300)], []).values())


@pytest.mark.parametrize(("ends", "off"), [((0, 4), False), ((6, 8), False), ((6, 10), True), ((9, 12), True)])
def test_a_slice_that_is_cut_off_is_noted(ends: tuple[int, int], off: bool) -> None:
    # GIVEN a tensor of eight WHEN a part of it is taken THEN what ends beyond it is noted
    x, (begin, end) = torch.arange(8), ends
    with Cut() as cut:
        x[begin:end]
    assert cut.off is off


@pytest.mark.parametrize(("places", "off"), [(8, False), (4, True), (0, False)])
def test_a_count_with_more_places_than_were_asked_for_is_noted(places: int, off: bool) -> None:
    # GIVEN labels up to 7 WHEN they are counted THEN it is noted that there are more than the program has asked for
    with Cut() as cut:
        torch.bincount(torch.arange(8), minlength=places)
    assert cut.off is off


def test_results_of_other_shapes_are_no_answer() -> None:
    # GIVEN what a step returns THEN only results of its own shapes say how rewritten lines should go on
    one, other = {RETURNS: [torch.zeros(3)]}, {RETURNS: [torch.zeros(4)]}
    assert of_one_kind(one, one)
    assert of_one_kind(one, None)
    assert not of_one_kind(other, one)


def test_only_what_lies_beyond_a_tensor_is_told() -> None:
    assert "as masks" in looked_up("as masks", IndexError("index out of range in self"))
    assert looked_up("as masks", ValueError("no such loss")) == ""


@pytest.mark.parametrize(
    "text",
    [
        """
table = torch.randn(6, 3, device=device)
args = (torch.randint(0, 6, (5,), device=device),)
def f(ids):
    ok = ids != -100
    rows = table[ids[ok]]
    return rows.mean(0)
""",
        """
emb = nn.Embedding(6, 4).to(device)
args = (torch.tensor(2, device=device),)
@torch.no_grad()
def f(t):
    if t.item() >= 6:
        return torch.zeros(4, device=device)
    return emb(t)
""",
        """
args = (torch.rand(3, 6, 6, device=device), torch.randint(0, 4, (3, 2), device=device))
def f(img, at):
    out = []
    for b in range(3):
        r, c = at[b].tolist()
        if r > 3 or c > 3:
            out.append(torch.zeros(3, 3, device=device))
            continue
        out.append(img[b, r : r + 3, c : c + 3])
    return torch.stack(out)
""",
    ],
)
def test_what_a_mask_or_a_branch_keeps_out_is_not_looked_up(text: str, tmp_path: Path) -> None:
    # GIVEN a lookup of what is there alone WHEN a fix is asked for THEN none is whole that looks up all of it
    fix = rewritten(text, tmp_path)
    assert not fix.complete, fix
    assert "what lies beyond a tensor" in str(fix) or fix.left, fix
