"""What lines around a launch keep of its results, and which of that a later launch would write over."""

from __future__ import annotations

import ast

import pytest

from paramgraph_kit.rewrite.loops.kept_results import kept_beyond

STEP = """\
def step(self, x):
    y = self.net(x)
{behind}
"""


def kept(behind: str) -> set[str]:
    """What is kept of ``y``, which a part's one line gives."""
    text = STEP.format(behind="".join(f"    {line}\n" for line in behind.splitlines()))
    function = ast.parse(text).body[0]
    assert isinstance(function, ast.FunctionDef)
    return kept_beyond(function, function.body, function.body[:1], ("y",))


@pytest.mark.parametrize(
    "behind",
    [
        "if float(y) < 1:\n    self.best = y",
        "if random.random() < 0.1:\n    self.seen = y",
        "if self.on:\n    z = y.detach()\n    self.best = z",
        "if y.item() > 0:\n    a, self.best = 1, y",
        "if y.item() > 0:\n    return None\nself.x = y",
        "change = (y - self.x).norm().item()\nself.x = y",
        "self.before = self.x\nself.x = y",
        "self.x = y\nself.first = self.x if self.first is None else self.first",
        "global best\nbest = y",
        "seen[self.n] = y",
        "self.kept = {'y': y, 'n': self.n}",
        "self.buffer.append((x, y))",
        "self.replay.push(y[0], 1.0)",
        "if self.n == 3:\n    self.frozen = [each for each in (y, x)]",
    ],
)
def test_a_result_that_is_kept_for_longer_than_to_the_next_launch_is_found(behind: str) -> None:
    # GIVEN lines that keep a result where a later launch does not give it anew, or that ask what was there before
    # WHEN they are read THEN it is one to copy, whether a trial comes to that line or not
    assert kept(behind) == {"y"}


@pytest.mark.parametrize(
    "behind",
    [
        "self.x = y",
        "self.x = y\nself.n += 1",
        "if y.item() > 0:\n    self.best = y.clone()",
        "if y.item() > 0:\n    self.best = y.item()",
        "self.losses.append(y.item())",
        "self.size = y.shape",
        "self.best.copy_(y)",
        "return y * 2",
    ],
)
def test_a_result_that_is_copied_or_given_anew_behind_each_launch_is_none(behind: str) -> None:
    # GIVEN lines that keep a number, or a copy, or by a name that each launch's result replaces
    # WHEN they are read THEN nothing is copied once more
    assert kept(behind) == set()
