"""Functions that a fix writes beside a method: they are methods too, and called as its words say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run
from tests.integration.test_rewrite_outside import patched

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

END = "\nargs = (torch.ones(4, 3, device=device),)\n"
DRAWN = """
def mix(x, alpha=1.0):
    lam = np.random.beta(alpha, alpha) if alpha > 0 else 1.0
    return lam * x + (1 - lam) * x.flip(0)
"""
RATE = """
def schedule(opt, n, base):
    for group in opt.param_groups:
        group["lr"] = base / (n + 1)
class Step:
    def __init__(self):
        self.net = nn.Linear(3, 1).to(device)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.n, self.log = 0, []
    def go(self, x):
        schedule(self.opt, self.n, 0.1)
        loss = self.net(mix(x, alpha=0.4)).square().mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.log.append(loss.item())
        self.n += 1
        return loss.detach()
step = Step()
f = step.go
"""
OF_OBJECT = """
class Step:
    def __init__(this):
        this.w, this.n, this.log = torch.ones(3, device=device), 1, []
    def go(this, x):
        y = x * (random.random() * this.n) + this.w
        this.log.append(y.sum().item())
        return y
this = Step()
f = this.go
"""
OF_NOTHING = """
class Step:
    w = torch.ones(3, device=device)
    @staticmethod
    def go(x):
        lam = random.random()
        return x * lam + Step.w
f = Step.go
"""
OF_CLASS = """
class Step:
    w, n = torch.ones(3, device=device), 2
    @classmethod
    def go(cls, x):
        lam = random.random() * cls.n
        return x * lam + cls.w
f = Step.go
"""
BESIDE = {
    "a helper draws, no attribute is read for that": (DRAWN + RATE, {"self": "step"}),
    "an object of another name": (OF_OBJECT, {}),
    "a static method": (OF_NOTHING, {}),
    "a method of the class": (OF_CLASS, {}),
}


@pytest.mark.parametrize("name", BESIDE)
def test_what_runs_around_a_launch_of_a_method_is_called_as_the_words_say(name: str, tmp_path: Path) -> None:
    # GIVEN a method for which the host draws, through a helper, of an object of any name, or without one
    text, owner = BESIDE[name]
    names = run(text + END, tmp_path)
    # WHEN it is rewritten, and the file has the new lines
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    pgk.diagnose.repair()
    assert fix.complete, fix
    whole = patched((tmp_path / "program.py").read_text(), fix.diff)
    new = run(whole[whole.index("pgk.device()") + len("pgk.device()") :], tmp_path)
    space = {**new, **{said: new[own] for said, own in owner.items()}, "x": new["args"][0]}
    # THEN the calls of its usage can be made as they are written
    before, _, after = fix.usage.removeprefix("call ").partition(" before each launch")
    exec(before, space)
    out = new["f"](*new["args"])
    if after:
        call = after.removeprefix(", and call ").partition(" after each launch")[0]
        exec(call, {**space, "y": out, "loss": out, "out": out, "value": out})
