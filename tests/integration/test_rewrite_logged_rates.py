"""A log that keeps the rate as ``log["lr"]`` is no optimizer's group: it keeps numbers where rates are tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paramgraph_kit.rewrite.counting.given_rates import rates
from paramgraph_kit.rewrite.source.edits import Source
from tests.integration.rewritten import lines_of, rewritten

NOTED = """
def f(it):
    GIVEN
    LINE
"""
LINES = {
    "a log's entry": ("pass", 'log["lr"] = now()', 'log["lr"] = float(now())'),
    "a log's entry that is a number": ("pass", 'log["lr"] = 0.5', 'log["lr"] = 0.5'),
    "a log of the function's": ("row = dict(loss=0.0)", 'row["lr"] = now()', 'row["lr"] = float(now())'),
    "a group": ("pass", 'group["lr"] = now()', 'group["lr"].fill_(now())'),
    "a group of a loop": ("pass", 'for g in opt.param_groups: g["lr"] = now()', 'g["lr"].fill_(now())'),
    "a group by its number": ("pass", 'opt.param_groups[0]["lr"] = now()', 'opt.param_groups[0]["lr"].fill_(now())'),
}


@pytest.mark.parametrize("name", LINES)
def test_only_a_group_has_a_rate_that_is_filled(name: str, tmp_path: Path) -> None:
    # GIVEN a line that sets an entry of that name, of a group or of a log
    given, line, wanted = LINES[name]
    file = tmp_path / "program.py"
    file.write_text(NOTED.replace("GIVEN", given).replace("LINE", line))
    source = Source.of(str(file))
    assert source is not None
    statement = source.statement(4)
    assert statement is not None
    opt = torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=0.5)
    space = {"opt": opt, "group": opt.param_groups[0], "log": {"loss": 0.0, "lr": 0.0}}
    # WHEN rates are tensors THEN a group's is filled, and a log keeps numbers
    assert wanted in "\n".join(source.apply(rates(source, [statement], space.get)))


LOGGED = """
net = nn.Linear(4, 2).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.5)
rates = [0.1 * 0.9**k for k in range(60)]
log = {"loss": 0.0, "lr": 0.0}
state = {"it": 0}
args = (torch.randn(5, 4, device=device),)
def rate():
    return opt.param_groups[0]["lr"]
def f(x):
    for group in opt.param_groups:
        group["lr"] = rates[state["it"]]
    opt.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    opt.step()
    state["it"] += 1
    log["loss"] += loss.item()
    log["lr"] = rate()
"""


@pytest.mark.sweep
@pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")
def test_a_log_of_the_rate_is_rewritten_as_a_log(tmp_path: Path) -> None:
    # GIVEN a step that ends by logging its loss and its rate WHEN it is rewritten
    fix = rewritten(LOGGED, tmp_path)
    # THEN the whole of it is, and the log keeps numbers
    assert fix.complete, fix
    assert not any('log["lr"].fill_' in line for line in lines_of(fix))
