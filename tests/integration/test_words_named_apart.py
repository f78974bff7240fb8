"""Words of several lines that are followed together have one name for each tensor that they make."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.agreeing import named_apart
from tests.integration.rewritten import run
from tests.integration.test_own_lines import parts
from tests.programs.running import captured, differences, eager

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
SCALED = """
def f(x):
    mean = torch.tensor([0.5, 0.25, 0.125], device=x.device).view(3, 1)
    std = torch.tensor(SECOND, device=x.device).view(3, 1)
    return (x - mean) / std
args = (torch.randn(3, 4, device=device),)
"""


@pytest.mark.parametrize("second", ["[0.9, 0.8, 0.7]", "[0.5, 0.25, 0.125]"])
def test_literals_of_two_lines_are_constants_of_their_own(second: str, tmp_path: Path) -> None:
    # GIVEN a step that makes two tensors of Python's numbers, which are others, or the same
    text = SCALED.replace("SECOND", second)
    truth, names = eager(run(text, tmp_path), "f"), run(text, tmp_path)

    # WHEN the words of both lines are followed to the letter
    found = pgk.diagnose(names["f"], *names["args"])
    assert [each.code for each in found] == ["tensor-literal"] * 2
    once = set[str]()
    for each in found:
        before, after = parts(each.fix)
        made, *rest = after.splitlines()
        once.add(made.partition("  # once, before `f`")[0].strip())
        text = text.replace(before, "\n".join(line.strip() for line in rest))
    followed = run("\n".join([*sorted(once), text]), tmp_path)

    # THEN each has its own constant, one for both where they are the same, and a graph has eager's numbers
    assert len(once) == 1 + (second == "[0.9, 0.8, 0.7]")
    assert not differences(truth, captured(followed, "f"), set())


def test_a_number_of_another_object_has_a_tensor_of_its_own() -> None:
    # GIVEN words that fill a tensor before each launch, of a number that objects of two classes call the same
    words = [
        f"once `{n}_in = torch.zeros(())`, before each launch `{n}_in.fill_(self.{n})`, here `{n}_in`" for n in "aa"
    ]
    other = words[0].replace("self.a", "self.b.a")

    # WHEN they stand in two classes, or in one, or the number is another
    # THEN the second has a name of its own, but in one class
    assert named_apart(words, [3, 9]) == [words[0], words[1].replace("a_in", "a_in_2")]
    assert named_apart(words, [3, 3]) == words
    assert named_apart([words[0], other], [3, 3]) == [words[0], other.replace("a_in", "a_in_2")]
