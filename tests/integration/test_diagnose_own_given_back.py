"""A call that finds its graph in a cache, and names its buffers by what is there: they are those of the capture."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load, quiet

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAM = """
def build(net):
    held, others = {}, []
    @torch.no_grad()
    def call(x):
        FIND
            static = x.clone()
            def body():
                return net(static) * 2
            body()
            graph = cuda.CUDAGraph()
            with cuda.graph(graph):
                out = body()
            KEEP
        TAKE
        static.copy_(x)
        graph.replay()
        return out.clone()
    return call

@torch.no_grad()
def main():
    torch.manual_seed(0)
    call = build(torch.nn.Linear(6, 6).to(device))
    return [call(torch.randn(4, 6).to(device)).cpu() for _ in range(4)]
"""
FOUND = "if x.shape not in held:"
WAYS = {
    "a tuple": (FOUND, "held[x.shape] = graph, static, out", "graph, static, out = held[x.shape]"),
    "a named tuple": (
        FOUND,
        "entry = (graph, static, out)\n            held[x.shape] = entry",
        "graph, static, out = held[x.shape]",
    ),
    "an entry that is asked for": (
        "entry = held.get(x.shape)\n        if entry is None:",
        "held[x.shape] = entry = (graph, static, out)",
        "graph, static, out = entry",
    ),
    "a dictionary": (
        FOUND,
        "held[x.shape] = {'graph': graph, 'static': static, 'out': out}",
        "kept = held[x.shape]; graph, static, out = kept['graph'], kept['static'], kept['out']",
    ),
    "words of one": (
        "if not held:",
        "held.update(graph=graph, static=static, out=out)",
        "graph = held['graph']; static = held['static']; out = held['out']",
    ),
    "entries": (
        "if not held:",
        "held['graph'], held['static'], held['out'] = graph, static, out",
        "graph, static, out = held['graph'], held['static'], held['out']",
    ),
}


def told(find: str, keep: str, take: str, file: Path) -> list[tuple[str, str]]:
    """What is told of a program that finds its graph so, with the lines."""
    text = PROGRAM.replace("FIND", find).replace("KEEP", keep).replace("TAKE", take)
    with quiet():
        found = pgk.diagnose(load(PRELUDE + text, file)["main"]).failures
    return [(f.code, f.message) for f in found]


@pytest.mark.parametrize("way", WAYS)
def test_what_was_put_into_a_cache_comes_back(way: str, tmp_path: Path) -> None:
    # GIVEN a call that keeps a graph and its buffers in a cache, and takes them from there
    # WHEN it is diagnosed THEN no buffer is told as another one
    assert told(*WAYS[way], tmp_path / "program.py") == []


@pytest.mark.parametrize(
    ("keep", "take"),
    [
        ("held[x.shape] = graph, static.clone(), out", "graph, static, out = held[x.shape]"),
        ("held[x.shape] = graph, static, out; others.append(x.clone())", "static = others[0]"),
        ("held[x.shape] = graph, static, out", "graph, static, out = held[x.shape]; static = static.clone()"),
    ],
)
def test_another_buffer_is_told(keep: str, take: str, tmp_path: Path) -> None:
    # GIVEN the same, where what is taken is not what the graph reads
    # WHEN it is diagnosed
    found = told(FOUND, keep, take if "graph" in take else f"graph, _, out = held[x.shape]; {take}", tmp_path / "p.py")
    # THEN that is told
    assert [code for code, _ in found] == ["stale-input"]
    assert "static" in found[0][1]
