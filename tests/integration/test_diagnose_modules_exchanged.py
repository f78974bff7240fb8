"""What a step exchanges on a module, however it is written: a graph goes on with what was there at capture."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu captures on a GPU"),
    pytest.mark.usefixtures("recovered"),
]
NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("level", torch.zeros(4, device=device))
        self.scale = nn.Parameter(torch.ones(4, device=device))
        self.head = nn.Linear(4, 4, device=device)

    @torch.no_grad()
    def forward(self, x):
{step}
net = Net()
"""
# Each with the line that exchanges, or, where no line names what it exchanges, with the one that reads it.
EXCHANGED = {
    'self._buffers["level"] = self.level * 0.9 + x\nreturn self.level + 1': ("stale-input", "_buffers["),
    "self._buffers.update(level=self.level * 0.9 + x)\nreturn self.level + 1": ("stale-input", "update("),
    'self.register_buffer("level", self.level * 0.9 + x)\nreturn self.level + 1': ("stale-input", "register_buffer"),
    "self.scale = nn.Parameter(self.scale * 0.9)\nreturn self.scale * x": ("parameter-rebound", "self.scale ="),
    'self._parameters["scale"] = nn.Parameter(self.scale * 0.9)\nreturn self.scale * x': (
        "parameter-rebound",
        "_parameters[",
    ),
    'self.register_parameter("scale", nn.Parameter(self.scale * 0.9))\nreturn self.scale * x': (
        "parameter-rebound",
        "register_parameter",
    ),
    "held = self._buffers\nfor name in [*held]:\n    held[name] = held[name] * 0.9 + x\nreturn self.level + 1": (
        "stale-input",
        "held[name] =",
    ),
    "self.load_state_dict({k: v * 0.9 for k, v in self.state_dict().items()}, assign=True)\nreturn self.head(x)": (
        "parameter-rebound",
        "assign=True",
    ),
    "head = nn.Linear(4, 4, device=device)\nhead.weight.copy_(self.head.weight * 0.9)\n"
    "self.head = head\nreturn self.head(x)": ("parameter-rebound", "self.head = head"),
    "head = nn.Linear(4, 4, device=device)\nhead.weight.copy_(self.head.weight * 0.9)\n"
    'self.add_module("head", head)\nreturn self.head(x)': ("parameter-rebound", "add_module"),
}
KEPT = [
    'self._buffers["level"].copy_(self.level * 0.9 + x)\nreturn self.level + 1',
    "self.load_state_dict({k: v * 0.9 for k, v in self.state_dict().items()})\nreturn self.head(x)",
    'self._buffers["level"] = x * 2\nreturn self.level + 1',  # each call makes it before it reads it
    "self.scale = nn.Parameter(self.scale.data.mul_(0.9))\nreturn self.scale * x",  # in the same memory
    """\
if "table" not in self._buffers:
    self.register_buffer("table", torch.arange(4, device=device))
return x + self.table""",
    'self._modules["head"] = self.head\nreturn self.head(x)',
]


def net_of(step: str, tmp_path: Path) -> Any:
    return run(NET.format(step=textwrap.indent(step, " " * 8)), tmp_path)["net"]


@pytest.mark.parametrize(("step", "told"), EXCHANGED.items())
def test_what_a_step_exchanges_on_its_module_is_told(step: str, told: tuple[str, str], tmp_path: Path) -> None:
    # GIVEN a module that gives a buffer, a parameter or a module of its own another tensor in each call, and reads it
    net = net_of(step, tmp_path)
    before = {name: (tensor, tensor.clone()) for name, tensor in net.state_dict(keep_vars=True).items()}
    # WHEN it is diagnosed
    found = pgk.diagnose(net, torch.ones(4, device=pgk.device()))
    # THEN the exchange is told where it is written, and the module has what it had
    assert (told[0], True) in [(f.code, f.frame is not None and told[1] in f.frame.text) for f in found.failures]
    now = net.state_dict(keep_vars=True)
    assert all(now[name] is held and torch.equal(held, value) for name, (held, value) in before.items())


@pytest.mark.parametrize("step", KEPT)
def test_what_a_step_writes_in_place_or_never_reads_again_is_no_exchange(step: str, tmp_path: Path) -> None:
    # GIVEN a module that keeps its memory, or makes what it reads ahead of reading it
    net = net_of(step, tmp_path)
    # WHEN it is diagnosed
    found = pgk.diagnose(net, torch.ones(4, device=pgk.device()))
    # THEN nothing is told
    assert [(f.code, f.frame and f.frame.text) for f in found.failures] == []


TURNED = """
from torch import nn
net = nn.Sequential(*[nn.Linear(4, 4, device=device) for _ in range(3)])
def f(x):
    net.append(net.pop(0))
    return net(x)
"""
MOMENTUM = """
from torch import nn
net = nn.Linear(4, 1, device=device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
def f(x):
    optimizer.zero_grad(set_to_none=False)
    net(x).sum().backward()
    optimizer.step()
    for p in net.parameters():
        held = optimizer.state[p]
        {line}
    return x * 1
"""
BEGUN = """
for _ in range(2):
    f(torch.ones(4, device=device))
"""
HALVED = 'held["momentum_buffer"] = held["momentum_buffer"] * 0.5'


def test_modules_that_take_turns_are_told(tmp_path: Path) -> None:
    # GIVEN a list of modules that each call turns by one, for which torch makes a new table of them
    names = run(TURNED, tmp_path)
    order = [*names["net"]]
    # WHEN diagnosed
    found = pgk.diagnose(names["f"], torch.ones(4, device=pgk.device()))
    # THEN it is told, and they stand as before
    assert [f.code for f in found.failures] == ["parameter-rebound"]
    assert all(a is b for a, b in zip(order, names["net"], strict=True))


KEYED = "for name in [*held]:\n            if torch.is_tensor(held[name]): held[name] = held[name] * 0.5"
WHOLE = 'optimizer.state[p] = {"momentum_buffer": held["momentum_buffer"] * 0.5}'


@pytest.mark.parametrize("begun", [BEGUN, ""])
@pytest.mark.parametrize(
    ("line", "is_told"),
    [
        (HALVED, True),
        (KEYED, True),
        (WHOLE, True),
        ('held.update(momentum_buffer=held["momentum_buffer"] * 0.5)', True),
        ('held["momentum_buffer"].mul_(0.5)', False),
        ("held.setdefault('n', 0)", False),
        ('held["seen"] = held["momentum_buffer"] * 0.5', False),
    ],
)
def test_momentum_that_a_step_gives_other_memory_is_told(line: str, is_told: bool, begun: str, tmp_path: Path) -> None:
    # GIVEN a step that halves the momentum of torch's optimizer, by another tensor or in place, and has run or not
    names = run(MOMENTUM.format(line=line) + begun, tmp_path)
    kept = {p: {**entries} for p, entries in names["optimizer"].state.items()}
    # WHEN diagnosed
    found = pgk.diagnose(names["f"], torch.ones(4, device=pgk.device()))
    # THEN another tensor is told at its line, what is written in place or never read is none; its state is as before
    told = [f.frame and f.frame.text for f in found.failures if f.code in ("stale-input", "parameter-rebound")]
    assert told == ([line.rpartition("\n")[2].strip()] if is_told else [])
    now = names["optimizer"].state
    assert now.keys() == kept.keys()
    assert all(now[p].get(name) is value for p, each in kept.items() for name, value in each.items())


def test_another_name_in_the_state_of_an_optimizer_keeps_its_numbers(tmp_path: Path) -> None:
    # GIVEN a step that keeps the momentum by another name ahead of the line that exchanges it
    line = f'held["before"] = held["momentum_buffer"]; {HALVED}'
    names = run(MOMENTUM.format(line=line) + BEGUN, tmp_path)
    # WHEN it is mended
    found = pgk.diagnose(names["f"], torch.ones(4, device=pgk.device()), fix=True)
    # THEN no diff writes in place what that name has, too
    assert [f.code for f in found.failures] == ["stale-input"]
    assert found.fix is not None
    assert ".copy_(" not in found.fix.diff or ".clone()" in found.fix.diff


def test_what_an_optimizers_own_step_exchanges_is_its_own(tmp_path: Path) -> None:
    # GIVEN a step of torch's which exchanges what it keeps, and lines that use the same words of a table of their own
    program = """
from torch import nn
net, table = nn.Linear(4, 1, device=device), {}
optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)
def closure():
    optimizer.zero_grad()
    loss = net(torch.ones(4, device=device)).square().sum()
    loss.backward()
    return loss
def f(x):
    table["d"] = x * 2
    table["prev_flat_grad"] = x * 3
    optimizer.step(closure)
    return table["d"] + len(optimizer.state)
"""
    names = run(program, tmp_path)
    # WHEN diagnosed
    found = pgk.diagnose(names["f"], torch.ones(4, device=pgk.device()))
    # THEN none of these lines is said to exchange the optimizer's
    assert not [f for f in found.failures if "another tensor after each call" in f.message], str(found)
