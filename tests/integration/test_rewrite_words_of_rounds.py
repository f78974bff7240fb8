"""Words for what no diff mends: loops over what the host keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.usefixtures("recovered")
SEEN = """
class Engine:
    def __init__(self):
        self.w = torch.randn(8, 8, generator=torch.Generator().manual_seed(0)).to(device)
        self.seen = [{1}, {2}]
    def forward(self, x):
        return x @ self.w
    def sample(self, y):
        for b, seen in enumerate(self.seen):
            for t in seen:
                s = y[b, t]
                y[b, t] = s / 2
        kept = y[y > y.mean()]
        return y.argmax(-1) + kept.sum().long()
    def step(self, x):
        y = self.sample(self.forward(x))
        for b, t in enumerate((y % 8).tolist()):
            self.seen[b].add(t)
        return y
engine = Engine()
f, args = engine.step, (torch.randn(2, 8, generator=torch.Generator().manual_seed(1)).to(device),)
"""


def test_rounds_over_what_the_host_keeps_go_behind_the_launch(tmp_path: Path) -> None:
    # GIVEN a helper that goes through what the step keeps on the host, and a step that adds to that
    names = run(SEEN, tmp_path)
    # WHEN it is diagnosed
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN the loop goes behind the launch, by its line, and none of its lines has another example's words
    assert found.fix is not None
    line = next(
        n for n, each in enumerate((tmp_path / "program.py").read_text().splitlines(), 1) if "enumerate(self" in each
    )
    assert f"end what is captured before the loop of line {line}" in str(found.fix), str(found)
    told = [f.fix for f in found if f.frame is not None and "y[b, t]" in f.frame.text]
    assert told, str(found)
    assert all("x[:n]" not in each for each in told), str(found)


DRAWN = """
import random
def picked(w, u):
    return torch.searchsorted(w.cumsum(0), (torch.arange(8, device=device) + u) / 8).clamp(max=7)
class Filter:
    def __init__(self):
        self.p = torch.linspace(-1, 1, 24).view(8, 3).to(device)
        self.gen = torch.Generator(device=device)
        self.n = 0
    def motion(self, p):
        theta = p[:, 2] + torch.randn(8, generator=self.gen, device=device)
        return p + torch.stack([theta.cos(), theta.sin(), theta], -1) * 0.1
    def step(self, x):
        self.p = self.motion(self.p)
        if self.p.mean() < x.mean():
            self.p = self.p[picked(self.p.softmax(0)[:, 0], random.random())]
            self.n += 1
        return self.p.sum()
engine = Filter()
f, args = engine.step, (torch.ones(2, 8).to(device),)
"""


def test_what_a_helper_draws_behind_the_cut_stays_there(tmp_path: Path) -> None:
    # GIVEN a helper that is given the host's numbers, and is called only where the device has decided it
    names = run(DRAWN, tmp_path)
    # WHEN it is diagnosed, and the captured part is to end ahead of that
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    text = str(found)
    # THEN no words draw ahead of the launch what goes behind it
    assert "u_in" not in text or "end what is captured" not in text, text
