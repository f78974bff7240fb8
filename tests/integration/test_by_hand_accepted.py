"""What to write by hand for a proposal that a number of the device accepts: followed, the rest is rewritten."""

from __future__ import annotations

import pytest
import torch

from tests.integration.rewritten import Fixed

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device")

CHAIN = """
class Chain:
    def __init__(self):
        self.x, self.width, self.taken = torch.zeros(4, device=device), 0.5, 0
        self.rng = np.random.default_rng(3)
    def proposed(self, noise):
        x = self.x
        for k in range(3):
            x = x + self.width * noise
        return x
    def step(self, noise):
        new = self.proposed(noise)
        gain = (self.x.square().sum() - new.square().sum()).item()
        chance = min(1.0, math.exp(min(0.0, gain)))
        if self.rng.random() < chance:
            self.x = new
            self.taken += 1
        self.width *= math.exp(0.1 * (chance - 0.8))
        return self.x
chain = Chain()
f, args = chain.step, (torch.randn(4, device=device),)
"""


def test_what_a_read_number_decides_moves_behind_the_launch_with_it(fixed: Fixed) -> None:
    # GIVEN a step of a chain whose proposal is taken by chance WHEN rewritten
    found = fixed(CHAIN)
    told = "\n".join(found.instead)
    # THEN nothing that the launch computes is asked for before it, and a width is one for all rounds of a loop
    assert "before each launch `chosen_in.fill_(self.rng.random() < chance)`" not in told, found
    assert "give `chance`" not in told, found
    assert "make one round of the loop" not in told, found
    assert found.complete or "belongs behind the launch: leave it" in told or found.alone, found
