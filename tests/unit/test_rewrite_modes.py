"""What is set behind a launch, for good, and a graph never sees: modes of modules, and flags that a hook sets."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from paramgraph_kit.doctor.restore.host_state import HostState
from paramgraph_kit.rewrite.counting.elsewhere import gives_rates
from paramgraph_kit.rewrite.reads import moved_around
from paramgraph_kit.rewrite.source.edits import Function
from paramgraph_kit.rewrite.source.modes import GRADED, TRAINING, set_for_good
from tests.integration.rewritten import rewritten

STEP = "def step(x):\n    net(x).sum().backward()\n"
FREEZE = "def after(n):\n    for p in net.parameters():\n        p.requires_grad = False\n"


def functions(text: str) -> list[Function]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, Function)]


@pytest.mark.parametrize(
    ("behind", "what"),
    [
        ("def after(n):\n    if n == 9:\n        net.eval()\n", TRAINING),
        ("def after(n):\n    net.train(False)\n", TRAINING),
        ("def after(model):\n    model.eval()\n", TRAINING),
        ("def after(n):\n    net.eval()\n    validate(net)\n    net.train()\n", ""),
        ("def after(n):\n    df.eval('a + b')\n    other.eval()\n", ""),
        (FREEZE, GRADED),
        ("def after(n):\n    net.weight.requires_grad_(False)\n", GRADED),
        ("def after(n):\n    net.requires_grad_(False)\n", GRADED),
        (FREEZE.replace("False", "n < 3"), ""),
        (FREEZE + "    net.requires_grad_(True)\n", ""),
        ("def after(x):\n    y = x.detach().requires_grad_(True)\n", ""),
    ],
)
def test_what_is_set_of_modules_for_good(behind: str, what: str) -> None:
    # GIVEN a step, and what runs behind its launch WHEN asked THEN only what nothing takes back is told
    assert set_for_good(functions(STEP), functions(behind))[0] == what


def test_what_no_gradient_goes_through_may_be_frozen() -> None:
    # GIVEN a step that trains nothing WHEN parameters are frozen behind it THEN its graph is as it was
    assert set_for_good(functions(STEP.replace(".backward()", "")), functions(FREEZE)) == ("", None)


def test_a_step_whose_module_stops_training_behind_it_is_not_whole(tmp_path: Path) -> None:
    # GIVEN a step whose hook takes its network out of training later than any trial comes to WHEN a fix is asked for
    fix = rewritten(
        """
net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).to(device)
losses = []
args = (torch.randn(5, 3, device=device),)
def note(value):
    losses.append(value)
    if len(losses) == 8:
        net.eval()
def f(x):
    out = net(x)
    note(out.abs().mean().item())
    return out * 2
""",
        tmp_path,
    )
    # THEN it is told that its graph would go on in training
    assert not fix.complete, fix
    assert "`training` gets another value outside the launch" in str(fix), fix
    assert fix.pieces or "capture the step again right behind that line" in " ".join(fix.instead), fix


def test_a_flag_that_the_rest_of_a_step_sets_is_not_its_optimizers() -> None:
    # GIVEN a step whose hook sets a flag, and a part of it that steps with an optimizer, a name that the step has, too
    lines = [
        "def step_part(self, x):\n    loss = self.net(x)\n    if self.slow:\n        loss = loss * 0.1\n",
        "    loss.backward()\n    self.opt.step()\n    return loss\n",
        "class Trainer:\n    def end(self, loss):\n        if loss > 3:\n            self.slow = True\n",
        "    def step(self, x):\n        self.end(step_part(self, x).item())\n",
        "def step(x):\n    return trainer.step(x)\n",
    ]
    # WHEN asked what gets another value around that part THEN it is the flag
    assert moved_around(lines, "step", "step_part", [], [], ["step_part"]) == (".slow", set())


def test_a_mode_that_each_call_sets_ahead_of_its_rounds_is_theirs() -> None:
    # GIVEN a loop whose rounds are launched, and a module that its function takes out of training
    text = "def validate_round(x):\n    return net(x).sum()\n"
    text += "def validate():\n{}    for x in loader:\n        validate_round(x)\n"
    always, once = "    net.eval()\n", "    if late():\n        net.eval()\n"
    # WHEN asked what moves around a round THEN that is none which is always set before, and one that only some set
    for before, what in ((always, ""), (once, TRAINING)):
        lines = text.format(before).splitlines(keepends=True)
        assert moved_around(lines, "validate", "validate_round", [], [], ["validate_round"])[0] == what


def test_rates_beside_a_part_are_filled_where_its_optimizer_has_tensors() -> None:
    # GIVEN an optimizer with a number as its rate, and one with a tensor
    net = torch.nn.Linear(2, 2)
    for rate, has in ((0.1, False), (torch.tensor(0.1), True)):
        optimizer = torch.optim.SGD(net.parameters(), lr=rate)
        state = HostState(lambda optimizer=optimizer: optimizer.step(), (), {})
        # WHEN asked whether lines can fill it THEN they can if it has one, or if a line of the rewritten ones makes it
        assert gives_rates(["opt.step()\n"], {}, state) == has
        assert gives_rates([], {"a.py": ["opt = SGD(ps, lr=torch.tensor(0.1))\n"]}, state)
