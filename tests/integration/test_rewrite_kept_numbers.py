"""Fixes of steps of an object with a network, which read numbers that move behind the launch, as averages do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paramgraph_kit.rewrite.advised.state.kept_outside import kept_outside
from paramgraph_kit.rewrite.reads import frozen
from tests.integration.rewritten import lines_of, rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

HERE = """\
class Watcher:
    def __init__(self):
        self.net = nn.Linear(4, 4).to(device)
        self.mean, self.var, self.alarms = 0.0, 1.0, []
    @torch.no_grad()
    def push(self, x):
        error = (self.net(x) - x).abs().mean()
        score = (error - self.mean) / self.var**0.5
        value = error.item()
        self.mean = 0.9 * self.mean + 0.1 * value
        self.var = 0.9 * self.var + 0.1 * (value - self.mean) ** 2
        if score > 0.5:
            self.alarms.append(float(score))
        return score
watcher = Watcher()
args = (torch.randn(4, 4, device=device),)
def f(x):
    return watcher.push(x)
"""
SEEN = """\
    def seen(self, x):
        self.last = x.shape
        return x * 2
    @torch.no_grad()
"""


def test_numbers_that_move_behind_the_launch_of_a_network_s_owner_are_given_to_the_graph(tmp_path: Path) -> None:
    # GIVEN two numbers of an object, read after its network was called, which moves nothing else of the object
    # WHEN a fix is asked for THEN both are written before each launch, and ten other steps agree
    fix = rewritten(HERE, tmp_path)
    assert fix.complete, fix
    lines = lines_of(fix)
    assert {"mean_in.fill_(self.mean)", "var_in.fill_(self.var)"} <= {line.strip() for line in lines}, fix
    assert "score = (error - mean_in) / var_in**0.5" in lines, fix


def test_where_they_cannot_be_given_all_of_a_line_are_told_at_that_line(tmp_path: Path) -> None:
    # GIVEN the same below a method that writes to the object, and a graph that needs the score; `mean()` reads nothing,
    # and what a number is rounded to is the host's
    text = HERE.replace("    @torch.no_grad()\n", SEEN).replace(
        "        error =", "        x = self.seen(x)\n        error ="
    )
    text = text.replace("value = error.item()", "value = round(error.item(), 3)")
    # WHEN a fix is asked for
    fix = rewritten(
        text.replace("return score", "return self.net(self.net(self.net(x * score).relu()).tanh())"), tmp_path
    )
    # THEN its words have both numbers, as a graph that is given one of them keeps the other
    assert not fix.complete, fix
    told = next(line for line in fix.instead if "[scalar-frozen]" in line)
    assert "here `mean_in` for `self.mean`; and line" in told, told
    assert "here `var_in` for `self.var`" in told, told
    assert "score = (error - self.mean) / self.var**0.5" in told, told


def test_what_is_made_once_of_a_number_says_so(tmp_path: Path) -> None:
    # GIVEN a table that is picked by a number which another file may set, and one of a constant
    text = """\
tables, current, WIDTH = [torch.tensor([0, 2]), torch.tensor([1, 3])], 0, 4
args = (torch.randn(3, 4, device=device),)
def f(x):
    allowed = tables[current].to(device)
    return x[:, allowed].sum() + torch.ones(WIDTH).to(device).sum()
"""
    # WHEN a fix is asked for THEN it is told of which number it is made
    told = [line for line in rewritten(text, tmp_path).verified if "made once" in line]
    assert told == [
        "`allowed` is made once, of today's `current`: where anything sets that to another number, make it again"
    ]


METER = """\
class Meter:
    def add(self, value, n):
        self.n += n
    @property
    def mean(self):
        return self.total / self.n
def f(x):
    y = net(x)
    return y, y.mean()
def after_f(y, mean):
    meter.add(mean.item(), 4)
""".splitlines(keepends=True)


def test_a_property_named_as_a_tensor_s_method_is_not_what_the_graph_calls() -> None:
    # GIVEN a meter whose property `mean` reads what it counts behind the launch, and a step that calls a tensor's
    # WHEN it is asked what the graph keeps THEN it is nothing of the meter's
    assert frozen(METER, {"after_f"}, {"f"}, ()) == ""
    # AND a method of that name may be what is called
    method = [line for line in METER if "@property" not in line]
    assert frozen(method, {"after_f"}, {"f"}, ()) == ".n"


def test_a_name_of_a_function_s_own_is_not_an_object_s_attribute() -> None:
    # GIVEN a step that cuts by a local `n`, and what counts an attribute `n` behind the launch
    step = "def f(buf, keys):\n    n = keys.shape[0]\n    buf[0:n] = keys\n    return buf / scale.n\n"
    lines = (step + "def after_f():\n    meter.n += 1\n").splitlines(keepends=True)
    # WHEN it is said what to do about that attribute
    told = kept_outside("n", lines, lines, {"after_f"}, {"f"}, "device")
    # THEN the line is that which reads an attribute
    assert "return buf / scale.n" in told
