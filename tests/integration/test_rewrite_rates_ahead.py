"""What a step sets by a count, rates and momenta together, goes before the launch, whatever else holds the count."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import lines_of, rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

DISTILLED = """
student, teacher = nn.Linear(6, 4).to(device), nn.Linear(6, 4).to(device)
opt = torch.optim.SGD(student.parameters(), lr=0.05)
rates = [0.05 / (1 + k) for k in range(40)]
state = {"it": 0, "center": torch.zeros(4, device=device)}
args = (torch.randn(5, 6, device=device),)
def f(x):
    it = state["it"]
    for group in opt.param_groups:
        group["lr"] = rates[it]
    m = 1 - 0.1 * (math.cos(math.pi * it / 40) + 1) / 2
    with torch.no_grad():
        aim = F.softmax(teacher(x) - state["center"], -1)
    loss = -(aim * F.log_softmax(student(x), -1)).sum(-1).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for p, q in zip(student.parameters(), teacher.parameters()):
            READS
        state["center"] = state["center"] * 0.9 + teacher(x).mean(0) * 0.1
    state["it"] += 1
    return loss.detach()
"""
READS = {
    "a momentum that a loop reads": ("q.mul_(m).add_((1 - m) * p)", "m_in.fill_(m)"),
    "a number that nothing reads": ("q.lerp_(p, 0.1)", "m = 1 - 0.1 * (math.cos(math.pi * it / 40) + 1) / 2"),
}


@pytest.mark.parametrize("name", READS)
def test_lines_that_read_the_count_go_before_the_launch_with_the_rate(name: str, tmp_path: Path) -> None:
    # GIVEN a count beside a tensor in one dictionary, by which the host finds a rate and another number
    reads, line = READS[name]
    # WHEN the step is rewritten
    fix = rewritten(DISTILLED.replace("READS", reads), tmp_path)
    # THEN both are found before the launch, and ten replays are as eager is
    assert fix.complete, fix
    before = fix.texts[next(iter(fix.texts))]
    begin = next(n for n, each in enumerate(before) if each.startswith("def before_f("))
    end = next(n for n, each in enumerate(before) if each.startswith("def f("))
    there = [each.strip() for each in before[begin:end]]
    assert 'group["lr"].fill_(rates[it])' in there
    assert line in there
    assert not any(each.startswith("global") for each in there)  # nothing that stays reads them
    assert 'state["center"].copy_(state["center"] * 0.9 + teacher(x).mean(0) * 0.1)' in lines_of(fix)
