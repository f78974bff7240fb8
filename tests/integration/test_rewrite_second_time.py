"""A file that already has lines of an earlier diff: what is written beside them has names of its own."""

from __future__ import annotations

import ast
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import Fixed, Program, lines_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

KEPT = """\
net = nn.Linear(6, 1).to(device)
args = (torch.randn(4, 6, device=device),)
best, history, later = [], [], 0
def f(x):
    loss = net(x).square().mean()
    best.append(loss.detach())
    return loss.detach()
def after_f(loss):  # after each launch
    history.append(loss.item())
"""
DRAWN = """\
net = nn.Linear(6, 1).to(device)
args = (torch.randn(4, 6, device=device),)
noise_in, counts = torch.zeros(4, 6, device=device), []
def before_f():  # before each launch
    counts.append(0)
def f(x):
    noise = torch.randn(4, 6).to(device)
    return net(x + noise).detach()
"""
PUT_OFF = """\
net = nn.Linear(6, 1).to(device)
args = (torch.randn(4, 6, device=device),)
history, later = [], 0
def part(x):
    loss = net(x).square().mean()
    history.append(loss.detach())
    return loss.detach()
def f(x):
    return part(x) * 2
def after_f():  # after each launch
    global later
    later += 1
"""


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (KEPT, ["def after_f_2(loss):  # after each launch"]),
        (DRAWN, ["def before_f_2():  # before each launch", "noise_in_2 = torch.zeros(4, 6, device=device)"]),
        (PUT_OFF, ["def after_f_2():  # after each launch", "later_2 = []", "later_2.clear()"]),
    ],
)
def test_lines_of_an_earlier_diff_are_the_users(fixed: Fixed, text: str, lines: list[str]) -> None:
    # GIVEN a function around each launch that a diff has written before, with its comment, in the user's file
    # WHEN the step is rewritten once more
    found = fixed(text)
    # THEN nothing of the new lines has its name, nor that of a variable that the file only writes
    assert found.complete, found
    assert set(lines) <= {*lines_of(found)}, found
    (made,) = found.texts.values()
    names = [node.name for node in ast.parse("".join(made)).body if isinstance(node, ast.FunctionDef)]
    assert len(names) == len(set(names))
    assert "after each launch, in `after_f`" not in str(found)


def test_a_name_that_only_the_module_has_is_taken(program: Program) -> None:
    # GIVEN a module to which something else has given a variable, which none of its lines names
    names = program(PUT_OFF.replace("later", "rounds"))
    names["f"].__globals__["later"] = kept = ["of another"]
    # WHEN the step is rewritten with a list of what is put off
    found: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN that list has another name, and the variable is as it was
    assert "later_2 = []" in lines_of(found), found
    assert names["f"].__globals__["later"] is kept
    assert kept == ["of another"]
