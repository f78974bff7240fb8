"""A number that a captured function reads, and the same function where no graph runs it: one tensor for both."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
WRITER = """
class Writer:
    def __init__(self):
        torch.manual_seed(0)
        self.w, self.heat, self.graph = torch.randn(4, 4, device=device), 1.0, None
        # made
    def pick(self, logits):
        logits = logits / self.heat
        top, _ = torch.topk(logits, 2)
        return logits.masked_fill(logits < top[:, -1:], -1e9).softmax(-1)
    def one(self, x, graphed):
        if not graphed:
            return self.pick(x @ self.w)
        if self.graph is None:
            self.x = x.clone()
            self.pick(self.x @ self.w)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.pick(self.x @ self.w)
        self.x.copy_(x)
        self.graph.replay()
        return self.out.clone()
    def write(self, x, heat, graphed):
        SET
        first = self.pick(x * 2)
        return [first, *(self.one(x + i, graphed) for i in range(3))]
def main(graphed=True):
    writer, results = Writer(), []
    for i, heat in enumerate((1.0, 0.5, 0.7)):
        GIVEN
        results += writer.write(torch.ones(2, 4).to(device) * i, heat, graphed)
    return results
"""


@pytest.mark.parametrize(
    ("line", "given"), [("self.heat = heat", "pass"), ("pass", "writer.heat = heat")], ids=["its own", "another's"]
)
def test_a_number_that_eager_lines_read_too_is_filled_where_it_is_given(line: str, given: str, tmp_path: Path) -> None:
    # GIVEN a number that a function of the capture reads, which another method calls without a graph
    text = WRITER.replace("SET", line).replace("GIVEN", given)
    main = run(text, tmp_path)["main"]
    # WHEN it is diagnosed, and the words are followed
    (told,) = pgk.diagnose(main).failures
    told_of = told.fix.split("`")[1::2]
    (made,), (ahead, filled) = ([t for t in told_of if each in t] for each in ("self.heat_in = ", ".fill_("))
    assert f"`{ahead}`, and behind this line `{filled}`" in told.fix
    whole = line if given == "pass" else given
    text = text.replace("# made", made).replace(whole, f"{whole}; {filled}")
    text = text.replace("logits / self.heat", "logits / self.heat_in")
    text = text.replace("self.graph.replay()", f"{ahead}; self.graph.replay()")
    (tmp_path / "mended").mkdir()
    mended = run(text, tmp_path / "mended")["main"]
    # THEN all numbers are those that it gives without graphs
    for ours, eager in zip(mended(), main(graphed=False), strict=True):
        assert torch.allclose(ours, eager)
    assert not pgk.diagnose(mended).failures
