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


def kept(behind: str, *, called: bool = False) -> set[str]:
    """What is kept of ``y``, which a part's one line gives."""
    text = STEP.format(behind="".join(f"    {line}\n" for line in behind.splitlines()))
    function = ast.parse(text).body[0]
    assert isinstance(function, ast.FunctionDef)
    return kept_beyond(function, function.body, function.body[:1], ("y",), called=called)


def kept_by_rounds(behind: str) -> set[str]:
    """The same of a loop, whose rounds are given ``x`` and ``y``."""
    lines = "".join(f"        {line}\n" for line in behind.splitlines())
    function = ast.parse(f"def run(xs, y):\n    for x in xs:\n        y = net(x, y)\n{lines}").body[0]
    assert isinstance(function, ast.FunctionDef)
    loop = function.body[0]
    assert isinstance(loop, ast.For)
    return kept_beyond(function, loop.body, loop.body[:1], ("y",), ("x", "y"))


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


@pytest.mark.parametrize("behind", ["return y", "return y, y.sum().item()", "return {'y': y.detach()}"])
def test_what_a_helper_returns_its_caller_may_keep(behind: str) -> None:
    # GIVEN a part of a function that another one calls
    # WHEN its lines are read THEN what is returned is to copy, and of a function that is launched itself it is not
    assert (kept(behind, called=True), kept(behind)) == ({"y"}, set())


@pytest.mark.parametrize("behind", ["return y.sum().item()", "return y * 2", "return y.clone()"])
def test_what_a_helper_returns_of_its_own_is_not_copied(behind: str) -> None:
    # GIVEN a helper that returns a number, or memory of its own WHEN its lines are read THEN nothing is copied
    assert kept(behind, called=True) == set()


@pytest.mark.parametrize(
    "behind", ["if float(y.sum()) < 1:\n    best = y", "last = y", "best = y if bool(y > 0) else best"]
)
def test_a_name_that_lives_on_to_the_next_round_is_one_that_keeps(behind: str) -> None:
    # GIVEN a loop that keeps a round's result by a plain name
    # WHEN it is read THEN it is copied, as the next launch writes there
    assert kept_by_rounds(behind) == {"y"}


@pytest.mark.parametrize("behind", ["x = y", "n = y.shape", "z = y * 2"])
def test_what_the_next_round_is_given_is_not_copied(behind: str) -> None:
    # GIVEN a loop that hands a result on to the next round, which copies it before it writes, or computes from it
    # WHEN it is read THEN nothing is copied
    assert kept_by_rounds(behind) == set()
