"""What a round puts into rows by a mask: once a loop has ended nothing is put there any more."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from paramgraph_kit.rewrite.source.masked import mask_in
from tests.integration.rewritten import lines_of, rewritten

BEAM = """
torch.manual_seed(4)
table = torch.randn(6, 6, device=device)
def decode(score):
    h = table[:3] + score[:, None]
    return h.log_softmax(-1), h
def f(x, eos=2):
    score, ended = x.clone(), torch.zeros(3, dtype=torch.bool, device=device)
    for _ in range(5):
        logits, h = decode(score)
        logits[ended] = -1e9
        logits{index} = 0.0
        best, token = logits.max(-1)
        score = score + best
        ended = ended | (token == eos)
        if ended.all():
            break
    return score
args = (torch.randn(3, device=device),)
"""


@pytest.mark.parametrize(
    ("index", "mask"),
    [
        ("ended", "ended"),
        ("ended, 0", "ended"),
        ("ended, eos", "ended"),
        (":, ended", "ended"),
        ("ended, other", None),  # two masks are rows and columns of pairs
        ("0, 1", None),
    ],
)
def test_the_mask_of_an_index_is_the_only_one(index: str, mask: str | None) -> None:
    # GIVEN an index as it is written WHEN it is asked for its mask THEN it is the part that is one, alone
    node = ast.parse(f"x[{index}]", mode="eval").body
    assert isinstance(node, ast.Subscript)
    found = mask_in(node.slice, lambda part: isinstance(part, ast.Name) and part.id in ("ended", "other"))
    assert (None if found is None else ast.unparse(found)) == mask


@pytest.mark.parametrize("index", ["[ended, eos]", "[ended]"])
def test_a_search_that_puts_its_end_by_a_mask_goes_on_as_a_whole(index: str, tmp_path: Path) -> None:
    # GIVEN a beam search in which beams that have ended may only end again, by a mask beside a column
    # WHEN it is rewritten THEN all rounds run with eager's numbers, and after the end nothing is put there any more
    fix = rewritten(BEAM.format(index=index), tmp_path)
    assert fix.complete, str(fix)
    assert f"logits[{index[1:-1].replace('ended', '(ended) & ~done')}] = 0.0" in lines_of(fix)
