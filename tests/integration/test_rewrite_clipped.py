"""Clipping, whose norm the host asks: it stays before the optimizer's step, and is done once."""

from __future__ import annotations

import pytest
import torch

from tests.integration.rewritten import Fixed, lines_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

TRAIN = """
net = nn.Linear(6, 1).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)
norms = []
args = (torch.randn(4, 6, device=device), torch.randn(4, 1, device=device))
def f(x, y):
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    {clip}
    opt.step()
    {end}
    return loss.detach()
"""
TOLD = """norm = nn.utils.clip_grad_norm_(net.parameters(), {}).item()
    if norm > 2:
        print(f"norm {{norm:.2f}}")"""


@pytest.mark.parametrize("end", ["sched.step()", "pass"])
@pytest.mark.parametrize("most", ["1.0", "100.0"], ids=["clipped", "never clipped"])
@pytest.mark.parametrize(
    "clip", [TOLD, "norms.append(nn.utils.clip_grad_norm_(net.parameters(), {}).item())"], ids=["told", "kept"]
)
def test_what_clips_is_not_moved_behind_the_step(fixed: Fixed, clip: str, most: str, end: str) -> None:
    # GIVEN a step that clips, which may never have had to, and asks the norm WHEN rewritten
    found = fixed(TRAIN.format(clip=clip.format(most), end=end))
    # THEN nothing clips behind the step, nor a second time
    lines = "\n".join(lines_of(found))
    behind = lines[lines.find("# after each launch") :] if "# after each launch" in lines else ""
    moved = "clip_grad_norm_" in behind
    assert not moved or "opt.step()" in behind[behind.index("clip_grad_norm_") :], found
    assert lines.count("clip_grad_norm_") <= 1, found


@pytest.mark.parametrize("kept", ["norms.append(norm)", "norms.append(norm * 2)"], ids=["it", "twice it"])
def test_each_layer_is_clipped_in_the_graph_and_its_norm_kept_behind_it(fixed: Fixed, kept: str) -> None:
    # GIVEN a step that asks for the norm of each gradient, clips by it, and keeps it WHEN rewritten
    found = fixed(f"""
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
norms, limit = [], 0.1
args = (torch.randn(6, 4, device=device), torch.randn(6, 2, device=device))
def f(x, y):
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    for p in net.parameters():
        norm = p.grad.norm().item()
        if norm > limit:
            p.grad.mul_(limit / norm)
        {kept}
    opt.step()
    return loss.detach()
""")
    # THEN clipping and the optimizer's step stay, in their order, and the list has numbers as before
    assert found.complete, found
    lines = lines_of(found)
    assert "opt.step()" not in lines, found
    assert any(line.startswith("p.grad.mul_(torch.where(norm > limit,") for line in lines), found
    assert found.usage == "call after_f() after each launch", found
    assert (kept != "norms.append(norm)") or "norms.append(norm.item())" in lines, found
