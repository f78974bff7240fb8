"""What a loop around a step sets between two steps is no constant: a rewrite brings it to the device at each launch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import lines_of, rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

ARGS = "args = (torch.randn(4, device=device),)\n"
# what a step reads, the step, what the loop does after each, and a line of the diff
SET = {
    "a number that a function declares global": (
        "K = 3.0",
        "x * torch.tensor([K, 1.0, K, 2.0]).to(device)",
        "global K\n    K = float(i)",
        "given_in.copy_(torch.tensor([K, 1.0, K, 2.0]).to(device))",
    ),
    "an entry of a dictionary": (
        'CFG = {"k": 2.0}',
        'x * torch.tensor([CFG["k"], 1.0, 2.0, 3.0]).to(device)',
        'CFG["k"] = float(i)',
        'given_in.copy_(torch.tensor([CFG["k"], 1.0, 2.0, 3.0]).to(device))',
    ),
    "an entry that another program sets": (
        'meta = {"k": 2.0}',
        'x * torch.tensor([meta["k"], 1.0, 2.0, 3.0]).to(device)',
        "pass",
        'given_in.copy_(torch.tensor([meta["k"], 1.0, 2.0, 3.0]).to(device))',
    ),
    "a table that is shuffled": (
        "TABLE = np.arange(4, dtype=np.float32)",
        "x * torch.from_numpy(TABLE).to(device)",
        "np.random.RandomState(i).shuffle(TABLE)",
        "given_in.copy_(torch.from_numpy(TABLE).to(device))",
    ),
    "an attribute": (
        "class Config:\n    k = 2.0\ncfg = Config()",
        "x * torch.tensor([cfg.k, 1.0, 2.0, 3.0]).to(device)",
        "cfg.k = float(i)",
        "given_in.copy_(torch.tensor([cfg.k, 1.0, 2.0, 3.0]).to(device))",
    ),
    "a tensor of the host's that is written": (
        "w = torch.arange(4.0)",
        "x * w.to(device)",
        "w.mul_(0.5)",
        "given_in.copy_(w.to(device))",
    ),
    "an index of the host's that is written": (
        "idx = torch.tensor([0, 1])",
        "x[idx] * 2",
        "idx.copy_(torch.tensor([i % 4, 3]))",
        "idx_in.copy_(idx)",
    ),
}


@pytest.mark.parametrize("name", SET)
def test_what_a_loop_sets_between_the_steps_is_read_before_each_launch(name: str, tmp_path: Path) -> None:
    # GIVEN a step that reads what the loop around it sets WHEN it is rewritten
    held, value, sets, line = SET[name]
    text = f"{held}\ndef f(x):\n    return {value}\ndef after(out, i):\n    {sets}\n{ARGS}"
    fix = rewritten(text, tmp_path)
    # THEN each launch has what the loop has set last
    assert fix.complete, fix
    assert line in lines_of(fix)


def test_what_is_set_before_the_function_is_made_stays_a_constant(tmp_path: Path) -> None:
    # GIVEN a table that is filled line by line, and a local name of another function's that is like it
    text = """\
table = np.zeros(4, dtype=np.float32)
for i in range(4):
    table[i] = i
def other(n):
    table = [0.0]
    table.append(n)
    return table
def f(x):
    return x * torch.from_numpy(table).to(device)
"""
    # WHEN it is rewritten
    fix = rewritten(text + ARGS, tmp_path)
    # THEN it is copied once
    assert fix.complete, fix
    assert "constant_on_device = torch.from_numpy(table).to(device)" in lines_of(fix)
