"""Numbers in the keywords of a function that is graphed by its tensors alone: they go into tensors of the graph's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
GRAPHED = """
def graphed(fn):
    cache = {}
    def call(*tensors, **options):
        key = tuple(t.shape for t in tensors)
        if key not in cache:
            static = [t.clone() for t in tensors]
            fn(*static, **options)
            graph = cuda.CUDAGraph()
            # ahead
            with cuda.graph(graph):
                out = fn(*static, **options)
            cache[key] = graph, static, out
        graph, static, out = cache[key]
        for s, t in zip(static, tensors):
            s.copy_(t)
        graph.replay()
        return out.clone()
    return call
def sharpen(x, y, amount=1.0, shift=0.0):
    return WORK
def main(is_graphed=True):
    torch.manual_seed(0)
    f = graphed(sharpen) if is_graphed else sharpen
    kept = []
    for i in range(6):
        x, y = torch.randn(2, 4).to(device), torch.randn(4).to(device)
        kept.append(f(x, y, amount=0.1 * (i + 1), shift=0.5))
    return kept
"""


@pytest.mark.parametrize("work", ["x + (amount + shift) * (x - y)", "(x + amount * (x - y)).clamp(0, 1)"])
def test_a_number_of_a_keyword_that_nothing_copies_is_filled_into_a_tensor_of_the_graph(
    work: str, tmp_path: Path
) -> None:
    # GIVEN a wrapper that copies tensors, and hands keywords on
    text = GRAPHED.replace("WORK", work)
    main = run(text, tmp_path)["main"]
    # WHEN it is diagnosed, and the words are followed
    (told,) = pgk.diagnose(main).failures
    assert told.code == "scalar-frozen"
    made, filled = [each for each in told.fix.split("`")[1::2] if "graph.amount" in each]
    text = text.replace("            # ahead\n", f"            {made}\n").replace(
        "        graph.replay()", f"        {filled}\n        graph.replay()"
    )
    (tmp_path / "mended").mkdir()
    mended = run(text, tmp_path / "mended")["main"]
    # THEN its replays give what it gives without graphs
    for ours, eager in zip(mended(), main(is_graphed=False), strict=True):
        assert torch.allclose(ours, eager)
    assert not pgk.diagnose(mended).failures


def test_a_keyword_of_which_a_size_is_made_has_a_graph_for_each(tmp_path: Path) -> None:
    # GIVEN a keyword that is no number for a tensor WHEN it is diagnosed
    main = run(GRAPHED.replace("WORK", "x * len(range(int(10 * amount)))"), tmp_path)["main"]
    (told,) = pgk.diagnose(main).failures
    # THEN the table of graphs has it in its key
    assert "options.get('amount')" in told.fix


IN_A_TABLE = """
import torch
from torch import nn
import paramgraph_kit as pgk
cuda, device = pgk.cuda, pgk.device()

def graphed(function):
    state = {}
    def wrapper(x, mask=None):
        if "graph" not in state:
            state["x"] = x.clone()
            state["mask"] = mask
            function(state["x"], mask=mask)
            state["graph"] = cuda.CUDAGraph()
            with cuda.graph(state["graph"]):
                state["y"] = function(state["x"], mask=mask)
        state["x"].copy_(x)
        state["graph"].replay()
        return state["y"].clone()
    return wrapper

net = nn.Linear(4, 4).to(device)

@graphed
@torch.no_grad()
def encode(x, mask=None):
    return net(x).masked_fill(mask, 0.0)
"""


def test_an_entry_of_a_table_is_told_as_one(tmp_path: Path) -> None:
    # GIVEN a decorator whose table keeps an argument as it is, which its capture reads
    encode = load(IN_A_TABLE, tmp_path / "program.py")["encode"]
    x = torch.randn(2, 4, device=pgk.device())
    # WHEN
    found = pgk.diagnose(encode, x, mask=x > 0)
    # THEN its entry is written in place, and the table stays what it is
    assert [f.code for f in found.failures] == ["stale-input"]
    assert "`state['mask'] = mask.clone()`" in found.failures[0].fix
    assert "`state['mask'].copy_(mask)`" in found.failures[0].fix
