"""What trainers do between two steps: layers that are added, weights that are exchanged, several at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
PROGRAM = """import copy
import torch, paramgraph_kit as pgk
from torch import nn
from torch.nn.utils import prune
device = pgk.device()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.head = nn.ModuleList([nn.Linear(6, 6)]), nn.Linear(6, 3)
    def forward(self, x):
        for each in self.rows: x = each(x)
        return self.head(x)
    def grow(self): self.rows.append(nn.Linear(6, 6).to(device))
class Learner:
    def __init__(self):
        self.net, self.heat = Net().to(device), 1.0
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.hook = self.net.head.register_forward_hook(lambda m, i, o: o * 0.5)
        self.slow = {n: p.detach().clone() for n, p in self.net.named_parameters()}
    def update(self, x):
        heat = self.heat
        loss = (self.net(x) / heat).square().mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()
    def swap(self):
        for n, p in self.net.named_parameters():
            p.data, self.slow[n] = self.slow[n], p.data
class Loop:
    def __init__(self, learner, n): self.learner, self.n = learner, n
    def cool(self): self.learner.heat *= 0.9
    def score(self, x): return self.learner.net(x)
    def run(self):
        AHEAD
        for k in range(self.n):
            x = torch.randn(4, 6, device=device)
            self.learner.update(x)
            INSIDE
learner = Learner()
f, inputs = learner.update, (torch.ones(4, 6, device=device),)
if __name__ == "__main__":
    Loop(learner, 4).run()
"""
WRONG = {
    "layers that come": ("if k == 2: self.learner.net.grow()", ["what self.rows runs is set"], "capture again behind"),
    "a hook": (
        "self.learner.net.head.register_forward_hook(print)",
        ["what self.head runs is set"],
        "capture again behind",
    ),
    "a hook of gradients": ("self.learner.net.head.weight.register_hook(abs)", ["self.head.weight"], "do that once"),
    "a layer put in place of one": (
        "self.learner.net.rows[0] = copy.deepcopy(self.learner.net.rows[0])",
        ["what self.rows runs is set"],
        "capture again behind",
    ),
    "a layer that goes": (
        "if k == 2: del self.learner.net.rows[0]",
        ["what self.rows runs is set"],
        "capture again behind",
    ),
    "a weight made otherwise": (
        "if k == 1: nn.utils.parametrizations.weight_norm(self.learner.net.head)",
        ["what self.head runs is set"],
        "capture again behind",
    ),
    "a weight with a mask": (
        "prune.l1_unstructured(self.learner.net.head, 'weight', amount=0.1)",
        ["what self.head runs is set"],
        "capture again behind",
    ),
    "more parameters to learn": (
        "self.learner.opt.add_param_group({'params': [nn.Parameter(torch.ones(2, device=device))]})",
        ["self.opt.param_groups"],
        "one call ahead of that capture",
    ),
    "more groups": (
        "self.learner.opt.param_groups.append({'params': [], 'lr': 0.1})",
        ["self.opt.param_groups"],
        "one call ahead of that capture",
    ),
    "a hook that goes": ("if k == 1: self.learner.hook.remove()", ["a hook of self.head is set"], "do that once"),
    "other types": ("if k == 1: self.learner.net.double()", [".data"], "ahead of the capture and of making the"),
    "a state that begins again": ("self.learner.opt.state.clear()", ["the state of self.opt"], "zero_()"),
    "a number of the loop's object": ("self.cool()", ["self.heat"], "before each launch `heat_in.fill_(self.heat)`"),
    "other weights": ("self.learner.swap()", [".data"], ".data.copy_("),
    "two at one line": (
        "self.learner.net.train(k > 1); self.learner.net.rows[0].weight.requires_grad_(k > 1); self.learner.net.grow()",
        ["requires_grad", "what self.rows runs is set"],
        "one call ahead of that capture",
    ),
}
RIGHT = {
    "weights that are back": "self.learner.swap(); self.score(x); self.learner.swap()",
    "another net that grows": "other = copy.deepcopy(self.learner.net); other.grow(); other.rows.append(other.head)",
    "what is asked of its weights": "nn.utils.clip_grad_norm_(self.learner.net.parameters(), 1.0); "
    "nn.utils.parametrize.is_parametrized(self.learner.net.head)",
    "another net that is made otherwise": "other = copy.deepcopy(self.learner.net); "
    "nn.utils.parametrizations.weight_norm(other.head); "
    "other.rows[0] = other.head; other.head.register_full_backward_hook(abs)",
    "a rate of its own": "self.heat = 0.5 * k; self.rows = [k]",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_a_trainer_leaves_otherwise_is_told(name: str, tmp_path: Path) -> None:
    # GIVEN a step, and an object that is made of it and runs its loop
    inside, what, words = WRONG[name]
    names = load(PROGRAM.replace("AHEAD", "pass").replace("INSIDE", inside), tmp_path / "program.py")
    # WHEN it is diagnosed
    diagnosis = pgk.diagnose(names["f"], *names["inputs"])
    # THEN what the loop leaves otherwise is told, with what to do there
    said = " ".join(f.message for f in diagnosis)
    assert diagnosis.failures, str(diagnosis)
    assert all(each in said for each in what), str(diagnosis)
    assert any(words in f.fix for f in diagnosis), str(diagnosis)


@pytest.mark.parametrize("name", RIGHT)
def test_what_a_trainer_puts_back_is_not_told(name: str, tmp_path: Path) -> None:
    # GIVEN the same with a loop that leaves all as it was WHEN it is diagnosed THEN there is no problem
    names = load(PROGRAM.replace("AHEAD", "pass").replace("INSIDE", RIGHT[name]), tmp_path / "program.py")
    diagnosis = pgk.diagnose(names["f"], *names["inputs"])
    assert not diagnosis, str(diagnosis)


@pytest.mark.parametrize(
    "name", [name for name, (line, *_) in WRONG.items() if "k ==" not in line and "k >" not in line]
)
def test_what_a_trainer_does_once_ahead_of_its_loop_is_not_told(name: str, tmp_path: Path) -> None:
    # GIVEN the same with what is wrong there ahead of the first call alone WHEN diagnosed THEN there is no problem
    names = load(PROGRAM.replace("AHEAD", WRONG[name][0]).replace("INSIDE", "pass"), tmp_path / "program.py")
    diagnosis = pgk.diagnose(names["f"], *names["inputs"])
    assert not diagnosis, str(diagnosis)


# A method of a usual name, of an object that no line of the file makes.
UNMADE = """import torch, paramgraph_kit as pgk
device = pgk.device()
class Learner:
    def __init__(self):
        self.weight, self.heat = torch.ones(6, device=device), 1.0
    def update(self, x):
        return (x * self.weight / self.heat).square().mean()
MORE
class Loop:
    def __init__(self, one, log): self.one, self.log = one, log
    def run(self, n):
        for k in range(n):
            x = torch.randn(4, 6, device=device)
            self.one.update(x)
            LINE
f = Learner().update
"""
AVERAGE = "class Average:\n    def update(self, x): self.heat = 0.9 * self.heat"
UNMADE_RIGHT = [
    ("", "self.one.hue = 0.9; self.one.heat = 0.5"),  # the learner has no hue
    ("", "self.one.heat = 0.5; print(self.one.items())"),
    (AVERAGE, "self.one.heat = 0.9 * k"),
]


def test_an_object_that_no_line_makes_is_known_by_what_lines_ask_it_for(tmp_path: Path) -> None:
    # GIVEN a loop whose object is given to it WHEN the step alone is diagnosed THEN what the loop sets there is told
    text = UNMADE.replace("MORE", "").replace("LINE", "self.one.heat = 0.9 * k")
    diagnosis = pgk.diagnose(load(text, tmp_path / "program.py")["f"], torch.ones(4, 6, device=pgk.device()))
    assert ["self.heat is set between calls" in f.message for f in diagnosis] == [True], str(diagnosis)


@pytest.mark.parametrize(("more", "line"), UNMADE_RIGHT)
def test_an_object_that_may_be_another_is_not_known_by_its_method(more: str, line: str, tmp_path: Path) -> None:
    # GIVEN one that is asked for what the step's has not, or a class with such a method WHEN diagnosed THEN it is apart
    text = UNMADE.replace("MORE", more).replace("LINE", line)
    diagnosis = pgk.diagnose(load(text, tmp_path / "program.py")["f"], torch.ones(4, 6, device=pgk.device()))
    assert not diagnosis, str(diagnosis)


# A function that makes the step's object, and returns it among others.
FACTORY = """import torch, paramgraph_kit as pgk
device = pgk.device()
class Learner:
    def __init__(self): self.weight, self.heat = torch.ones(6, device=device), 1.0
    def run(self, x): return (x * self.weight / self.heat).square().mean()
def make(n):
    learner = Learner()
    return learner, learner.run, [torch.ones(4, 6, device=device)] * n
if __name__ == "__main__":
    one, run, rows = make(4)
    other = Learner()
    for k, x in enumerate(rows):
        run(x)
        LINE
"""


@pytest.mark.parametrize(("line", "is_told"), [("one.heat = 0.9 * k", True), ("other.heat = 0.9 * k", False)])
def test_what_a_function_makes_is_known_by_the_names_that_it_is_given(line: str, is_told: bool, tmp_path: Path) -> None:
    # GIVEN a loop that calls a method by a name that it was returned by WHEN the step alone is diagnosed
    names = load(FACTORY.replace("LINE", line), tmp_path / "program.py")
    diagnosis = pgk.diagnose(names["make"](1)[1], torch.ones(4, 6, device=pgk.device()))
    # THEN what the loop sets of its object is told, and of another one not
    assert ["self.heat is set between calls" in f.message for f in diagnosis] == [True] * is_told, str(diagnosis)
