"""Numbers that one line gives its capture: a position and a temperature of a decoding step."""

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
DECODER = """
class Decoder:
    def __init__(self):
        self.cache, self.graph = torch.zeros(12, 4, device=device), None
        self.token = torch.zeros(4, device=device)
    def one(self, token, pos, temperature):
        WRITE
        return SUM / temperature
    def step(self, token, pos, temperature):
        if self.graph is None:
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.one(self.token, pos, temperature)
        self.token.copy_(token)
        self.graph.replay()
        return self.out.clone()
decoder = Decoder()
"""
ALL = DECODER.replace("SUM", "self.cache.sum(0)")
ADDED = ALL.replace("WRITE", "self.cache[0] = token * pos")
INDEX, WORDS = (
    ALL.replace("WRITE", "self.cache[pos] = token"),
    "an index, which the host would have to read from a tensor",
)
SLICE = DECODER.replace("SUM", "self.cache[: pos + 1].sum(0)").replace("WRITE", "self.cache[0] = token")


def _fixes(text: str, path: Path) -> dict[str, str]:
    decoder = load(PRELUDE + text, path)["decoder"]
    told = pgk.diagnose(decoder.step, torch.ones(4, device=pgk.device()), 0, 0.8, fix=True).failures
    return {f.message.split()[0]: f.fix for f in told if f.code == "scalar-frozen"}


def test_each_number_that_a_line_gives_its_capture_is_told(tmp_path: Path) -> None:
    # GIVEN a capture whose line is given a position and a temperature
    text = ADDED

    # WHEN it is diagnosed
    fixes = _fixes(text, tmp_path / "program.py")

    # THEN both are told, each with a tensor for it
    assert sorted(fixes) == ["pos", "temperature"]
    assert all(f"`self.held_{name}.fill_({name})`" in fix for name, fix in fixes.items())

    # AND when the words are followed, each call gives eager's numbers
    for name in fixes:
        made = f'            self.held_{name} = torch.full((), {name}, device="{pgk.device()}")\n'
        text = text.replace("            self.graph = cuda", f"{made}            self.graph = cuda")
        text = text.replace(
            "        self.graph.replay", f"        self.held_{name}.fill_({name})\n        self.graph.replay"
        )
    text = text.replace("self.token, pos, temperature", "self.token, self.held_pos, self.held_temperature")
    names = load(PRELUDE + text, tmp_path / "followed.py")
    other = names["Decoder"]()
    for i in range(10):
        given = torch.full((4,), i + 1.0, device=pgk.device()), i, 0.8 + i
        assert torch.allclose(names["decoder"].step(*given), other.one(*given))


@pytest.mark.parametrize(("text", "what"), [(INDEX, WORDS), (SLICE, "a size")])
def test_a_position_that_a_function_indexes_with_gets_a_graph_for_each(text: str, what: str, tmp_path: Path) -> None:
    # GIVEN the same, where the function that is captured picks an entry, or a slice, by the position
    # WHEN it is diagnosed
    fixes = _fixes(text, tmp_path / "program.py")

    # THEN no tensor is said for it, which the host would have to read
    assert f"`pos` is {what}, and each graph has one" in fixes["pos"]
    assert "`self.held_temperature.fill_(temperature)`" in fixes["temperature"]


COMPARED = """
class Gate:
    def __init__(self):
        self.limit, self.x = 0.5, torch.zeros(4, device=device)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.y = self.body()
    def body(self):
        p = torch.sigmoid(self.x)
        return (p > self.limit).METHOD
    def step(self, x, limit):
        self.limit = limit
        self.x.copy_(x)
        self.graph.replay()
        return self.y.clone()
gate = Gate()
"""


@pytest.mark.parametrize("method", ["float()", "sum()", "to(torch.int64)"])
def test_a_limit_that_tensors_are_compared_with_becomes_a_tensor(method: str, tmp_path: Path) -> None:
    # GIVEN a capture that compares with a number, and goes on with a tensor's method
    gate = load(PRELUDE + COMPARED.replace("METHOD", method), tmp_path / "program.py")["gate"]
    # WHEN
    (told,) = pgk.diagnose(gate.step, torch.ones(4, device=pgk.device()), 0.7).failures
    # THEN it is told as a tensor, and needs no graph for each value
    assert "here: self.limit.fill_(limit)" in told.fix


ROUNDS = """
class Rounds:
    def __init__(self):
        self.levels = [(0.1 * i, 1.0 + i, 2.0 - i) for i in range(4)]
    def update(self, x, NAMES):
        x.copy_(x * 0.5 + SUM if SUM < 99 else x)
    def run(self, start):
        x, graph, seen = start.clone(), None, []
        for i in range(4):
            NAMES = self.levels[i]PICK
            if graph is None:
                graph = cuda.CUDAGraph()
                with cuda.graph(graph):
                    self.update(x, NAMES)
            graph.replay()
            seen.append(x.clone())
        return seen
"""


@pytest.mark.parametrize(("names", "pick"), [("a, b", "[:2]"), ("a, b, c", "")])
def test_numbers_of_one_line_have_one_table_of_graphs(names: str, pick: str, tmp_path: Path) -> None:
    # GIVEN a loop that captures in its first round, with all numbers of a row
    text = ROUNDS.replace("NAMES", names).replace("SUM", names.replace(", ", " * ")).replace("PICK", pick)
    found = load(PRELUDE + text, tmp_path / "program.py")
    # WHEN
    told = pgk.diagnose(found["Rounds"]().run, torch.ones(4).to(found["device"])).failures
    # THEN the line has one key for all
    failure = next(f for f in told if f.code == "scalar-frozen")
    words = f"`if ({names}) not in graphs:` a new capture goes to `graphs[({names})]` with its results"
    assert failure.fix.count("a graph for each value") == 1
    assert words in failure.fix
