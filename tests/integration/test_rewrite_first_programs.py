"""What people meet who try a graph for the first time: decorated steps, numbers, hooks, timers, pinned results."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import rewritten, run
from tests.programs.running import captured, differences, eager

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

SAMPLER = """
betas, noise, saved = torch.linspace(0.1, 0.4, 20), torch.Generator(device).manual_seed(3), []
args = (torch.randn(4, 3, device=device), 12)
@torch.no_grad()
def f(x, t):
    beta = betas[t].item()
    x = x - beta * x + torch.randn(x.shape, generator=noise, device=device)
    if t % 5 == 0:
        saved.append(x.cpu())
    return x
"""
TIMED = """
net, side = nn.Linear(4, 4).to(device), cuda.Stream()
timings, shown = [], torch.empty(3, 4).pin_memory()
args = (torch.randn(3, 4, device=device),)
@torch.no_grad()
def f(x):
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    start.record()
    with cuda.stream(side):
        a = x * 2
    cuda.synchronize()
    y = net(a).relu()
    end.record()
    end.synchronize()
    timings.append(start.elapsed_time(end))
    shown.copy_(y)
    return y
"""
HOOKED = """
net, spread, norms = nn.Linear(4, 4).to(device), {}, []
args = (torch.randn(3, 4, device=device),)
def watch(name):
    def hook(module, given, out):
        spread[name] = out.std().item()
    return hook
net.register_forward_hook(watch("net"))
HOOK
def f(x):
    net.zero_grad(set_to_none=False)
    loss = net(x).square().mean()
    loss.backward()
    return loss.detach()
"""
HOOKS = {
    "the norm of a gradient": (
        "net.weight.register_hook(lambda g: norms.append(g.norm().cpu()))",
        "`lambda g: hooked.append(g.norm().detach())`",
    ),
    "a gradient itself, as a list": (
        "net.weight.register_hook(lambda g: norms.append(g.detach().flatten().tolist()))",
        "`lambda g: hooked.append(g.detach().flatten().detach().clone())`",
    ),
    "a number of a result, with what is the host's": (
        "net.register_forward_hook(lambda m, i, o: norms.append((m.in_features, float(o.max()))))",
        "`lambda m, i, o: hooked.append((m, o.max().detach()))`",
    ),
}


def test_a_branch_of_some_numbers_is_told_below_a_decorator_too(tmp_path: Path) -> None:
    # GIVEN a step below `@torch.no_grad()`, called with a number that does not take its branch
    names = run(SAMPLER, tmp_path)
    # WHEN
    found: Any = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN the branch is told, and moves behind the launch
    assert any(f.code == "branch-frozen" and "t % 5" in f.frame.text for f in found.failures)
    assert "saved.append(x.cpu())" in found.fix.diff[found.fix.diff.index("def after_f(t, x)") :]


def test_a_number_among_the_arguments_is_told_by_its_name_where_others_are_made_of_it(tmp_path: Path) -> None:
    # GIVEN a number made of another one, beside tensors, where several calls would have to say theirs before
    names = run(SAMPLER + "def both():\n    f(0)\n    f(1)\n", tmp_path)
    # WHEN
    found: Any = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN the one that is given is named, and nothing that is none
    text = str(found)
    assert "`t`, a number among the arguments, decides this: the line stays as it is" in text
    assert "`graphs[t]`" in text
    assert not re.search(r"give `(beta|x|t)`", text)


def test_a_generator_of_ones_own_draws_the_same_numbers_in_each_trial(tmp_path: Path) -> None:
    # GIVEN a step that draws from one, of the device
    names = run(SAMPLER, tmp_path)
    # WHEN
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN runs can be compared
    assert "eagerly it gives the original's results" in str(fix)
    assert "nothing could be compared" not in str(fix)


def test_a_timer_and_a_pinned_result_behind_it_go_around_the_launch(tmp_path: Path) -> None:
    # GIVEN / WHEN
    fix = rewritten(TIMED, tmp_path)
    # THEN
    assert fix.complete
    after = fix.diff[fix.diff.index("def after_f") :]
    assert after.index("end.synchronize()") < after.index("shown.copy_(y)")
    assert "non_blocking" not in fix.diff  # no graph's copy that the host would have to wait for


@pytest.mark.parametrize("name", HOOKS)
def test_what_is_said_of_a_lambda_that_is_a_hook_works_as_it_is_said(name: str, tmp_path: Path) -> None:
    # GIVEN a hook with a lambda beside another that the diff mends
    line, said = HOOKS[name]
    text = HOOKED.replace("HOOK", line)
    truth = eager(run(text, tmp_path), "f")
    names = run(text, tmp_path)
    # WHEN
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN it is told in these words, and what the diff keeps for later keeps no graph of gradients
    (told,) = [each for each in fix.instead if "lambda" in each.partition("\n")[0]]
    assert said in told
    assert "belongs behind the launch" not in told
    assert fix.is_little or "work(out=out.detach())" in fix.diff
    # WHEN one follows them
    once, here, begins, behind = re.findall(r"`([^`]+)`", told.partition("\n")[2])
    whole = (tmp_path / "program.py").read_text(encoding="utf-8")
    mended = whole.replace(line, f"{once}\n{line.replace(line[line.index('lambda') : -1], here)}")
    mended = mended.replace("        spread[name] = out.std().item()", "        spreads.append((name, out.detach()))")
    mended = mended.replace("def f(x):\n", f"spreads = []\ndef f(x):\n    {begins}\n    spreads.clear()\n")
    mended += (
        f"def after(out, i):\n    for name, kept in spreads:\n        spread[name] = kept.std().item()\n    {behind}\n"
    )
    other = tmp_path / "mended"
    other.mkdir()
    seen = captured(run(mended.split("device = pgk.cuda, pgk.device()\n", 1)[1], other), "f")
    # THEN it is captured, and all is as ever
    assert not differences(truth, seen, {"hooked", "spreads"})
