"""What the lines around a step leave otherwise by ``apply``, or as a setting of torch's that holds for every line."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.integration.test_diagnose_set_by_loops import HEAD
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
TRAINER = """
class Trainer:
    def __init__(self):
        self.net = net()
        self.wide = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)) for _ in range(4))).to(device)
        self.opt = adam(self.net)
    def step(self, x, y):
        out = self.net(self.wide(x))
        noise = torch.zeros(4, 3, device=device)
        loss = F.cross_entropy(out + noise, y)
        if torch.is_grad_enabled():
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        return loss.detach()
    METHOD
    def fit(self, n=4):
        for k, (x, y) in enumerate(rows()):
            INSIDE
def freeze(m):
    if isinstance(m, nn.BatchNorm1d):
        m.eval()
def eval_all(m): m.eval()
f = Trainer().step
"""
BOTH = (
    "def run(self, train):\n        torch.set_grad_enabled(train)\n        for x, y in rows(): self.step(x, y)\n"
    "    def main(self):\n        for k in range(3):\n            self.run(True)\n            self.run(False)"
)
WRONG = [
    (
        "self.step(x, y); self.check(x, y)",
        "@torch.no_grad()\n    def check(self, x, y):\n        return self.step(x, y)",
        "torch.is_grad_enabled()",
        "branch-frozen",
    ),
    (
        "self.step(x, y)\n            for m in self.wide.modules():\n                m.eval()",
        "",
        "self.wide[3][1].training",
        "branch-frozen",
    ),
    ("self.step(x, y); self.net.apply(lambda m: m.eval())", "", "self.net[1].training", "branch-frozen"),
    ("if k > 1: self.net.apply(freeze)\n            self.step(x, y)", "", "self.net[1].training", "branch-frozen"),
    (
        "self.step(x, y)\n            for part in self.net: part.apply(eval_all)",
        "",
        "self.net[1].training",
        "branch-frozen",
    ),
    (
        "self.step(x, y); self.net.apply(self.quiet)",
        "def quiet(self, m): m.train(False)",
        "self.net[1].training",
        "branch-frozen",
    ),
    ("self.step(x, y); list(map(lambda m: m.eval(), self.net.modules()))", "", "self.net[1].training", "branch-frozen"),
    ("self.step(x, y); torch.set_grad_enabled(False)", "", "torch.is_grad_enabled()", "branch-frozen"),
    ("pass", BOTH, "torch.is_grad_enabled()", "branch-frozen"),
    (
        "with torch.set_grad_enabled(k % 2 == 0):\n                self.step(x, y)",
        "",
        "torch.is_grad_enabled()",
        "branch-frozen",
    ),
    (
        "self.step(x, y)\n            with torch.no_grad(): self.step(x, y)",
        "",
        "torch.is_grad_enabled()",
        "branch-frozen",
    ),
    ("self.step(x, y); torch.set_default_dtype(torch.float64)", "", "torch.get_default_dtype()", "branch-frozen"),
    (
        "self.step(x, y); torch.backends.cuda.matmul.allow_tf32 = k > 1",
        "",
        "torch.backends.cuda.matmul.allow_tf32",
        "branch-frozen",
    ),
    (
        "self.step(x, y); torch.set_float32_matmul_precision('high')",
        "",
        "torch.get_float32_matmul_precision()",
        "branch-frozen",
    ),
    (
        "torch.use_deterministic_algorithms(k > 1); self.step(x, y)",
        "",
        "torch.are_deterministic_algorithms_enabled()",
        "branch-frozen",
    ),
]
RIGHT = [
    (
        (
            "self.wide.train()\n            for m in self.wide.modules():\n"
            "                if isinstance(m, nn.BatchNorm1d): m.eval()\n            self.step(x, y)"
        ),
        "",
    ),
    (
        (
            "self.wide.train()\n            for name, m in self.wide.named_modules():\n"
            "                if isinstance(m, nn.BatchNorm1d): m.eval()\n            self.step(x, y)"
        ),
        "",
    ),
    ("self.step(x, y); self.check(x)", "@torch.no_grad()\n    def check(self, x):\n        return self.net(x)"),
    ("self.net.train(); self.net.apply(freeze); self.step(x, y)", ""),
    ("self.step(x, y); self.net.apply(lambda m: m.eval()); self.net(x); self.net.train()", ""),
    ("self.step(x, y); self.net.apply(lambda m: m.train())", ""),
    ("self.step(x, y); net().apply(lambda m: m.eval())", ""),
    ("with torch.no_grad(): self.net(x)\n            self.step(x, y)", ""),
    ("self.step(x, y); torch.set_grad_enabled(False); self.net(x); torch.set_grad_enabled(True)", ""),
    ("torch.set_grad_enabled(True); self.step(x, y)", ""),
    ("with torch.set_grad_enabled(n > 2):\n                self.step(x, y)", ""),
    ("torch.backends.cudnn.benchmark = True; torch.set_float32_matmul_precision('high'); self.step(x, y)", ""),
    (
        "self.step(x, y)",
        "def setup(self):\n        torch.set_default_dtype(torch.float64); torch.set_grad_enabled(False)",
    ),
]


@pytest.mark.parametrize(("inside", "method", "what", "code"), WRONG)
def test_what_a_line_sets_for_every_module_or_every_line_is_told(
    inside: str, method: str, what: str, code: str, tmp_path: Path
) -> None:
    # GIVEN a step, and a loop that sets something for all modules, or for all of torch, between its calls
    names = load(HEAD + TRAINER.replace("INSIDE", inside).replace("METHOD", method), tmp_path / "program.py")
    # WHEN it is diagnosed
    diagnosis = pgk.diagnose(names["f"], *names["inputs"])
    # THEN that is told, at a line of the step
    told = [f for f in diagnosis if f"{what} is set between calls, at" in f.message]
    assert told, str(diagnosis)
    assert told[0].code == code
    assert told[0].frame is not None
    assert "capture again" in told[0].fix


@pytest.mark.parametrize(("inside", "method"), RIGHT)
def test_what_is_set_for_all_and_the_same_at_each_call_is_not_told(inside: str, method: str, tmp_path: Path) -> None:
    # GIVEN the same with lines that leave it as it was WHEN it is diagnosed THEN there is no problem
    names = load(HEAD + TRAINER.replace("INSIDE", inside).replace("METHOD", method), tmp_path / "program.py")
    diagnosis = pgk.diagnose(names["f"], *names["inputs"])
    assert not diagnosis, str(diagnosis)
