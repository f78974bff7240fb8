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


METHODS = (
    HEAD
    + """
class graphed:
    def __init__(self, fn):
        self.fn, self.name = fn, fn.__name__
    def __get__(self, obj, owner=None):
        store = obj.__dict__.setdefault("_graphs", {})
        def call(x, **options):
            KEY
            if key not in store:
                static = x.clone()
                self.fn(obj, static, **options)
                g = cuda.CUDAGraph()
                with cuda.graph(g):
                    out = self.fn(obj, static, **options)
                store[key] = g, static, out
            g, static, out = store[key]
            static.copy_(x)
            g.replay()
            return out.clone()
        return call

class Net:
    @graphed
    def encode(self, x, scale=1.0):
        return torch.tanh(x) * scale

def main():
    net, x = Net(), torch.ones(2, 4, device=device)
    return [net.encode(x, scale=1.0 + i).tolist() for i in range(3)]
"""
)


@pytest.mark.parametrize(("key", "told"), [("self.name", 1), ("self.name, options.get('scale')", 0)])
def test_an_option_of_a_method_that_a_descriptor_graphs_is_told(key: str, told: int, tmp_path: Path) -> None:
    # GIVEN a method that a descriptor graphs once for all options, or once for each
    names = load(METHODS.replace("KEY", f"key = ({key})"), tmp_path / "program.py")
    # WHEN a program that gives it another number at each call is diagnosed
    found = pgk.diagnose(names["main"])
    # THEN the call that gives it is told where no key has it, with a key that does
    assert [f.code for f in found.failures] == ["scalar-frozen"] * told, found
    assert all("net.encode(x, scale=1.0 + i)" in f.frame.text for f in found.failures if f.frame)
    assert all("options.get('scale')" in f.fix for f in found.failures)


CROPS = (
    HEAD
    + """
class Detector:
    def __init__(self):
        self.img, self.g1, self.g2 = torch.zeros(4, 6, device=device), None, None
    def detect(self, img, at):
        self.img.copy_(img)
        if self.g1 is None:
            self.g1 = cuda.CUDAGraph()
            with cuda.graph(self.g1):
                self.feat = self.img * 2
        self.g1.replay()
        self.crop = self.feat[:, at : at + 3]
        if self.g2 is None:
            self.g2 = cuda.CUDAGraph()
            with cuda.graph(self.g2):
                self.score = self.crop.sum(1)
        self.g2.replay()
        return self.score.clone()

def main():
    detector = Detector()
    return [detector.detect(torch.arange(24.0).reshape(4, 6), at).tolist() for at in (0, 1, 2)]
"""
)


def test_a_part_of_another_tensor_is_no_place_to_write_to(tmp_path: Path) -> None:
    # GIVEN a name that gets another part of a graph's result at each call, and that a second graph reads
    names = load(CROPS, tmp_path / "program.py")
    # WHEN it is diagnosed
    found = pgk.diagnose(names["main"])
    # THEN the words have a tensor of its own captured: the parts overlap, and a copy would write into the result
    (failure,) = found.failures
    own = "self.crop = self.feat[:, at:at + 3].clone()"
    assert f"`{own}` only where the capture follows, and else self.crop.copy_(" in failure.fix
    # AND the program that follows them gives the numbers of an eager one
    mended = f"if self.g2 is None: {own}\n        else: self.crop.copy_(self.feat[:, at : at + 3])"
    other = load(CROPS.replace("self.crop = self.feat[:, at : at + 3]", mended), tmp_path / "mended.py")
    x = 2 * torch.arange(24.0).reshape(4, 6)
    assert other["main"]() == [x[:, at : at + 3].sum(1).tolist() for at in (0, 1, 2)]


SETTINGS = (
    HEAD
    + """
class Args:
    scale = 1.0

class Trainer:
    def __init__(self, args):
        self.args, self.net = args, nn.Linear(4, 1).to(device).requires_grad_(False)
        self.x, self.graph = torch.ones(2, 4, device=device), None
    def epoch(self):
        return self.net(self.x) * self.args.scale
    def update(self):
        if self.graph is None:
            self.epoch()
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.epoch()
        self.graph.replay()
        return self.out.clone()

def main():
    args = Args()
    trainer, outs = Trainer(args), []
    for i in range(4):
        args.scale = 1.0 - i / 4
        outs.append(trainer.update().tolist())
    return outs
"""
)


def test_a_setting_of_an_object_is_told_where_it_is_set_and_once(tmp_path: Path) -> None:
    # GIVEN a number of an object of settings that a loop sets, ahead of the first capture, too
    names = load(SETTINGS, tmp_path / "program.py")
    # WHEN it is diagnosed
    found = pgk.diagnose(names["main"], fix=True)
    # THEN the line that sets it is told, and no second time where it is read; a tensor is there when it is set first
    assert [(f.code, f.frame.text) for f in found.failures if f.frame] == [
        ("scalar-frozen", "args.scale = 1.0 - i / 4")
    ], found
    assert "at the end of `__init__`: self.args.scale = torch.full((), " in found.failures[0].fix
