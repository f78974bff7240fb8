"""A step that calls functions which train, each of them at other times: a part of each is a graph, or a piece."""

from __future__ import annotations

from inspect import unwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.proving.launches import Launches
from paramgraph_kit.rewrite.result import Rewriting
from paramgraph_kit.verbs._pieces import in_pieces
from tests.integration.rewritten import run
from tests.programs.running import differences, eager

pytestmark = [
    pytest.mark.sweep,
    pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device"),
]
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


@pytest.mark.parametrize("told", ["self.losses.append(loss.item())", "pass"])
def test_what_trains_now_and_then_and_what_does_in_each_step_have_a_graph_each(told: str, tmp_path: Path) -> None:
    # GIVEN a critic with a penalty of its slope, which reads numbers in between, and a generator trained in some steps
    text = GAN.replace("NOTED", "self.losses.append(slope.norm().item())").replace("TOLD", told)
    truth, names = eager(run(text, tmp_path), "f"), run(text, tmp_path)
    # WHEN a fix is asked for
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN a part of each is a graph, and the step has eager's numbers with both launched
    assert [fix.alone, *(each.alone for each in fix.more)] == ["critic_part", "generate_part"], fix
    assert "`step`, with all of these rounds from graphs" in str(fix)
    with fix.applied() as made:
        every = [(fix, made), *((each, unwrap(names[each.alone])) for each in fix.more)]
        launches = {each.alone: Launches(one, each.around, each.bound, each.anew) for each, one in every}
        names.update(launches)
        seen = eager(names, "f")
    assert all(each.replays for each in launches.values())
    assert not differences(truth, seen, set()), fix


def test_functions_that_a_step_calls_are_compiled_where_it_cannot_be(tmp_path: Path) -> None:
    # GIVEN a step of which Dynamo takes no part, as the critic goes through a backward pass once more
    names = run(GAN.replace("NOTED", "pass").replace("TOLD", "pass"), tmp_path)
    # WHEN it is tried in pieces THEN the method of its generator alone is compiled
    found = in_pieces(names["f"], names["args"], {}, Rewriting("f"))
    assert found.text.startswith('gan.generate = torch.compile(gan.generate, backend="paramgraph"), without'), found
    assert found.of_called
    assert "generate" not in vars(names["gan"])


LITTLE = """
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x, y = torch.randn(12, 8).to(device), torch.randint(0, 3, (12,)).to(device)
rows = torch.stack([torch.arange(12).roll(n) for n in (1, 5)]).to(device)
masks = [(torch.arange(12) % 3 == n).to(device) for n in range(3)]
args = ()
def feed(i):
    return ()
def train():
    net.train()
    opt.zero_grad()
    kept = rows[:, torch.rand(12, device=device).argsort() < 8]
    loss = F.cross_entropy(torch.zeros(12, 3, device=device).index_add(0, kept[0], net(x)[kept[1]]), y)
    loss.backward()
    opt.step()
    return float(loss)
@torch.no_grad()
def test():
    net.eval()
    guess = net(x).argmax(1)
    rates = []
    for mask in masks:
        rates.append(int((guess[mask] == y[mask]).sum()) / int(mask.sum()))
    return rates
def f():
    loss = train()
    return loss, test()
"""


def test_pieces_come_before_a_round_with_next_to_nothing_of_it(tmp_path: Path) -> None:
    # GIVEN an epoch that trains by rows it picks, and of which only the counting of what was right would be a graph
    names = run(LITTLE, tmp_path)
    # WHEN a fix is asked for THEN it is the pieces, which have more of it
    fix: Any = pgk.diagnose(names["f"], fix=True).fix
    assert fix.pieces, fix
    assert not fix.alone
