"""Tables of graphs, one for each shape, that are captured with what the caller has given."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
ENCODER = """
class Encoder:
    def __init__(self):
        self.net, self.graph, self.seen = nn.Linear(4, 2).to(device), None, {}
        self.graphs = {}
    @torch.no_grad()
    def __call__(self, x):
        key = tuple(x.shape)
        if MISSING:
            s = cuda.Stream()
            s.wait_stream(cuda.current_stream())
            with cuda.stream(s):
                self.net(x)
            cuda.current_stream().wait_stream(s)
            GRAPH = cuda.CUDAGraph()
            with cuda.graph(GRAPH):
                y = self.net(x)
            KEPT
        graph, y, *_ = FOUND
        graph.replay()
        return y.clone()
encoder = Encoder()
"""
TABLE = {"MISSING": "key not in self.graphs", "GRAPH": "graph", "FOUND": "self.graphs[key]"}
ONE = {
    "MISSING": "self.graph is None",
    "GRAPH": "self.graph",
    "FOUND": "self.graph, self.y",
    "KEPT": "self.y, self.seen[key] = y, 1",
}
PLAIN, HOLDING = "self.graphs[key] = (graph, y)", "graph.reads = (x,); self.graphs[key] = (graph, y)"
FOLLOWED = (
    ("        self.graphs = {}\n", "        self.graphs = {}\n        self.held_x = {}\n"),
    (
        "            graph = cuda.CUDAGraph()",
        "            self.held_x[key] = x.clone()\n            graph = cuda.CUDAGraph()",
    ),
    ("                y = self.net(x)", "                y = self.net(self.held_x[key])"),
    ("        graph.replay()", "        self.held_x[key].copy_(x)\n        graph.replay()"),
)


def _text(form: dict[str, str], kept: str = PLAIN) -> str:
    text = ENCODER
    for mark, words in {**form, "KEPT": form.get("KEPT", kept)}.items():
        text = text.replace(mark, words)
    return PRELUDE + text


def _given(rows: int) -> torch.Tensor:
    return torch.randn(rows, 4).to(pgk.device())


def test_each_graph_of_a_table_gets_a_tensor_of_its_own_for_what_it_is_given(tmp_path: Path) -> None:
    # GIVEN a table of graphs by shape, which read what the caller has given
    names = load(_text(TABLE), tmp_path / "program.py")
    # WHEN it is diagnosed at its first call
    (told,) = pgk.diagnose(names["encoder"], _given(2)).failures
    # THEN the words have a tensor for each key
    assert told.code == "stale-input"
    assert "`self.held_x = {}` beside line" in told.fix
    assert "`self.held_x[key] = x.clone()`" in told.fix
    assert "before this line comes `self.held_x[key].copy_(x)`" in told.fix
    # AND when they are followed, all shapes compute what they are given, and nothing is left to tell
    text = _text(TABLE)
    for old, new in FOLLOWED:
        assert text.count(old) == 1
        text = text.replace(old, new)
    encoder = load(text, tmp_path / "followed.py")["encoder"]
    for rows in (2, 3, 2, 3):
        x = _given(rows)
        assert torch.equal(encoder(x), encoder.net(x))
    assert not pgk.diagnose(encoder, _given(2)).failures


def test_what_a_table_of_graphs_reads_and_is_freed_is_kept_for_each_key(tmp_path: Path) -> None:
    # GIVEN the same, whose first arguments are gone
    names = load(_text(TABLE), tmp_path / "program.py")
    for rows in (2, 3):
        names["encoder"](_given(rows))
    # WHEN it is diagnosed then THEN what is freed is told with the words for each key, and no attribute holds one
    (told,) = pgk.diagnose(names["encoder"], _given(2)).failures
    assert told.code == "freed-input"
    assert "ahead of the replay comes `self.held_x[key].copy_(x)`" in told.fix
    assert "self.inputs" not in told.fix


@pytest.mark.parametrize("own", [False, True])
def test_an_argument_that_only_the_capture_reads_is_told_also_later(own: bool, tmp_path: Path) -> None:
    # GIVEN the same, with graphs that keep what they read
    names = load(_text(TABLE, HOLDING), tmp_path / "program.py")
    x, new = _given(2), _given(2)
    names["encoder"](x)
    names["encoder"](_given(3))
    # WHEN it is diagnosed with another tensor, or with the one that its graph reads
    found = pgk.diagnose(names["encoder"], x if own else new).failures
    # THEN the other one is told, which nothing reads
    assert [f.code for f in found] == ["stale-input"][: not own], found


def test_a_single_graph_beside_another_table_has_one_tensor(tmp_path: Path) -> None:
    # GIVEN an object with one graph, which counts shapes in a table
    names = load(_text(ONE), tmp_path / "program.py")
    # WHEN it is diagnosed THEN its input is one attribute
    (told,) = pgk.diagnose(names["encoder"], _given(2)).failures
    assert "before this line comes `self.held_x.copy_(x)`" in told.fix
