"""What the CPU draws in a helper is told to be drawn before each launch, where that gives the same numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import Fixed, run
from tests.programs.running import captured, differences, eager

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

MASKED = """
net = nn.Linear(6, 6).to(device)
args = (torch.randn(4, 6, device=device),)
def feed(i):
    return (torch.randn(4, 6, generator=torch.Generator().manual_seed(i)).to(device),)
def hide(x):
    y = x.clone()
    MADE
    hidden = DRAWN.to(x.device)
    hidden &= y > -9
    return y.masked_fill(hidden, 0.0)
def f(x):
    with torch.no_grad():
        return net(hide(x))
"""
WAYS = {
    "of a tensor of probabilities": (
        "p = torch.full(y.shape, 0.4)",
        "torch.bernoulli(p).bool()",
        "torch.bernoulli(torch.full((4, 6), 0.4)).bool()",
    ),
    "of sizes": (  # with an option, as draws without one are written into the diff
        "n = len(y)",
        "(torch.rand(n, y.size(1), dtype=torch.float32) < 0.4).bool()",
        "(torch.rand(4, 6, dtype=torch.float32) < 0.4).bool()",
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_what_a_helper_draws_is_told_to_be_drawn_before_the_launch(name: str, tmp_path: Path) -> None:
    # GIVEN a helper that draws on the CPU what it makes of the form of a tensor
    made, drawn, text = WAYS[name]
    program = MASKED.replace("MADE", made).replace("DRAWN", drawn)
    truth = eager(run(program, tmp_path), "f")
    names = run(program, tmp_path)
    # WHEN
    found: Any = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN the place and the problem say the same, with the numbers of its form
    (told,) = [each.fix for each in found.failures if each.code == "copy-to-gpu"]
    assert text in told
    assert any(text in each for each in found.fix.instead)
    once, before, here = re.findall(r"`([^`]+)`", told.partition("is drawn on the CPU")[2])
    # WHEN one follows it
    mended = program.replace(f"hidden = {drawn}.to(x.device)", here).replace("def hide", f"{once}\ndef hide")
    mended = mended.replace("    return (torch.randn", f"    {before}\n    return (torch.randn")
    (tmp_path / "mended").mkdir()
    seen = captured(run(mended, tmp_path / "mended"), "f")
    # THEN it is captured, and draws what it drew
    assert not differences(truth, seen, {"hidden_in"})


STAGED = """
net, turn, stage = nn.Linear(6, 3).to(device), 0, [torch.empty(4, 6).pin_memory() for _ in range(2)]
args = (torch.randn(4, 6),)
@torch.no_grad()
def f(request):
    global turn
    buf = stage[turn % 2]
    buf.copy_(request)
    x = buf.to(device, non_blocking=True)
    turn += 1
    y = net(x)
    if y.max() > 9:
        print("large")
    return y
"""


def test_what_the_host_fills_and_the_step_reads_is_not_told_to_be_filled_behind_the_launch(tmp_path: Path) -> None:
    # GIVEN a request that is copied into memory of the host's, from which the device takes it
    names = run(STAGED, tmp_path)
    # WHEN
    found: Any = pgk.diagnose(names["f"], *names["args"])
    # THEN both come before the launch
    (told,) = [each.fix for each in found.failures if "buf.copy_" in each.frame.text]
    assert "both belong before each launch" in told
    assert "behind" not in told


UNTIL = """
emb, args = nn.Embedding(9, 4).to(device), (torch.randint(0, 9, (5,), device=device),)
def sample(pos):
    neg = torch.randint(0, 9, (len(pos),), device=device)
    while (neg == pos).any():
        neg = torch.where(neg == pos, torch.randint(0, 9, pos.shape, device=device), neg)
    return neg
def f(pos):
    neg = sample(pos)
    return (emb(pos) * emb(neg)).sum(1)
"""


@pytest.mark.parametrize("own", [True, False])
def test_what_is_drawn_anew_until_it_fits_to_an_input_belongs_before_each_launch(fixed: Fixed, own: bool) -> None:
    # GIVEN numbers that are drawn until none is an input's, in a function of their own or in the step
    head, loop = UNTIL.split("def sample(pos):\n")[0], UNTIL.split("def sample(pos):\n")[1].split("    return neg\n")[0]
    inside = f"{head}def f(pos):\n{loop}    return (emb(pos) * emb(neg)).sum(1)\n"
    # WHEN a fix is asked for
    said = str(fixed(UNTIL if own else inside))
    # THEN the loop goes there, and what it has drawn is copied
    assert "nce `neg_in = torch.zeros(5, dtype=torch.int64, device=device)`" in said
    assert ("`neg_in.copy_(sample(pos))`" if own else "`neg_in.copy_(neg)` behind them") in said
    assert "end what is captured before" not in said


def test_parts_that_nested_loops_draw_by_an_input_are_told_as_one_mask(fixed: Fixed) -> None:
    # GIVEN parts of each row, as long as the input says, that the host draws and sets to a number
    said = str(
        fixed("""
args = (torch.randn(2, 20, device=device), torch.tensor([20, 13], device=device))
def f(x, lengths):
    x = x.clone()
    for b in range(x.shape[0]):
        n = lengths[b].item()
        for _ in range(2):
            t = int(n * 0.3 * random.random())
            t0 = random.randint(0, n - t)
            x[b, t0:t0 + t] = 0
    return x.tanh()
""")
    )
    # WHEN a fix is asked for THEN the loops go before each launch, and nothing is an argument of its own
    assert "here `x.masked_fill_(mask_in, 0)` in place of the loop" in said
    assert "as a number among its arguments" not in said
    assert "belongs behind the launch" not in said
