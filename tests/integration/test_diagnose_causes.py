"""Where a problem shows at one line and comes of another: which line gives, sets or draws it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load, quiet

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

SHADOW = """\
net = nn.Linear(3, 2).to(device)
shadow = {n: p.detach().clone() for n, p in net.named_parameters()}
def step(x):
    for n, p in net.named_parameters():
        average = 0.9 * shadow[n] + 0.1 * p.detach()
        shadow[n] = average
    return net(x)
args = (torch.randn(4, 3, device=device),)
"""
RATE = """\
net = nn.Linear(3, 2).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
n = 0
def step(x):
    global n
    n += 1
    for group in opt.param_groups:
        group["lr"] = 0.1 / n
    opt.zero_grad()
    net(x).sum().backward()
    opt.step()
args = (torch.randn(4, 3, device=device),)
"""
SCHEDULED = """\
net = nn.Linear(3, 2).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
def step(x):
    opt.zero_grad()
    net(x).sum().backward()
    opt.step()
    scheduler.step()
args = (torch.randn(4, 3, device=device),)
"""
SAMPLED = """\
kept = [torch.randn(1, 3, device=device) for _ in range(9)]
done = 0
def sample(n):
    return random.sample(kept, n)
def step():
    global done
    rows = sample(4)
    done += 1
    if done % 20 == 0:
        print("far")
    return torch.cat(rows).sum(0)
args = ()
"""
WAYS = """\
def step(x):
    if random.random() < 0.3:
        order = torch.randperm(4).to(device)
        x = x[order]
    return x * 2
args = (torch.randn(4, 3, device=device),)
"""
SHUFFLED = """\
def step(x):
    order = np.arange(4)
    np.random.shuffle(order)
    return x[order] * 2
args = (torch.randn(4, 3, device=device),)
"""


def diagnosed(text: str, path: Path, *, fix: bool = False) -> Any:
    """What is told of a program's ``step``."""
    names = load(PRELUDE + text, path / "program.py")
    with quiet():
        return pgk.diagnose(names["step"], *names["args"], fix=fix)


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        pytest.param(
            SHADOW, "stale-input", ["shadow['weight'] gets another at ", "shadow[n] = average"], id="a tensor"
        ),
        pytest.param(RATE, "learning-rate-frozen", ["in one call, set at ", 'group["lr"] = 0.1 / n'], id="a rate"),
        pytest.param(SCHEDULED, "learning-rate-frozen", ["once, at ", "scheduler.step()"], id="a schedule"),
    ],
)
def test_the_line_of_a_cause_is_named(text: str, code: str, words: list[str], tmp_path: Path) -> None:
    # GIVEN a step in which one line exchanges or sets what another line reads
    # WHEN it is diagnosed
    found = diagnosed(text, tmp_path)
    # THEN what is told at the line that reads it has the line that does so
    told = next(f for f in found.failures if f.code == code)
    assert all(word in told.message for word in words), told.message


def test_what_is_sampled_of_kept_tensors_is_told_as_drawn(tmp_path: Path) -> None:
    # GIVEN a step that samples of tensors of a list, and counts beside
    # WHEN it is diagnosed
    found = diagnosed(SAMPLED, tmp_path)
    # THEN the tensors are told as drawn and not as exchanged, and the line that draws is named
    assert ("host-random", "return torch.cat(rows).sum(0)") in {(f.code, f.frame.text) for f in found.failures}
    assert "stale-input" not in {f.code for f in found.failures}
    assert "the host draws at" in str(found)
    assert "return random.sample(kept, n)" in str(found)


def test_a_way_that_only_some_calls_take_has_its_copies_told(tmp_path: Path) -> None:
    # GIVEN a branch of chance that brings an order to the device
    # WHEN it is diagnosed
    found = diagnosed(WAYS, tmp_path)
    # THEN the copy is told beside the branch
    assert {"branch-frozen", "copy-to-gpu"} <= {f.code for f in found.failures}


def test_a_draw_that_a_copy_brings_is_named(tmp_path: Path) -> None:
    # GIVEN an order that numpy shuffles, and a copy of it
    # WHEN it is diagnosed
    found = str(diagnosed(SHUFFLED, tmp_path))
    # THEN the line that draws is named
    assert "np.random.shuffle(order)" in found


def test_a_slice_of_all_in_a_loop_is_a_size(tmp_path: Path) -> None:
    # GIVEN a loop that takes as many rows as the host has drawn, in some calls all of them
    text = """\
sizes = [4, 2, 3]
def step(x):
    total = 0
    for _ in range(2):
        total = total + x[: sizes[random.randrange(3)]].sum()
    return total
args = (torch.randn(4, 3, device=device),)
"""
    # WHEN it is diagnosed
    found = diagnosed(text, tmp_path)
    # THEN the loop, whose rounds are as many as ever, is no problem
    assert "branch-frozen" not in {f.code for f in found.failures}
    assert found.failures


def test_what_torch_makes_of_a_size_that_is_told_is_no_problem_of_its_own(tmp_path: Path) -> None:
    # GIVEN attention along a part whose length the host counts
    text = """\
n = 2
def step(q):
    global n
    n += 1
    part = q[:, :n]
    return F.scaled_dot_product_attention(part, part, part, is_causal=True).sum()
args = (torch.randn(2, 30, 4, device=device),)
"""
    # WHEN it is diagnosed
    found = diagnosed(text, tmp_path)
    # THEN the part is told, and not the mask that attention makes along it
    assert [f.frame.text for f in found.failures if f.code == "size-frozen"] == ["part = q[:, :n]"]
