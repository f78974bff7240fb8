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
