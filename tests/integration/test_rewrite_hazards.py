"""What a trial of some steps alike does not show: a rewrite that would be wrong elsewhere is none, or says where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import lines_of, run
from tests.programs.running import eager

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")


def fix_of(text: str, folder: Path) -> Any:
    """What is made of a program's ``f``."""
    names = run(text, folder)
    return pgk.diagnose(names["f"], *names["args"], fix=True).fix


def test_a_number_that_is_only_printed_is_compared(tmp_path: Path) -> None:
    # GIVEN a step that prints a count that goes on after the line that prints it
    text = """\
n = 0
args = (torch.rand(4, device=device) + 1,)
def f(x):
    global n
    n += 1
    y = x * 2
    s = y.max().item()
    print("step", n, "largest", s)
    y = y / s
    n += 1
    return y
"""
    # WHEN it is rewritten
    fix = fix_of(text, tmp_path)
    # THEN no line is right that would print another count
    assert not any("print(" in line for line in lines_of(fix)) or not fix.complete, fix
    assert eager(run(text, tmp_path), "f")["n"] == [20]


ARGS = "args = (torch.rand(4, device=device) + 1,)\n"
# the step, inputs that its trial does not have, and a line of what is made of it
ELSEWHERE = {
    "the larger of a number and nan": (
        "def f(x):\n    s = max(1e-3, x.sum().item())\n    return x / s\n" + ARGS,
        "(torch.tensor([float('nan'), 1, 2, 3], device=device),)",
        's = x.sum().detach().clamp(min=1e-3).nan_to_num(1e-3, posinf=float("inf"))',
    ),
    "the larger of two of which the second is nan": (
        "def f(x):\n    a, b = x[:2].sum().item(), x[2:].sum().item()\n    return x / max(a, b)\n" + ARGS,
        "(torch.tensor([1, 2, 3, float('nan')], device=device),)",
        "return x / torch.where(b > a, b, a)",
    ),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_step_gives_the_same_with_inputs_that_its_trial_does_not_have(name: str, tmp_path: Path) -> None:
    # GIVEN a step, rewritten
    text, given, line = ELSEWHERE[name]
    names = run(text, tmp_path)
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert fix is not None
    assert line in lines_of(fix)
    # WHEN its lines run with such inputs
    inputs = eval(given, names)
    truth = names["f"](*inputs)
    with fix.applied():
        found = names["f"](*inputs)
    # THEN they give eager's numbers
    torch.testing.assert_close(found, truth, equal_nan=True)


def test_a_number_that_becomes_a_fraction_is_not_cut(tmp_path: Path) -> None:
    # GIVEN a step that is tried with a whole number
    text = (
        "def f(x, k):\n    s = torch.tensor(k).to(device)\n    return x * s\nargs = (torch.ones(4, device=device), 1)\n"
    )
    fix = fix_of(text, tmp_path)
    assert fix.complete, fix
    # WHEN it is a half later THEN the lines before the launch refuse it
    with fix.applied():
        fix.around.prepare(((torch.ones(4), 3), {}))
        with pytest.raises(AssertionError, match="a fraction would be cut"):
            fix.around.prepare(((torch.ones(4), 0.5), {}))


# branches of which the trial takes one way, and what the other one gives
UNLIKE = {
    "another type": "    if x.sum() > -100:\n        y = x * 2\n    else:\n        y = x.long()\n    return y\n",
    "another shape": "    if x.sum() > -100:\n        return x * 2\n    return x.sum()\n",
    "another shape of a name": "    y = x * 2\n    if x.sum() < -100:\n        y = y[:1]\n    return y\n",
}


@pytest.mark.parametrize("name", UNLIKE)
def test_ways_of_a_branch_that_are_of_other_kinds_are_not_chosen_between(name: str, tmp_path: Path) -> None:
    # GIVEN a branch whose other way has another shape or type WHEN it is rewritten
    fix = fix_of(f"def f(x):\n{UNLIKE[name]}{ARGS}", tmp_path)
    # THEN no line stands for both ways
    assert not fix.complete
    assert "torch.where" not in fix.diff
    assert fix.pieces or "its ways give tensors of other kinds" in str(fix)


# what a step reads, what sets it otherwise than by its name, and the line that reads it before each launch
SET = {
    "in the names of the file": (
        "w = 2.0\ndef change():\n    globals()['w'] = 5.0\n",
        "x * torch.tensor([w, 1.0, 2.0, 3.0]).to(device)",
        "given_in.copy_(torch.tensor([w, 1.0, 2.0, 3.0]).to(device))",
    ),
    "a list by another name": (
        "table = [1.0, 2.0, 3.0, 4.0]\nsame = table\ndef change():\n    same[0] = 9.0\n",
        "x * torch.tensor(table).to(device)",
        "given_in.copy_(torch.tensor(table).to(device))",
    ),
    "an entry of a dictionary that a function is given": (
        "CFG = {'k': 2.0}\ndef change(cfg=None):\n    cfg = cfg or CFG\n    cfg['k'] = 7.0\n",
        "x * torch.tensor([CFG['k'], 1.0, 2.0, 3.0]).to(device)",
        "given_in.copy_(torch.tensor([CFG['k'], 1.0, 2.0, 3.0]).to(device))",
    ),
    "a module's number in another file": (
        """\
import knobs
from driving import change
# file: knobs.py
k = 2.0
# file: driving.py
import knobs as own
def change():
    own.k = 5.0
# file: the program
""",
        "x * torch.tensor([knobs.k, 1.0, 2.0, 3.0]).to(device)",
        "given_in.copy_(torch.tensor([knobs.k, 1.0, 2.0, 3.0]).to(device))",
    ),
}


@pytest.mark.parametrize("name", SET)
def test_what_is_set_by_another_name_or_file_is_read_before_each_launch(name: str, tmp_path: Path) -> None:
    # GIVEN a step that reads what other lines set WHEN it is rewritten
    held, value, line = SET[name]
    names = run(f"{held}def f(x):\n    return {value}\n{ARGS}", tmp_path)
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN each launch reads what is there by then
    assert fix is not None
    assert fix.complete, fix
    assert line in lines_of(fix)
    with fix.applied():
        fix.around.prepare((names["args"], {}))
        names["change"]()
        fix.around.prepare((names["args"], {}))
        found = names["f"](*names["args"])
    torch.testing.assert_close(found, names["f"](*names["args"]))


# a file that sets what is asked for by name, and whether it knows the program
OTHERS = {
    "of something else": (
        "import torch\ndef change(net, key, scale):  # a program\n    setattr(net, key, scale)\n",
        False,
    ),
    "of the program": ("def change(key, scale):\n    import program as own\n    setattr(own, key, scale)\n", True),
    "of the program by its text": (
        "import sys\ndef change(key, scale):\n    setattr(sys.modules['program'], key, scale)\n",
        True,
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_file_that_does_not_know_the_program_sets_nothing_in_it(name: str, tmp_path: Path) -> None:
    # GIVEN a step that makes a tensor of a constant, and another file that sets attributes WHEN it is rewritten
    other, knows = OTHERS[name]
    head = f"import driving\n# file: driving.py\n{other}# file: the program\nscale = 2.0\n"
    fix = fix_of(
        f"{head}def f(x):\n    w = torch.tensor([scale, 1.0], device=device)\n    return x[:2] * w\n{ARGS}", tmp_path
    )
    # THEN it is made once, unless that file may set the constant
    assert fix.complete, fix
    assert ("w = torch.tensor([scale, 1.0], device=device)" in lines_of(fix)) is not knows, fix


TOLD = {
    "an attribute": (
        """\
class Sim:
    def __init__(self):
        self.time = 0.0
    def step(self, v):
        dt = 0.1 / v.abs().max().item()
        self.time += dt
        return v * (1 - dt)
sim = Sim()
def f(v):
    return sim.step(v)
""",
        "writes the same tensor; it is rounded to float32 in each step",
    ),
    "what a function in a table returns": (
        """\
def scale(x):
    return x.abs().max().item()
FUNCTIONS = {"scale": scale}
def f(x):
    return x / scale(x)
""",
        "`scale` returns a tensor from now on where it was a number",
    ),
    "what another function gives a number": (
        """def gain(power, least):
    return math.sqrt(max(power, least))
def table():
    return [gain(n, 1.0) for n in range(4)]
def f(x):
    return x / gain(x.square().mean().item(), 0.5)
""",
        "`gain` is given a tensor as `power` from now on where it was a number",
    ),
}


@pytest.mark.parametrize("name", TOLD)
def test_a_number_that_becomes_a_tensor_is_told(name: str, tmp_path: Path) -> None:
    # GIVEN a step after which other code meets a tensor in the place of a number WHEN it is rewritten
    text, words = TOLD[name]
    fix = fix_of(text + ARGS, tmp_path)
    # THEN the fix says so
    assert fix.complete, fix
    assert any(words in line for line in fix.verified), fix


COOLING = """
class Cool:
    def __init__(self):
        self.heat = 2.0
    def drop(self):
        self.heat *= 0.9
    def factor(self):
        return 1 / self.heat
class Walker:
    def __init__(self, cool):
        self.cool = cool
    def f(self, x):
        return x / x.abs().max().item() / self.cool.heat
cool = Cool()
walker = Walker(cool)
f = walker.f
"""
FROZEN = {
    "a number that a loop declares global": (
        (
            "K = 4.0\ndef f(x):\n    s = x.abs().max().item()\n    return x + torch.linspace(0, s * K, 4).to(device)\n"
            "def train():\n    global K\n    for i in range(3):\n        K = float(i)\n        f(args[0])\n"
        ),
        "before each launch `K_in.fill_(K)`, and `K_in` for `K` in the step",
    ),
    "an attribute that another method sets": (
        (
            "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.tau = 1.0\n"
            "    def anneal(self, i):\n        self.tau = 1 - 0.1 * i\n"
            "    def forward(self, x):\n        return x / x.abs().max().item() / self.tau\n"
            "net = Net()\ndef f(x):\n    return net(x)\n"
        ),
        "`self.tau` is set outside of the step",
    ),
    "an attribute of what the step's object has": (
        COOLING + "def train():\n    for i in range(3):\n        walker.f(args[0])\n        cool.drop()\n",
        "once before the capture, `self.cool.heat = torch.full((), float(self.cool.heat), device='sim')`; line 15",
    ),
    "an attribute that a method of another class reads": (
        COOLING.replace("/ self.cool.heat", "* self.cool.factor()"),
        "before each launch `heat_in.fill_(cool.heat)`, and `heat_in` for `self.heat` in the step",
    ),
}


@pytest.mark.parametrize("name", FROZEN)
def test_a_number_that_lines_around_a_step_set_is_told(name: str, tmp_path: Path) -> None:
    # GIVEN a step whose trial does not show that a number moves WHEN it is rewritten
    text, words = FROZEN[name]
    fix = fix_of(text + ARGS, tmp_path)
    # THEN the fix says that a graph keeps it
    assert any(words in line for line in (*fix.verified, *fix.instead)), fix


def test_a_number_that_several_objects_have_is_not_given_in_one_tensor(tmp_path: Path) -> None:
    # GIVEN a step that asks two objects of a class for a number that other lines set WHEN it is rewritten
    text = COOLING.replace("/ self.cool.heat", "* self.cool.factor() * self.other.factor()")
    text = text.replace("        self.cool = cool\n", "        self.cool, self.other = cool, Cool()\n")
    fix = fix_of(text + ARGS, tmp_path)
    # THEN the fix says that a graph keeps it, and of no tensor that would be both
    told = [line for line in fix.verified if "`self.heat` is set outside of the step" in line]
    assert told, fix
    assert "heat_in" not in told[0], fix


def test_lengths_that_may_be_negative_are_told(tmp_path: Path) -> None:
    # GIVEN means of the first places of rows, of which eager counts a negative number from the end
    text = """
args = (torch.randn(3, 6, device=device), torch.tensor([3, 2, 5], device=device))
def f(x, lengths):
    return torch.stack([x[i, :n].mean() for i, n in enumerate(lengths.tolist())])
"""
    # WHEN it is rewritten THEN what its masks take for granted is told
    fix = fix_of(text, tmp_path)
    assert fix.complete, fix
    assert "is negative, as a length is not" in str(fix)
    # AND not of a place that counts from the end on the device, too
    other = "args = (torch.randn(6, device=device), torch.tensor(2, device=device))\n"
    other += "def f(x, at):\n    return x[at.item()] * 2\n"
    assert "is negative" not in str(fix_of(other, tmp_path))
