"""A number of the host's that goes into a tensor keeps its digits in a program of float64."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.source.digits import is_fraction, with_digits
from tests.integration.rewritten import run
from tests.integration.test_own_lines import parts

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
DAMPED = """
class Fit:
    def __init__(self):
        self.p, self.lam = torch.ones(4, dtype=KIND, device=device), 1 / 3
    def step(self, y):
        cost = (self.p - y).square().sum()
        self.p.sub_((self.p - y) * self.lam)
        self.lam = max(self.lam * 0.7, 1e-9)
        return cost
fit = Fit()
f = fit.step
args = (torch.zeros(4, dtype=KIND, device=device),)
"""


@pytest.mark.parametrize("kind", ["torch.float64", "torch.float32"])
def test_words_keep_a_number_with_the_digits_of_the_program(kind: str, tmp_path: Path) -> None:
    # GIVEN a step that computes with a number of the host's, which it lowers, in a program of float64, or of float32
    names = run(DAMPED.replace("KIND", kind), tmp_path)
    wanted = ", dtype=torch.float64" * (kind == "torch.float64")

    # WHEN it is diagnosed
    said = [parts(each.fix)[1] for each in pgk.diagnose(names["f"], *names["args"])]

    # THEN the tensor that is filled with it is of float64 there
    made = [each for text in said for each in re.findall(r"torch\.zeros\(\(\)[^`]*\)", text)]
    assert made, said
    assert all(each == f"torch.zeros((){wanted}, device=device)" for each in made), said


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("eps if i < 2 else 0.5 * eps", True),
        ("rate", True),
        ("math.exp(i)", True),
        ("i / 2", True),
        ("i", False),
        ("i + 1 if i < 0.5 else 3", False),
        ("math.floor(i)", False),
        ("i // 2", False),
    ],
)
def test_a_number_is_a_fraction_where_its_text_tells(text: str, is_one: bool) -> None:
    # GIVEN a function that computes a number of others
    tree = ast.parse(f"def f(q, eps):\n    rate = eps = 0.1 * 3\n    for i in range(3):\n        q = q - ({text}) * q")
    number = next(n for n in ast.walk(tree) if isinstance(n, ast.expr) and ast.unparse(n) == text)

    # WHEN it is asked whether that is a fraction, of which a tensor of float64 may be made
    # THEN a whole number, which may be an index, is none
    assert is_fraction(number, tree) is is_one


def test_only_numbers_in_words_have_more_digits() -> None:
    # GIVEN words for a number, a place, a rate, and those of a line without quotes
    said = "once `a = torch.full((), float(self.t(1)), device='sim')`, here `a`; a line: torch.zeros((), device=d)"
    place = "`at = torch.zeros((), dtype=torch.long, device=d)`"
    rate = "`lr_in = torch.zeros((), device=d)`"

    # WHEN all tensors are of float64, some are, or there are none
    wide, short = torch.zeros(1, dtype=torch.float64), torch.zeros(1)

    # THEN only the number is made of float64, and only where all are
    assert with_digits(said, [wide]) == said.replace(", device='sim'", ", dtype=torch.float64, device='sim'")
    assert [with_digits(each, [wide]) for each in (place, rate)] == [place, rate]
    assert [with_digits(said, each) for each in ([wide, short], [])] == [said, said]
