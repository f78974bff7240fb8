"""A step that calls functions which train, each of them at other times: a part of each is a graph, or a piece."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite import round_within
from paramgraph_kit.rewrite.proving.worth import Worth
from paramgraph_kit.rewrite.result import Rewriting
from paramgraph_kit.verbs import _pieces
from paramgraph_kit.verbs._pieces import Pieces, in_pieces
from tests.integration.rewritten import rewritten, run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")
GAN = """
class Gan:
    def __init__(self):
        self.g, self.d, self.n = nn.Linear(4, 4).to(device), nn.Linear(4, 1).to(device), 0
        self.go, self.do = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (self.g, self.d))
        self.losses = []
    def penalty(self, x, y):
        z = (0.5 * x + 0.5 * y.detach()).requires_grad_(True)
        out = self.d(z)
        slope = torch.autograd.grad(out, z, torch.ones_like(out), create_graph=True)[0]
        NOTED
        return ((slope.norm(2, dim=1) - 1) ** 2).mean()
    def critic(self, x):
        fake = self.g(x)
        extra = self.penalty(x, fake)
        self.losses.append(extra.item())
        self.do.zero_grad()
        loss = (self.d(fake.detach()) - self.d(x)).mean() + extra
        loss.backward()
        self.do.step()
        self.losses.append(loss.item())
    def generate(self, x):
        self.go.zero_grad()
        loss = -self.d(self.g(x)).mean()
        loss.backward()
        self.go.step()
        TOLD
    def step(self, x):
        self.n += 1
        self.critic(x)
        if self.n % 3 == 0:
            self.generate(x)
gan = Gan()
f = gan.step
args = (torch.randn(8, 4, generator=torch.Generator().manual_seed(7)).to(device),)
def feed(i):
    return (torch.randn(8, 4, generator=torch.Generator().manual_seed(i)).to(device),)
"""


@pytest.mark.sweep
@pytest.mark.parametrize("told", ["self.losses.append(loss.item())", "pass"])
def test_what_trains_in_each_step_is_a_graph_and_what_does_now_and_then_goes_behind_it(
    told: str, tmp_path: Path
) -> None:
    # GIVEN a critic with a penalty of its slope, which reads numbers in between, and a generator trained in some steps
    text = GAN.replace("NOTED", "self.losses.append(slope.norm().item())").replace("TOLD", told)
    # WHEN a fix is asked for THEN it is whole, with eager's numbers
    fix = rewritten(text, tmp_path)
    assert fix.complete, fix
    # AND the critic is in the graph, what it notes and the generator behind the launch
    behind = fix.diff.partition("def after_step")[2]
    assert "self.generate(x.clone())" in behind, fix
    assert "self.losses.append(extra.item())" in behind, fix
    assert "\n         self.do.step()" in fix.diff, fix


@pytest.mark.sweep
def test_functions_that_a_step_calls_are_compiled_where_it_cannot_be(tmp_path: Path) -> None:
    # GIVEN a step of which Dynamo takes no part, as the critic goes through a backward pass once more
    names = run(GAN.replace("NOTED", "pass").replace("TOLD", "pass"), tmp_path)
    # WHEN it is tried in pieces THEN the method of its generator alone is compiled
    found = in_pieces(names["f"], names["args"], {}, Rewriting("f"))
    assert found.text.startswith('gan.generate = torch.compile(gan.generate, backend="paramgraph"), without'), found
    assert found.of_called
    assert "generate" not in vars(names["gan"])


@pytest.mark.parametrize(("kernels", "shown"), [(30, True), (3, False)])
def test_pieces_come_before_a_round_with_next_to_nothing_of_it(
    kernels: int, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN an epoch of which a round is a graph, with five of a hundred operations
    device = pgk.device()
    alone = Rewriting("f", alone="test_round", worth=Worth(5, 95))
    monkeypatch.setattr(round_within, "one_round", lambda *_, of_loader, **__: None if of_loader else alone)
    found = Pieces("f = torch.compile(f)", kernels, 100, is_plain=True)
    monkeypatch.setattr(_pieces, "in_pieces", lambda *_: found)
    # WHEN a fix is asked for THEN it is the pieces, where they have more of it
    fix: Any = pgk.diagnose(lambda x: x[x > 0].tolist(), torch.ones(4, device=device), fix=True).fix
    assert bool(fix.pieces) is shown
    assert bool(fix.alone) is not shown
