"""Words for numbers of the host's that move: the line as it is then, with what fills its tensors before each launch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.proving.around import Around
from tests.integration.rewritten import run
from tests.integration.test_own_lines import parts
from tests.programs.reading import PRELUDE
from tests.programs.running import captured, differences, eager, load

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

NUMBERS = """\
beta, count = 0.5, 0
def rampup(n, length=12):
    return float(np.exp(-5.0 * (1 - min(n, length) / length) ** 2))
class Scaler:
    def __init__(self):
        self.scale, self.seen = 4.0, 1
    def rate(self):
        return 1 / (1 + self.seen)
    def grow(self):
        self.scale *= 1.25
        self.seen += 1
    def scaled(self, x, by):
        return x.mul(self.scale) / by
def falling():
    t = 1.0
    while True:
        yield t
        t *= 0.9
scaler, times, mean = Scaler(), falling(), torch.zeros(3, device=device)
table = [0.1, 0.2, 0.3, 0.4] * 5
args = (torch.randn(4, 3, device=device),)
def f(x):
    global beta, count
    LINES
    scaler.grow()
    count += 1
    beta *= 1.5
    return y + 0
"""
ONCE = re.compile(r"once (`.+?`(?:, `.+?`)*), before each launch (?:behind that )?(`.+?`(?:, `.+?`)*), here `(.+)`$")
MOVED = re.compile(r"line (\d+), `([^`]+)`,")
SHORT = (("w = 10.0 * rampup(count)\n    y = x * w - (1 - w) * x", "y = x * w_in - number_in * x"),)
SWEPT = (
    ("y = x.div(scaler.scale)", "y = x.div(scale_in)"),
    ("n = scaler.rate()\n    mean.mul_(1 - n).add_(x.mean(0), alpha=n)\n    y = mean",
     "mean.mul_(number_in).add_(x.mean(0) * n_in)"),
    ("n = next(times)\n    y = (x / n).softmax(-1)", "y = (x / n_in).softmax(-1)"),
    ("y = scaler.scaled(x, len(x) + count)", "return x.mul(scale_in) / by_in"),
    ("y = torch.cat([x, torch.full((4, 1), table[count], device=device)], 1)",
     "y = torch.cat([x, torch.empty((4, 1), device=device).fill_(table_in)], 1)"),
    ("y = x.masked_fill(torch.arange(3, device=device) >= scaler.seen, 0.0)",
     "y = x.masked_fill(torch.arange(3, device=device) >= seen_in, 0.0)"),
    ("r = [a / 2 for a in table]\n    y = x.lerp(-x, r[count])", "y = x.lerp(-x, r_in)"),
)  # fmt: skip


BEHIND = ("scaler.grow()", "count += 1", "beta *= 1.5")


@pytest.mark.parametrize(("lines", "here"), [*SHORT, *(pytest.param(*each, marks=pytest.mark.sweep) for each in SWEPT)])
def test_a_line_is_shown_with_tensors_for_its_numbers_and_what_fills_them(
    lines: str, here: str, tmp_path: Path
) -> None:
    # GIVEN a step that computes with numbers which it or what it calls gives other values
    text = PRELUDE + NUMBERS.replace("LINES", lines)
    truth = eager(load(text, tmp_path / "program.py"), "f")
    names = load(text, tmp_path / "program.py")
    # WHEN it is diagnosed THEN the line is shown as it is then
    told = [each for each in pgk.diagnose(names["f"], *names["args"]) if each.code == "scalar-frozen"]
    words = {each.frame.line: parts(each.fix)[1] for each in told if each.frame is not None}
    assert [each.rpartition("here ")[2] for each in words.values()] == [f"`{here}`"]
    # AND these words, followed to the letter, give eager's numbers from one graph
    assert not differences(truth, _followed(text, words, tmp_path), set())


def _followed(text: str, words: dict[int, str], folder: Path) -> dict[str, list[Any]]:
    lines, once, before = text.splitlines(), list[str](), list[str]()
    for number, told in words.items():
        given = ONCE.search(told)
        assert given is not None, told
        for moved, line in MOVED.findall(told[: given.start()]):
            before.append(line)
            if "out of the step" in told:
                lines[int(moved) - 1] = ""
        once += re.findall(r"`(.+?)`", given[1])
        before += re.findall(r"`(.+?)`", given[2])
        lines[number - 1] = lines[number - 1].replace(lines[number - 1].strip(), given[3])
    step = [line for line in lines if line.strip() not in BEHIND]
    step += [*once, "def ahead(x):", "    global n", *(f"    {line}" for line in before)]
    step += ["def behind():", "    global beta, count", *(f"    {line}" for line in BEHIND)]
    names = load("\n".join([*step, ""]), folder / "program.py")
    around = Around(lambda given: names["ahead"](*given[0]), lambda _, out: (names["behind"](), out)[1])
    return captured(names, "f", around)


@pytest.mark.parametrize(
    "line",
    [
        "if count % 2:\n        x = x * random.random()",
        pytest.param("for row in x:\n        x = x + row * random.random()", marks=pytest.mark.sweep),
    ],
)
def test_a_number_that_only_some_calls_draw_has_no_such_words(line: str, tmp_path: Path) -> None:
    # GIVEN a draw within a branch, or in each round of a loop: ahead of the launch others would be drawn
    names = run(NUMBERS.replace("LINES", f"{line}\n    y = x"), tmp_path)
    # WHEN it is diagnosed THEN no words draw it once for each launch
    told = [each.fix for each in pgk.diagnose(names["f"], *names["args"]) if each.code == "host-random"]
    assert told
    assert not any("number_in.fill_" in each for each in told), told


@pytest.mark.sweep
def test_a_number_that_the_step_moves_ahead_of_the_line_is_not_filled_with_what_it_was(tmp_path: Path) -> None:
    # GIVEN an object whose number a method moves ahead of the line
    text = NUMBERS.replace("LINES", "scaler.grow()\n    y = x * scaler.scale")
    names = run(text, tmp_path)
    # WHEN it is diagnosed THEN no words fill a tensor with it at the step's begin
    told = [each.fix for each in pgk.diagnose(names["f"], *names["args"]) if each.code == "scalar-frozen"]
    assert told
    assert not any("reads it from a tensor: once" in each for each in told), told
