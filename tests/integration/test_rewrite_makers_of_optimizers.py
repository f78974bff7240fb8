"""Where an optimizer is made, in files in which others have its name."""

from __future__ import annotations

import pytest
import torch

from tests.integration.rewritten import Fixed, lines_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

TRAINER = """
class Trainer:
    def __init__(self, net, lr=1e-3):
        self.net = net
        self.opt = torch.optim.Adam(net.parameters(), lr=lr)

    def step(self, x, y):
        self.opt.zero_grad()
        loss = F.mse_loss(self.net(x), y)
        loss.backward()
        self.opt.step()
        return loss.item()
"""
NET = """
net = nn.Linear(4, 1).to(device)
args = (torch.randn(6, 4, device=device), torch.randn(6, 1, device=device))
"""
STEP = """
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
def f(x, y):
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    opt.step()
    return loss.item()
"""
TUNER = TRAINER.replace("class Trainer", "class Tuner").replace("lr=lr)", "lr=lr, eps=1e-6)")


@pytest.mark.parametrize("apart", [False, True], ids=["one file", "a file of its own"])
def test_a_variable_of_the_module_is_told_from_an_attribute_of_its_name(fixed: Fixed, apart: bool) -> None:
    # GIVEN a step with an optimizer of its module, beside a class that makes one of its own WHEN rewritten
    own = (
        f"# file: own_trainer.py\nimport torch\nfrom torch.nn import functional as F\n{TRAINER}\n# file: the program\n"
    )
    scale = "def half(x):\n    return x * 0.5\n"
    text = f"{own.replace(TRAINER, TRAINER + scale)}from own_trainer import half\n" if apart else f"{TRAINER}{scale}"
    found = fixed(text + NET + STEP.replace("net(x)", "net(half(x))"))
    # THEN the module's has what a capture needs, and the other stays as it is
    assert found.complete, found
    assert "opt = torch.optim.Adam(net.parameters(), lr=1e-2, capturable=True)" in lines_of(found), found
    assert not any("self.opt" in line for line in lines_of(found)), found


@pytest.mark.parametrize("kind", ["Tuner", "Child"])
def test_an_attribute_is_made_by_its_own_class(fixed: Fixed, kind: str) -> None:
    # GIVEN two classes which each make an optimizer under the same name, or a class that another is made of
    child = "class Child(Tuner):\n    pass\n" if kind == "Child" else ""
    found = fixed(f"{TRAINER}{TUNER}{child}{NET}f = {kind}(net).step")
    # WHEN a method of one is rewritten THEN that one is made for a capture
    assert found.complete, found
    made = "self.opt = torch.optim.Adam(net.parameters(), lr=lr, eps=1e-6, capturable=True)"
    assert [line for line in lines_of(found) if "self.opt =" in line] == [made], found


def test_one_of_two_that_nothing_tells_apart_is_made_as_ever(fixed: Fixed) -> None:
    # GIVEN a variable that one of two functions has set WHEN rewritten
    makers = (
        "def slow():\n    global opt\n    opt = torch.optim.Adam(net.parameters(), lr=1e-3)\n"
        "def fast():\n    global opt\n    opt = torch.optim.Adam(net.parameters(), lr=1e-2)\n"
    )
    _, step = STEP.split("lr=1e-2)\n")
    found = fixed(f"{NET}{makers}fast()\n{step}")
    # THEN neither is given what a capture needs, which would be a guess, and the step is still whole
    assert found.complete, found
    assert not any("torch.optim" in line for line in lines_of(found)), found


def test_an_attribute_that_is_given_is_not_made_by_another_class(fixed: Fixed) -> None:
    # GIVEN a class whose optimizer a caller gives, beside one that makes its own under that name WHEN rewritten
    given = TRAINER.replace("class Trainer", "class Given").replace("net, lr=1e-3", "net, opt")
    given = given.replace("torch.optim.Adam(net.parameters(), lr=lr)", "opt")
    found = fixed(f"{TRAINER}{given}{NET}f = Given(net, torch.optim.Adam(net.parameters(), lr=1e-2)).step")
    # THEN the other's stays as it is
    assert found.complete, found
    assert not any("self.opt =" in line for line in lines_of(found)), found


def test_a_variable_of_the_module_is_none_of_a_function_of_another_file(fixed: Fixed) -> None:
    # GIVEN a module that makes its optimizer by a choice, and a file whose function has one of that name WHEN rewritten
    other = (
        "# file: own_nets.py\nimport torch\ndef half(x):\n    return x * 0.5\n"
        "def configure(net, lr):\n    opt = torch.optim.Adam(net.parameters(), lr=lr)\n    return opt\n"
        "# file: the program\nfrom own_nets import configure, half\n"
    )
    choice = "torch.optim.Adam(net.parameters(), lr=1e-2) if len(args) else torch.optim.SGD(net.parameters(), 0.1)"
    step = STEP.replace("torch.optim.Adam(net.parameters(), lr=1e-2)", choice).replace("net(x)", "net(half(x))")
    found = fixed(other + NET + step)
    # THEN its own is made for a capture, and the other's stays as it is
    made = choice.replace("lr=1e-2)", "lr=1e-2, capturable=True)")
    assert [line for line in lines_of(found) if "torch.optim" in line] == [f"opt = {made}"], found


def test_a_variable_of_the_module_that_a_function_of_another_file_makes_is_made_there(fixed: Fixed) -> None:
    # GIVEN a module whose optimizer a function of another file makes, beside one that makes another WHEN rewritten
    other = (
        "# file: own_nets.py\nimport torch\ndef half(x):\n    return x * 0.5\n"
        "def configure(net, lr):\n    opt = torch.optim.Adam(net.parameters(), lr=lr)\n    return opt\n"
        "def slow(net):\n    opt = torch.optim.Adam(net.parameters(), lr=1e-5)\n    return opt\n"
        "# file: the program\nfrom own_nets import configure, half\n"
    )
    step = STEP.replace("torch.optim.Adam(net.parameters(), lr=1e-2)", "configure(net, 1e-2)")
    found = fixed(other + NET + step.replace("net(x)", "net(half(x))"))
    # THEN it is that function's which is made for a capture
    made = "opt = torch.optim.Adam(net.parameters(), lr=lr, capturable=True)"
    assert [line for line in lines_of(found) if "torch.optim" in line] == [made], found
