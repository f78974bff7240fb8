"""Parts of a step whose other lines do, at a count that no trial comes to, what the part's graph does not see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.proving.launches import Launches
from tests.integration.rewritten import run
from tests.programs import running

TRAIN = """\
net = nn.Linear(3, 1).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
ema = [p.detach().clone() for p in net.parameters()]
args = (torch.randn(6, 3, device=device), torch.zeros(6, 1, device=device))
k = 0
def f(x, y):
    global k
    k += 1
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    opt.step()
    with torch.no_grad():
        for e, p in zip(ema, net.parameters()):
            e.mul_(0.9).add_(p, alpha=0.1)
        if k % 8 == 0:
            for e, p in zip(ema, net.parameters()):
                {exchange}
    return loss.item()
"""


def _fixed(text: str, folder: Path) -> Any:
    """What is made of it; a part, launched, has eager's numbers over ten steps."""
    truth, names = running.eager(run(text, folder), "f"), run(text, folder)
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    if fix.alone:
        with fix.applied() as made:
            names[fix.alone] = Launches(made, fix.around, fix.bound, fix.anew)
            assert not running.differences(truth, running.eager(names, "f"), set()), fix
    return fix


def test_a_part_whose_parameters_get_other_memory_at_times_is_none(tmp_path: Path) -> None:
    """Its graph would train the memory of before, from the eighth step on."""
    # GIVEN a step that exchanges what its parameters are made of in each eighth call
    text = TRAIN.format(exchange="p.data, e.data = e.data.clone(), p.data.clone()")
    # WHEN THEN no part with its forward and backward pass is shown as tried, or it is right
    assert not _fixed(text, tmp_path).complete


def test_a_part_whose_parameters_are_written_in_place_at_times_is_one(tmp_path: Path) -> None:
    """Then it reads what is there."""
    # GIVEN the same with copies
    text = TRAIN.format(exchange="old = p.clone(); p.copy_(e); e.copy_(old)")
    # WHEN
    fix = _fixed(text, tmp_path)
    # THEN the part stays
    assert fix.alone or fix.complete, fix
