"""State that a step detaches at its end stays where the graph reads it; branches around it lose their questions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.proving.closeness import differences
from paramgraph_kit.rewrite.proving.proof import Prover
from tests.integration.rewritten import changed, lines_of, rewritten

RECURRENT = """
class World(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.GRUCell(6, 8), nn.Linear(8, 4)
        self.h = self.z = None
    def advance(self, action, first):
        if self.h is None:
            self.h = torch.zeros(3, 8, device=device)
            self.z = torch.zeros(3, 4, device=device)
        if first.any():
            self.h = torch.where(first[:, None], torch.zeros_like(self.h), self.h)
            self.z = self.z.masked_fill(first.unsqueeze(-1), 0.0)
        self.h = self.cell(torch.cat([self.z, action], -1), self.h)
        self.z = self.out(self.h).tanh()
        return self.z
    def let_go(self):
        self.h, self.z = self.h.detach(), self.z.detach()
world = World().to(device)
optimizer = torch.optim.SGD(world.parameters(), lr=0.1)
args = (torch.randn(4, 3, 2, device=device), torch.rand(4, 3, device=device) < 0.2)
def f(actions, first):
    loss = torch.stack([world.advance(actions[t], first[t]) for t in range(4)]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    world.let_go()
    return loss
"""
NORMALIZED = """
args = (torch.randn(3, 8, device=device), torch.randn(3, 8, device=device))
def f(noisy, clean):
    peak = noisy.abs().max()
    if peak > 2:
        noisy, clean = noisy / peak, clean / peak
    return (noisy - clean).square().mean()
"""


def test_state_that_is_detached_is_written_where_it_was(tmp_path: Path) -> None:
    # GIVEN a recurrent model that carries its state through time, resets it where an episode began, and detaches it
    fix = rewritten(RECURRENT, tmp_path)
    # THEN its step is whole, gradients through time and state included, which ten other steps of its capture have shown
    assert fix.complete, fix
    added = lines_of(fix)
    assert 'self.h_kept = getattr(self, "h_kept", torch.empty_like(self.h)).copy_(self.h.detach())' in added
    assert "self.h, self.z = self.h_kept, self.z_kept" in added
    # AND a reset that changes nothing where nothing is to be reset is done without the question
    assert "-        if first.any():" in changed(fix.diff)


class Box:
    """An object of the user's."""

    def __init__(self) -> None:
        self.seen = torch.zeros((), device=pgk.device())


def test_attributes_that_only_a_rewrite_makes_are_no_difference_and_lost_ones_are() -> None:
    # GIVEN what a step leaves on an object
    box = Box()

    def original(x: torch.Tensor) -> torch.Tensor:
        box.seen = box.seen + x.sum()
        return x * 2

    def with_more(x: torch.Tensor) -> torch.Tensor:
        box.kept = x.clone()  # type: ignore[attr-defined]
        return original(x)

    prover = Prover(original, (torch.randn(4, device=pgk.device()),), {})
    truth = prover.first()
    # WHEN another function gives it more THEN nothing differs, WHEN it leaves something out THEN that is told
    assert differences(truth, prover.launched(with_more)) == []
    assert differences(truth, prover.launched(lambda x: x * 2)) != []


@dataclass
class Found:
    """What a step of the user's returns."""

    loss: torch.Tensor
    parts: list[torch.Tensor]


class Settings:
    """What steps hold in a class."""

    count = 0
    seen: ClassVar[list[int]] = []


def _counted(x: torch.Tensor) -> torch.Tensor:
    Settings.count += 1
    return x * 2


def _seen(x: torch.Tensor) -> torch.Tensor:
    Settings.seen.append(1)
    return x * 2


# What a step does with an argument, and what one does that is not the same.
APART: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[torch.Tensor], Any]]] = {
    "an object with other tensors": (lambda x: Found(x.sum(), [x]), lambda x: Found(x.sum(), [x + 1])),
    "an argument that is no longer written": (lambda x: x.mul_(2).sum(), lambda x: (x * 2).sum()),
    "an argument that is written": (lambda x: (x * 2).sum(), lambda x: x.mul_(2).sum()),
    "a class that no longer counts": (_counted, lambda x: x * 2),
    "a list that stays empty": (_seen, lambda x: x * 2),
}


@pytest.mark.parametrize("title", APART)
def test_what_a_step_returns_in_an_object_and_does_to_its_arguments_is_compared(title: str) -> None:
    # GIVEN what a step returns, and leaves of its argument
    one, other = APART[title]
    prover = Prover(one, (torch.randn(4, device=pgk.device()),), {})
    truth = prover.first()
    # WHEN it runs again THEN it is the same, WHEN another one does THEN it is not
    assert differences(truth, prover.eager()) == []
    prover.function = other
    assert differences(truth, prover.eager()) != []


def test_two_names_that_a_branch_gives_others_are_chosen_one_by_one(tmp_path: Path) -> None:
    # GIVEN a branch of the device that gives two tensors others WHEN its fix is asked for THEN both are chosen
    fix = rewritten(NORMALIZED, tmp_path)
    assert fix.complete, fix
    line = "noisy, clean = torch.where(peak > 2, noisy / peak, noisy), torch.where(peak > 2, clean / peak, clean)"
    assert line in lines_of(fix)
