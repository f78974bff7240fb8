"""A graphed callable that is called twice ahead of one backward: the words give eager's numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.running import load

PROGRAM = """import torch
import paramgraph_kit as pgk
device = pgk.device()
def main(graphed=True):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    call = net
    if graphed:
        call = pgk.cuda.make_graphed_callables(net, (torch.ones(3, 4, device=device),))
    GRADIENTS
    for i in range(4):
        a, b = torch.full((3, 4), 1.0 + i, device=device), torch.full((3, 4), -0.5 * i, device=device)
        optimizer.zero_grad(OPTION)
        real = call(a).square().mean()
        FIRST
        fake = call(b).sub(1).square().mean()
        BACKWARD
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()]).cpu()
"""
WRONG = {"GRADIENTS": "pass", "OPTION": "", "FIRST": "pass", "BACKWARD": "(real + fake).backward()"}
MENDED = {
    "GRADIENTS": "for p in net.parameters(): p.grad = torch.zeros_like(p)",
    "OPTION": "set_to_none=False",
    "FIRST": "real.backward()",
    "BACKWARD": "fake.backward()",
}


def _main(given: dict[str, str], file: Path) -> object:
    text = PROGRAM
    for name, line in given.items():
        text = text.replace(name, line)
    return load(text, file)["main"]


def test_backward_passes_between_calls_need_gradients_that_were_there(tmp_path: Path) -> None:
    # GIVEN a graphed network that is called for two batches ahead of one backward pass
    wrong, mended = _main(WRONG, tmp_path / "wrong.py"), _main(MENDED, tmp_path / "mended.py")

    # WHEN it is diagnosed
    (found,) = [f for f in pgk.diagnose(wrong).failures if f.code == "output-alias"]

    # THEN the words say which gradients, and with these the numbers are those of eager
    assert "p.grad = torch.zeros_like(p)" in found.fix
    assert "zero_grad(set_to_none=False)" in found.fix
    expected = wrong(False)  # type: ignore[operator]
    assert torch.allclose(mended(), expected)  # type: ignore[operator]
    assert not torch.allclose(wrong(), expected)  # type: ignore[operator]


STEP = """import torch
import paramgraph_kit as pgk
device = pgk.device()
def made():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).to(device)
def graphed(one, other):
    sample = (torch.ones(3, 4, device=device),)
    return pgk.cuda.make_graphed_callables((one, other), (sample, sample))
def step(net, a, b):
    real = net(a).square().mean()
    BETWEEN
    fake = net(b).sub(1).square().mean()
    fake.backward()
    return real.detach() + fake.detach()
net, _ = graphed(made(), made())
args = net, torch.ones(3, 4, device=device), torch.full((3, 4), 2.0, device=device)
"""


@pytest.mark.parametrize(("between", "told"), [("fake = 0 * real", True), ("real.backward()", False)])
def test_a_step_that_is_given_what_a_helper_has_graphed_is_asked_for_its_calls(
    between: str, told: bool, tmp_path: Path
) -> None:
    # GIVEN a step whose argument a helper has graphed among others, and that calls it twice ahead of one backward pass
    text = STEP.replace("BETWEEN", between)
    names = load(text.replace("fake.backward()", "(real + fake).backward()") if told else text, tmp_path / "step.py")

    # WHEN it is diagnosed
    found = pgk.diagnose(names["step"], *names["args"]).failures

    # THEN the first call is told, and not where its backward pass comes ahead of the second
    lines = [f.frame.text for f in found if f.code == "output-alias" and f.frame]
    assert lines == ["real = net(a).square().mean()"] * told
