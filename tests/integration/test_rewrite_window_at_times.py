"""A window of tensors that grows in some steps alone is not told as one that is full after so many calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import paramgraph_kit as pgk
from tests.integration.rewritten import run

WINDOW = """\
from collections import deque
k = (torch.randn(5, 5) * 0.3).to(device)
args = (torch.randn(5).to(device),)
class Smoother:
    def __init__(self):
        self.window, self.x = deque(maxlen=3), torch.zeros(5).to(device)
    def predict(self, z):
        x = torch.tanh(k @ self.x) + 0.3 * z
        r = (z - x).norm().item()
        return x, r
    def step(self, z):
        x, r = self.predict(z)
        if r < 3.0:
            self.window.append(x)
            self.x = x
        return torch.stack(list(self.window)).mean(0) if self.window else x
smoother = Smoother()
def f(z):
    return smoother.step(z)
"""


def test_how_many_calls_fill_a_window_is_not_told_where_some_calls_alone_add_to_it(tmp_path: Path) -> None:
    # GIVEN a window of three to which a step adds where its result is small
    names = run(WINDOW, tmp_path)
    # WHEN it is diagnosed
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN nothing is said to be full after three calls, nor is it written in each launch
    assert not [line for line in fix.instead if "full after" in line or "window[1:]" in line], fix
    # and what is kept behind a launch is kept as the line around it decides
    (kept,) = {line for line in fix.instead if "self.window.append(x.clone())" in line}
    assert "behind each launch, as the `if` of line" in kept, fix


MOVES_ON = """\
net = nn.Linear(12, 6).to(device)
args = (torch.randn(4, device=device),)
class Stream:
    def __init__(self):
        self.last, self.n = torch.zeros(12, device=device), 0
    @torch.no_grad()
    def f(self, hop):
        self.last = torch.cat([self.last[4:], hop])
        y = net(self.last)
        self.n += 1
        if y.sum().item() * self.n > 0.5:
            y = y + len(str(y.mean().item()))
        return y
stream = Stream()
f = stream.f
"""


def test_a_window_that_takes_out_what_it_joins_is_not_told_as_one_that_grows(tmp_path: Path) -> None:
    # GIVEN a stream's last samples, and another line that no rewrite is sure of
    names = run(MOVES_ON, tmp_path)
    # WHEN it is diagnosed THEN the window is one, and no room is to be made for all that will ever come
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    told = str(fix)
    assert "grows at each step" not in told, fix
    assert "copy_(torch.cat([self.last[4:], hop]))" in told or "`new = torch.cat([self.last[4:], hop])`" in told, fix


FILLS_UP = """\
class Stream:
    def __init__(self): self.last = torch.zeros(0, device=device)
    def f(self, hop):
        self.last = torch.cat([self.last[-6:], hop])
        return self.last.sum()
f, args = Stream().f, (torch.ones(4, device=device),)
"""


def test_a_window_that_fills_up_by_what_it_joins_has_a_last_size(tmp_path: Path) -> None:
    # GIVEN samples of which the last ones stay, from none on
    names = run(FILLS_UP, tmp_path)
    # WHEN it is diagnosed THEN it is called without a graph until it is full, and written in place from then on
    told = str(pgk.diagnose(names["f"], *names["args"], fix=True).fix)
    assert "`self.last` is a window, which has its last size after a few steps" in told, told
