"""What each call computes for its graph and gives a variable: the graph goes on with what its capture was given."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.running import load, quiet

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
BEGIN = """
import torch
import paramgraph_kit as pgk
cuda, device = pgk.cuda, pgk.device()

def warmed(work):
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        work()
    cuda.current_stream().wait_stream(side)

def batches():
    gen = torch.Generator().manual_seed(3)
    return [torch.randn(4, 6, generator=gen).to(device) for _ in range(4)]

@torch.no_grad()
def main():
    torch.manual_seed(0)
    call = build(torch.nn.Linear(6, 6).to(device))
    return [call(x).cpu() for x in batches()]
"""
METHOD = """
class Runner:
    def __init__(self, net):
        self.net, self.graph, self.kept = net, None, []
    @torch.no_grad()
    def __call__(self, x):
        gate = MADE
        if self.graph is None:
            self.x, self.gate = x.clone(), gate
            warmed(lambda: self.net(self.x) * gate)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.net(self.x) * gate
        self.x.copy_(x)
        FILL
        self.graph.replay()
        return self.out.clone()
build = Runner
"""
CLOSURE = """
def build(net):
    held = {}
    @torch.no_grad()
    def call(x):
        gate = MADE
        if not held:
            static = x.clone()
            def body():
                return net(static) * gate
            warmed(body)
            graph = cuda.CUDAGraph()
            with cuda.graph(graph):
                out = body()
            held["all"], held["gate"] = (graph, static, out), gate
        graph, static, out = held["all"]
        static.copy_(x)
        FILL
        graph.replay()
        return out.clone()
    return call
"""
HANDED = """
def scaled(x, factors, net):
    return net(x) * factors

class Runner:
    def __init__(self, net):
        self.net, self.graphs = net, {}
    def record(self, x, factors):
        static, graph = x.clone(), cuda.CUDAGraph()
        warmed(lambda: scaled(static, factors, self.net))
        with cuda.graph(graph):
            out = scaled(static, factors, self.net)
        graph.factors = factors
        self.graphs[x.shape] = graph, static, out
    @torch.no_grad()
    def __call__(self, x):
        gate = MADE
        if x.shape not in self.graphs:
            self.record(x, gate)
        graph, static, out = self.graphs[x.shape]
        static.copy_(x)
        FILL
        graph.replay()
        return out.clone()
build = Runner
"""
LOOP = """
def build(net):
    static, graph, out = torch.zeros(4, 6, device=device), None, None
    results = []
    for x in batches():
        gate = MADE
        static.copy_(x)
        if graph is None:
            warmed(lambda: net(static) * gate)
            first, graph = gate, cuda.CUDAGraph()
            with cuda.graph(graph):
                out = net(static) * gate
        FILL
        graph.replay()
        results.append(out.clone())
    return lambda x: results.pop(0)
"""
PROGRAMS = {
    METHOD: "self.gate.copy_(gate)",
    CLOSURE: 'held["gate"].copy_(gate)',
    HANDED: "graph.factors.copy_(gate)",
    LOOP: "first.copy_(gate)",
}
ALONE = [METHOD, CLOSURE, HANDED]


def told(text: str, tmp_path: Path, *, alone: bool = False) -> tuple[list[str], str]:
    """What is told of a program, or of its wrapper alone, and the words of all fixes."""
    names = load(BEGIN + text, tmp_path / "program.py")
    torch.manual_seed(0)
    call = names["build"](torch.nn.Linear(6, 6).to(pgk.device())) if alone else names["main"]
    with quiet():
        found = pgk.diagnose(call, *(names["batches"]()[:1] if alone else []))
    return [f.code for f in found.failures], " ".join(f.fix for f in found.failures)


@pytest.mark.parametrize("made", ["(x > 0).float()", "torch.softmax(x.mean(0), 0)"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_a_call_computes_and_its_graph_never_sees_is_told(program: str, made: str, tmp_path: Path) -> None:
    # GIVEN a program of which each call computes what its capture reads, which is kept, and fills nothing with it
    text = program.replace("MADE", made)
    # WHEN it is diagnosed
    codes, fix = told(text.replace("FILL", "pass"), tmp_path)
    # THEN the variable is told with a copy to what the graph reads
    assert codes == ["stale-input"]
    assert "gate" in fix
    assert ".copy_(" in fix
    # AND nothing is told where that is there
    assert told(text.replace("FILL", PROGRAMS[program]), tmp_path) == ([], "")


@pytest.mark.parametrize("program", ALONE)
def test_the_same_is_told_of_a_wrapper_asked_alone(program: str, tmp_path: Path) -> None:
    # GIVEN such a wrapper, of which all calls are given the same numbers
    text = program.replace("MADE", "(x > 0).float()")
    # WHEN it is diagnosed
    # THEN what is computed of its argument is told, if nothing copies it
    assert told(text.replace("FILL", "pass"), tmp_path, alone=True)[0] == ["stale-input"]
    assert told(text.replace("FILL", PROGRAMS[program]), tmp_path, alone=True)[0] == []


@pytest.mark.parametrize("made", ["torch.linspace(0, 1, 6, device=device)", "torch.ones_like(x)"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_the_same_in_each_call_may_be_made_anew(program: str, made: str, tmp_path: Path) -> None:
    # GIVEN a program of which each call makes a constant that its capture reads, and that is kept
    text = program.replace("MADE", made).replace("FILL", "pass")
    # WHEN it is diagnosed, and its wrapper alone
    # THEN nothing is told
    assert told(text, tmp_path) == ([], "")
    assert program not in ALONE or told(text, tmp_path, alone=True)[0] == []
