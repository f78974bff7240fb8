"""Fixes of steps written as a framework's modules have them: optimizers out of lists, tensors given a batch's type."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import lines_of, rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

GAN = """\
class Gan:
    def __init__(self):
        self.g, self.d = nn.Linear(4, 6).to(device), nn.Linear(6, 1).to(device)
        self.opts = self.configure_optimizers()

    def configure_optimizers(self):
        opt_g = torch.optim.Adam(self.g.parameters(), lr=2e-4)
        opt_d = torch.optim.Adam(self.d.parameters(), lr=2e-4)
        return [opt_g, opt_d]

    def optimizers(self):
        return self.opts

    def training_step(self, x):
        first, second = self.optimizers()
        valid = torch.ones(x.size(0), 1)
        valid = valid.type_as(x)
        first.zero_grad()
        F.mse_loss(self.d(self.g(x[:, :4])), valid).backward()
        first.step()
        second.zero_grad()
        F.mse_loss(self.d(x), valid).backward()
        second.step()

gan = Gan()
args = (torch.randn(5, 6, device=device),)

def f(x):
    gan.training_step(x)
"""
LISTED = GAN.replace("return [opt_g, opt_d]", 'return {"g": opt_g, "d": opt_d}')
LISTED = LISTED.replace("        first, second = self.optimizers()\n", "")
LISTED = LISTED.replace("first.", 'self.opts["g"].').replace("second.", 'self.opts["d"].')
IN_ONE_LINE = GAN.replace(
    "self.opts = self.configure_optimizers()",
    "self.opts = [torch.optim.AdamW(self.g.parameters(), 1e-3), torch.optim.AdamW(self.d.parameters(), 1e-3)]",
)
IN_ONE_LINE = IN_ONE_LINE.replace("        first.step()\n", "")
IN_ONE_LINE = IN_ONE_LINE.replace("second.step()", "for opt in self.opts:\n            opt.step()")
ANOTHER = GAN + "other = torch.optim.Adam(nn.Linear(2, 2).parameters())\n"


@pytest.mark.parametrize("text", [GAN, LISTED, IN_ONE_LINE])
def test_optimizers_that_no_name_leads_to_are_mended_where_they_are_made(text: str, tmp_path: Path) -> None:
    # GIVEN optimizers that a step takes out of a list, or a dictionary WHEN it is rewritten
    fix = rewritten(text, tmp_path)
    # THEN all that there are of the kind have the option, and it is whole
    assert fix.complete, fix
    assert sum(line.count("capturable=True") for line in lines_of(fix)) == 2
    # THEN what was given a batch's type is made where that lies
    assert any("valid = torch.ones(x.size(0), 1, device=x.device)" in line for line in lines_of(fix)), fix


def test_an_optimizer_that_the_step_does_not_know_stays_as_it_is(tmp_path: Path) -> None:
    # GIVEN one more of that kind in the file, of parameters of the CPU WHEN the step is rewritten
    fix = rewritten(ANOTHER, tmp_path)
    # THEN which of them makes which is not known, and none has the option
    assert not any("capturable" in line for line in lines_of(fix)), fix
