"""A gradient scaler's step that goes behind the launch takes all with it from ``unscale_`` on."""

from __future__ import annotations

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import Program
from tests.programs.running import captured, differences, eager

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

_SETUP = (
    "model = nn.Linear(4, 2).to(device)\n"
    "opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)\n"
    "sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.05, total_steps=60)\n"
    "scaler = torch.amp.GradScaler(device.type, init_scale=8.0)\nargs = (torch.randn(4, 4, device=device),)\n"
    "def f(x):\n    opt.zero_grad()\n    loss = model(x).square().mean()\n    scaler.scale(loss).backward()\n"
    "    scaler.unscale_(opt)\n"
)
_END = "    scaler.step(opt)\n    scaler.update()\n    sched.step()\n"
NORMS = {
    "returned": "    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n"
    + _END
    + "    return loss.detach(), norm\n",
    "computed with": (
        "    total = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in model.parameters()]))\n"
        "    for p in model.parameters():\n        p.grad.mul_((0.1 / (total + 1e-6)).clamp(max=1.0))\n"
        + _END
        + "    return {'loss': loss.detach(), 'norm': total}\n"
    ),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_that_is_returned_is_computed_where_the_gradients_are_unscaled(name: str, program: Program) -> None:
    # GIVEN a momentum that moves, so that the step is behind the launch, and a result made of gradients without scale
    text = _SETUP + NORMS[name]
    names = program(text)
    # WHEN fixed
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert fix is not None
    assert fix.complete, str(fix)

    # THEN all from `unscale_` on runs behind the launch, and gives eager's numbers
    assert "+def after_f" in fix.diff, str(fix)
    truth = eager(program(text), "f")
    with fix.applied():
        assert differences(truth, captured(names, "f", fix.around), set()) == []
