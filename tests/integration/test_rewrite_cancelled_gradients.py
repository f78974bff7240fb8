"""Gradients that lines take away between the backward pass and the step, in some epochs alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from paramgraph_kit.rewrite.advised.advice import hint
from paramgraph_kit.rewrite.counting.given_back import given_back
from paramgraph_kit.rewrite.source.cancelled import takes_gradients_at_times
from paramgraph_kit.rewrite.source.edits import Source
from paramgraph_kit.rewrite.source.place import Place
from paramgraph_kit.trace.model import Failure
from tests.integration.rewritten import lines_of, rewritten

NET = """
net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
rates = [0.1 * 0.9**k for k in range(60)]
args = (torch.randn(5, 4, device=device), 0)
"""
CANCEL = """
def cancel(it):
    ENDS
    for name, p in net.named_parameters():
        if name.startswith("1."):
            p.grad = None
"""
STEP = """
def f(x, it):
    for group in opt.param_groups:
        group["lr"] = rates[it]
    opt.zero_grad()
    net(x).square().mean().backward()
    cancel(it)
    opt.step()
"""
AT_TIMES, ALWAYS = CANCEL.replace("ENDS", "if it >= 4: return"), CANCEL.replace("ENDS", "pass")
FIRST = STEP.replace("    cancel(it)\n", "").replace("    opt.zero_grad()\n", "    cancel(it)\n")
PARTS = STEP.replace("net(x).square().mean().backward()", "back(x)").replace("opt.step()", "go()")
PARTS += "def back(x):\n    net(x).square().mean().backward()\ndef go():\n    opt.step()\n"
FORMS = {
    "an early end": (AT_TIMES + STEP, True),
    "a branch around the call": (ALWAYS + STEP.replace("cancel(it)", "if it < 4: cancel(it)"), True),
    "a helper for each part": (AT_TIMES + PARTS, True),
    "in each call": (ALWAYS + STEP, False),
    "ahead of the backward pass": (AT_TIMES + FIRST, False),
    "behind the step": (AT_TIMES + STEP.replace("    cancel(it)\n", "") + "    cancel(it)\n", False),
}


def placed(text: str, line: str, code: str, folder: Path, **space: object) -> Place:
    """The place of a problem in a program's file."""
    file = folder / "program.py"
    file.write_text(text)
    source = Source.of(str(file))
    assert source is not None
    number = next(n for n, each in enumerate(text.splitlines(), 1) if each.strip() == line)
    statement = source.statement(number)
    assert statement is not None
    return Place(source, statement, Failure(code, "", ""), "device", {"torch": torch, **space})


@pytest.mark.parametrize("name", FORMS)
def test_gradients_are_taken_at_times_where_a_branch_decides_it_ahead_of_the_step(name: str, tmp_path: Path) -> None:
    # GIVEN lines that set gradients to None WHEN asked whether a step may miss some THEN only what the next one has
    text, at_times = FORMS[name]
    place = placed(text, "def f(x, it):", "", tmp_path)
    assert takes_gradients_at_times([place.source]) is at_times


FEED = """
def feed(i):
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(i)).to(device), i
"""


@pytest.mark.sweep
@pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")
@pytest.mark.parametrize("cancels", [AT_TIMES, ALWAYS], ids=["at times", "in each call"])
def test_a_step_runs_behind_the_launch_where_gradients_come_later_and_gives_them_back(
    cancels: str, tmp_path: Path
) -> None:
    # GIVEN momentum, and a layer without gradients: in the first epoch alone, or ever
    # WHEN the step is rewritten, and runs ten steps of which six have all gradients
    fix = rewritten(NET + cancels + STEP + FEED, tmp_path)
    # THEN kernels that take no momentum which begins later are for the second alone
    if cancels is ALWAYS:
        assert any("fused=True" in line for line in lines_of(fix)), fix
        return
    # AND the first has its step behind each launch, with the gradients there again for the next
    assert fix.complete, fix
    assert not any("fused" in line for line in lines_of(fix))
    assert 'held = [(p, p.grad) for group in opt.param_groups for p in group["params"]]' in lines_of(fix)
    behind = str(fix.diff).partition("def after_f")[2]
    assert "cancel(it)" in behind.partition("opt.step()")[0]
    assert "p.grad = grad" in behind.partition("opt.step()")[2]


READERS = {
    "nobody": ("", True),
    "a log of norms behind the step": ("    seen.append(net[1].weight.grad)\n", False),
    "no zero_grad": ("NO ZERO", False),
}


@pytest.mark.parametrize("name", READERS)
def test_gradients_are_given_back_only_where_nobody_looks_at_them_behind_the_step(name: str, tmp_path: Path) -> None:
    # GIVEN lines around a step that takes gradients away at times
    more, known = READERS[name]
    step = STEP.replace("    opt.zero_grad()\n", "") if more == "NO ZERO" else STEP + more
    source = placed(AT_TIMES + step, "def f(x, it):", "", tmp_path).source
    function = next(n for n in ast.walk(source.tree) if isinstance(n, ast.FunctionDef) and n.name == "f")
    # WHEN asked where it is cut THEN that is known only where they are made anew, and read by the step alone
    assert (given_back([source], source, function) is not None) is known


@pytest.mark.parametrize("begins", [True, False], ids=["at times", "in each call"])
def test_words_for_a_rate_begin_all_momenta_at_once_where_gradients_come_later(begins: bool, tmp_path: Path) -> None:
    # GIVEN the same step, of whose rate words tell how it is a tensor
    opt = torch.optim.SGD([torch.ones(3, requires_grad=True)], lr=0.5, momentum=0.9)
    text = NET + (AT_TIMES if begins else ALWAYS) + STEP
    # WHEN they are given
    said = hint(placed(text, "opt.step()", "learning-rate-frozen", tmp_path, opt=opt))
    # THEN momenta begin together where, and only where, some would come later
    assert "where `opt` has been made with `fused=True`" in said
    assert ('opt.state[p]["momentum_buffer"] = torch.zeros_like(p)' in said) is begins
    assert said.count("`") % 2 == 0


SCALED = """
def adjust(given):
    for group in given.param_groups:
        group["lr"] = rates[it]
def f(x):
    adjust(opt)
    scaler.scale(net(x).sum()).backward()
    STEP
"""


@pytest.mark.parametrize("step", ["scaler.step(opt)", "opt.step()"])
def test_words_for_a_rate_name_an_optimizer_and_no_scaler(step: str, tmp_path: Path) -> None:
    # GIVEN a rate that a function sets, and an optimizer that a gradient scaler steps, or itself, beside another
    opt, other = (torch.optim.SGD([torch.ones(3, requires_grad=True)], lr=0.5) for _ in range(2))
    scaler = torch.amp.GradScaler("cpu")
    names = {"other": other, "scaler": scaler, "opt": opt}
    # WHEN it is told how the rate is a tensor
    said = hint(placed(SCALED.replace("STEP", step), step, "learning-rate-frozen", tmp_path, **names))
    # THEN it is that optimizer's groups that have it
    assert "where `opt` has been made with `fused=True`, `for group in opt.param_groups: " in said
