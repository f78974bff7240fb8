"""What trials of launches leave of a step: state that only a later call writes is put back, too."""

from __future__ import annotations

import torch

from paramgraph_kit.driver.select import device
from paramgraph_kit.rewrite.proving.proof import Prover


class Averaged:
    """A step that writes a tensor in each thirteenth call alone."""

    def __init__(self) -> None:
        self.n, self.average = 0, torch.ones(3, device=device())

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        if self.n % 13 == 0:
            self.average.mul_(0.5)
        return x + self.average


def test_what_a_later_launch_writes_is_put_back() -> None:
    # GIVEN such a step, of which the first trials write no tensor
    averaged = Averaged()
    prover = Prover(averaged.step, (torch.ones(3, device=device()),), {})
    prover.first()
    # WHEN sixty launches are tried, which nothing watches
    prover.given(lambda _, inputs: inputs, steps=60).launched(averaged.step)
    # THEN the tensor has what it had, and so has the count
    assert averaged.average.tolist() == [1.0, 1.0, 1.0]
    assert averaged.n == 0
