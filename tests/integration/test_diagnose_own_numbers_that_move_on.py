"""A number among ``*args`` that moves on in the loop around: no graph for each value, as none comes twice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
GRAPHED = """
def graphed(fn):
    cache = {}
    def wrapper(x, *rest):
        key = tuple(x.shape)
        if key not in cache:
            held = x.clone()
            graph = cuda.CUDAGraph()
            MADE
            with cuda.graph(graph):
                out = fn(held, *rest)
            cache[key] = graph, held, out
        graph, held, out = cache[key]
        held.copy_(x)
        graph.replay()
        return out.clone()
    return wrapper
def soft(x, t):
    return torch.softmax(-x / t, 0)
def main(of=graphed):
    f, t, found = of(soft), 4.0, []
    for i in range(5):
        found.append(f(torch.arange(4.0, device=device) * (i + 1), t))
        NEXT
    return torch.stack(found)
"""


def told(follows: str, folder: Path) -> tuple[str, str]:
    """What is said, and told, of the number."""
    main = run(GRAPHED.replace("            MADE\n", "").replace("NEXT", follows), folder)["main"]
    (found,) = [f for f in pgk.diagnose(main).failures if f.code == "scalar-frozen"]
    return found.message, found.fix


@pytest.mark.parametrize("follows", ["t *= 0.8", pytest.param("t = t + 0.5", marks=pytest.mark.sweep)])
def test_a_number_that_moves_on_is_told_as_a_tensor_of_the_graph(follows: str, tmp_path: Path) -> None:
    # GIVEN a number that each round of a loop moves on
    # WHEN the program is diagnosed, and the words are followed
    said, fix = told(follows, tmp_path)
    assert "rest[0] of wrapper" in said
    assert "goes into the key" not in fix
    made, filled = re.findall(r"`(graph\.rest_0[^`]*)`", fix)
    text = GRAPHED.replace("MADE", made).replace("graph.replay()", f"{filled}; graph.replay()")
    text = text.replace("fn(held, *rest)", "fn(held, graph.rest_0)").replace("NEXT", follows)
    (tmp_path / "mended").mkdir()
    main = run(text, tmp_path / "mended")["main"]
    # THEN the graph gives what the function gives
    assert torch.allclose(main(), main(lambda fn: fn))


@pytest.mark.sweep
def test_a_number_that_comes_again_has_a_graph_for_each(tmp_path: Path) -> None:
    # GIVEN one of two numbers in turn
    # WHEN the program is diagnosed
    # THEN it goes into the key
    assert "goes into the key" in told("t = 2.0 if i % 2 else 4.0", tmp_path)[1]
