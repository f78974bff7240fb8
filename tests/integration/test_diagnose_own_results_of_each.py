"""Lists that captures fill with a result each: no log, and results as any other."""

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
PROGRAM = """
net = nn.Linear(4, 4).to(device).requires_grad_(False)
class Pipe:
    def __init__(self):
        self.graphs, self.outs, self.seen, self.work = [], [], [], cuda.Stream()
        self.slots = [torch.zeros(2, 4, device=device) for _ in range(2)]
        for slot in self.slots:
            net(slot)
            g = cuda.CUDAGraph()
            with cuda.graph(g):
                FILLED
            self.graphs.append(g)
    def run(self, batches):
        results = []
        for i, batch in enumerate(batches):
            k = i % 2
            self.slots[k].copy_(batch)
            LAUNCHED
            results.append(READ)
        return results
pipe = Pipe()
batches = [torch.randn(2, 4, device=device) for _ in range(4)]
def main():
    return torch.stack(Pipe().run(batches)).cpu()
"""
APPENDED = "self.outs.append(net(slot).relu())"
PLAIN, AHEAD, BEHIND = (
    "self.graphs[k].replay()",
    "self.work.wait_stream(cuda.current_stream())",
    ("cuda.current_stream().wait_stream(self.work)"),
)
ASIDE = f"with cuda.stream(self.work): {PLAIN}"


def _names(tmp_path: Path, filled: str, launched: str, read: str) -> dict[str, object]:
    text = PROGRAM.replace("FILLED", filled).replace("READ", read)
    return load(PRELUDE + text.replace("LAUNCHED", launched.replace("; ", "\n            ")), tmp_path / "program.py")


@pytest.mark.parametrize(
    "filled",
    [
        APPENDED,
        pytest.param("self.outs += [net(slot)]", marks=pytest.mark.sweep),
        pytest.param("y = net(slot); self.outs.append(y)", marks=pytest.mark.sweep),
    ],
)
def test_an_entry_for_each_graph_is_no_log(filled: str, tmp_path: Path) -> None:
    # GIVEN captures that append a result each, which replays read by the number of the graph WHEN diagnosed
    names = _names(tmp_path, filled, PLAIN, "self.outs[k].clone()")
    # THEN nothing is told
    assert not pgk.diagnose(names["main"]).failures


@pytest.mark.sweep
def test_a_log_is_told(tmp_path: Path) -> None:
    # GIVEN a list beside it that is only read as a whole WHEN diagnosed
    names = _names(
        tmp_path, f"{APPENDED}\n                self.seen.append(self.outs[-1])", PLAIN, "self.outs[k].clone()"
    )
    # THEN its line is told
    assert [f.code for f in pgk.diagnose(names["main"]).failures] == ["output-alias"]


@pytest.mark.parametrize(
    ("launched", "read", "told"),
    [
        (PLAIN, "self.outs[k]", True),
        (f"{AHEAD}; {ASIDE}", "self.outs[k].clone()", True),
        pytest.param(f"{AHEAD}; {ASIDE}; {BEHIND}", "self.outs[k].clone()", False, marks=pytest.mark.sweep),
        pytest.param(PLAIN, "self.outs[k].clone()", False, marks=pytest.mark.sweep),
    ],
)
def test_what_lists_have_of_captures_of_before_are_results(
    launched: str, read: str, told: bool, tmp_path: Path
) -> None:
    # GIVEN the same captured before, whose results are kept, or read on a stream that does not wait WHEN asked alone
    names = _names(tmp_path, APPENDED, launched, read)
    found = pgk.diagnose(names["pipe"].run, names["batches"]).failures  # type: ignore[attr-defined]
    # THEN the line that reads is told where that is wrong
    assert bool(found) == told
    assert any(f.frame is not None and f.frame.text == f"results.append({read})" for f in found) == told
