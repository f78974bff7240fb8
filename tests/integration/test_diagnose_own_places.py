"""Words for places that are counted, for callables that torch graphs, and for work that a capture is not joined to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
HEAD = "import torch\nfrom torch import nn\nimport paramgraph_kit as pgk\ncuda, device = pgk.cuda, pgk.device()\n"
LENGTHS = (
    HEAD
    + """
class Engine:
    def __init__(self):
        self.kv = torch.arange(24.0).reshape(4, 6).to(device)
        self.x = torch.ones(4, 1, device=device)
        self.lens, self.graphs = [0] * 4, {}
        for bs in (4, 2):
            self.capture(bs)

    def forward(self, bs):
        longest = max(self.lens[:bs]) + 1
        return (self.kv[:bs, :longest] * self.x[:bs]).sum(1)

    def capture(self, bs):
        self.forward(bs)
        cuda.synchronize()
        g = cuda.CUDAGraph()
        with cuda.graph(g):
            out = self.forward(bs)
        self.graphs[bs] = g, out

    def decode(self, x):
        n = x.shape[0]
        BUCKET
        self.x[:n].copy_(x)
        g, out = self.graphs[bs]
        g.replay()
        for i in range(n):
            self.lens[i] += 1
        return out[:n].clone()

def main():
    engine = Engine()
    return [engine.decode(torch.ones(n, 1, device=device)).tolist() for n in (2, 2, 4, 2)]
"""
)


@pytest.mark.parametrize("goes_through", [True, False])
def test_a_graph_for_each_length_has_the_size_of_its_batch_in_its_key(goes_through: bool, tmp_path: Path) -> None:
    # GIVEN graphs by batch size whose lines end at the longest of a list's lengths
    bucket = "bs = min(b for b in sorted(self.graphs) if b >= n)" if goes_through else "bs = 2 if n <= 2 else 4"
    names = load(LENGTHS.replace("BUCKET", bucket), tmp_path / "program.py")
    # WHEN the program is diagnosed
    found = pgk.diagnose(names["main"])
    # THEN no tensor ends the slice: a graph for each length, also by the size of its batch
    (failure,) = found.failures
    assert (failure.code, failure.frame.text if failure.frame else "") == ("scalar-frozen", "self.lens[i] += 1")
    assert "self.lens_in" not in failure.fix
    key = "(bs, max(self.lens[:bs]))"
    assert (f"`if {key} not in graphs:` a new capture goes to `graphs[{key}]`" in failure.fix) == goes_through
    assert "max(self.lens[:bs])" in failure.fix


GRAPHED = (
    HEAD
    + """
class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.temperature = nn.Linear(4, 3), 2.0
    def forward(self, x):
        return self.net(x) / self.temperature

class Agent:
    def __init__(self):
        torch.manual_seed(0)
        actor, critic = Actor().to(device), nn.Linear(4, 1).to(device)
        x = torch.ones(2, 4, device=device)
        MADE
        self.actor, self.critic = cuda.make_graphed_callables((actor, critic), ((x,), (x.clone(),)))

def main():
    agent, outs = Agent(), []
    for i in range(3):
        agent.actor.temperature = 2.0 - 0.5 * i
        outs.append(agent.actor(torch.ones(2, 4, device=device)).detach().clone())
    return torch.stack(outs).tolist()
"""
)


def test_what_torch_graphs_has_the_name_that_it_is_given_ahead_of_it(tmp_path: Path) -> None:
    # GIVEN a module that torch graphs, to which the line with the capture gives another name
    names = load(GRAPHED.replace("MADE", "pass"), tmp_path / "program.py")
    # WHEN it is diagnosed, whose temperature moves
    found = pgk.diagnose(names["main"])
    # THEN the words use what is there ahead of the capture, and no replay of the user's, who has none
    (failure,) = found.failures
    made = "actor.temperature = torch.full((), float(actor.temperature), device='sim')"
    assert f"before the capture: {made}; here: " in failure.fix
    assert "replay" not in failure.fix
    # AND the program that follows them gives each call its own temperature
    mended = GRAPHED.replace("MADE", made).replace("agent.actor.temperature = 2.0 - 0.5 * i", "HERE")
    mended = mended.replace("HERE", "agent.actor.temperature.fill_(2.0 - 0.5 * i)")
    outs = torch.tensor(load(mended, tmp_path / "mended.py")["main"]())
    assert (outs[0] * 2).allclose(outs[2])


FORKED = (
    HEAD
    + """
side = cuda.Stream()
x = torch.ones(2, 4, device=device)
def main():
    (x * 2).sum()
    cuda.synchronize()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            y = torch.sigmoid(x)
        z = x + 1
    g.replay()
    return y.clone(), z.clone()
"""
)


def test_work_that_is_not_joined_is_told_once(tmp_path: Path) -> None:
    # GIVEN a capture that ends while work of a side stream is not joined to it
    names = load(FORKED, tmp_path / "program.py")
    # WHEN it is diagnosed
    found = pgk.diagnose(names["main"])
    # THEN the line of that work is told, and not the end of the capture beside it
    assert [(f.code, f.frame.text) for f in found.failures if f.frame] == [("unjoined-work", "y = torch.sigmoid(x)")]


DECODER = (
    HEAD
    + """
class Decoder:
    def __init__(self):
        self.cache, self.pos = torch.zeros(2, 6, 3, device=device), 0
        self.x, self.graph = torch.ones(2, 3, device=device), None

    def forward(self):
        self.cache[:, self.pos] = self.x
        h = self.cache[:, : self.pos + 1].sum(1)
        self.pos += 1
        if (h > 100).all():
            h = h * 0
        return h

    def step(self):
        if self.graph is None:
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.h = self.forward()
        self.graph.replay()
        return self.h.clone()

def main():
    decoder = Decoder()
    return [decoder.step().tolist() for _ in range(3)]
"""
)


def test_a_counted_place_is_written_by_an_index_of_the_device(tmp_path: Path) -> None:
    # GIVEN a capture that fails, with a cache whose place an object counts
    names = load(DECODER, tmp_path / "program.py")
    # WHEN it is diagnosed
    found = pgk.diagnose(names["main"], fix=True)
    # THEN its line gets words of its own, and the mask has the places that the slice has
    fixes = {f.frame.text: f.fix for f in found.failures if f.frame}
    written = "self.cache.index_copy_(1, self.pos.reshape(1), self.x.expand_as(self.cache.select(1, 0)).unsqueeze(1))"
    assert written in fixes["self.cache[:, self.pos] = self.x"]
    assert "< self.pos + 1`" in fixes["h = self.cache[:, : self.pos + 1].sum(1)"]
    # AND what they say is what the slices were
    pos, cache, x = torch.tensor(2), torch.rand(2, 6, 3), torch.rand(2, 3)
    other = cache.clone()
    other[:, 2] = x
    cache.index_copy_(1, pos.reshape(1), x.expand_as(cache.select(1, 0)).unsqueeze(1))
    assert cache.equal(other)
