"""A warm-up that moves a state for good is noted, and one whose state is put back is not."""

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
PROGRAM = """import torch
import paramgraph_kit as pgk
cuda, device = pgk.cuda, pgk.device()
def main():
    x, average = torch.zeros(4, device=device), torch.zeros(4, device=device)
    def run():
        average.mul_(0.9).add_(x, alpha=0.1)
        return x * 2
    s = cuda.Stream()
    s.wait_stream(cuda.current_stream())
    with cuda.stream(s):
        run()
    cuda.current_stream().wait_stream(s)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = run()
    PUT_BACK
    for i in range(3):
        x.fill_(float(i))
        g.replay()
    return y.cpu(), average.cpu()
"""
MOVED = (
    "the warm-up at line 11 has moved `average`, and nothing puts that back ahead of the first replay: keep copies "
    "ahead of it, and copy_ it back in place ahead of the first replay, if replays are to begin where eager code would"
)


@pytest.mark.parametrize(("back", "noted"), [("pass", [MOVED]), ("average.zero_()", [])])
def test_a_warm_up_that_moves_a_state_is_noted(tmp_path: Path, back: str, noted: list[str]) -> None:
    # GIVEN a program whose warm-up runs what is captured, which moves an average; it may be put back
    names = load(PROGRAM.replace("PUT_BACK", back), tmp_path / "program.py")
    # WHEN it is diagnosed
    with quiet():
        found = pgk.diagnose(names["main"])
    # THEN a note says so, where it stays moved
    assert [note for note in found.notes if "warm-up" in note] == noted


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("average.mul_(0.9).add_(x, alpha=0.1)", "average.copy_(average * 0.9 + x * 0.1)"),
        ("with cuda.stream(s):", "for _ in range(3):"),
    ],
)
def test_a_state_may_be_written_by_a_copy_and_a_warm_up_have_no_stream(tmp_path: Path, line: str, other: str) -> None:
    # GIVEN the same, where the state is computed and copied, or where the warm-up is a plain loop
    names = load(PROGRAM.replace("PUT_BACK", "pass").replace(line, other), tmp_path / "program.py")
    # WHEN it is diagnosed
    with quiet():
        found = pgk.diagnose(names["main"])
    # THEN the same note says so
    assert [note for note in found.notes if "warm-up" in note] == [MOVED]


def test_no_zeros_begin_the_state_of_an_optimizer_whose_first_step_is_another_one(tmp_path: Path) -> None:
    # GIVEN an optimizer with dampening, which its first step does not have, and a capture that holds that step
    text = PROGRAM.replace("average.mul_(0.9).add_(x, alpha=0.1)", "w.grad = x.clone(); OPT").replace("OPT", "o.step()")
    text = text.replace(
        "    def run", "    w = torch.ones(4, device=device, requires_grad=True)\n    o = SGD\n    def run"
    )
    text = text.replace("SGD", "torch.optim.SGD([w], lr=0.1, momentum=0.9, dampening=0.1)").replace(
        "    with cuda.stream(s):\n        run()", "    pass"
    )
    names = load(text.replace("PUT_BACK", "pass"), tmp_path / "program.py")
    # WHEN it is diagnosed
    with quiet():
        found = pgk.diagnose(names["main"])
    # THEN the first step is said to be taken, not put back to zeros
    (fix,) = [f.fix for f in found.failures if f.code == "branch-frozen"]
    assert "the first batch runs as it is" in fix
    assert "v.zero_()" not in fix


SEVERAL = """import torch
import paramgraph_kit as pgk
cuda, device = pgk.cuda, pgk.device()
x = torch.ones(4, device=device)
def run():
    return x.clone().bernoulli_(0.5)
def main():
    state = cuda.get_rng_state()
    s = cuda.Stream()
    s.wait_stream(cuda.current_stream())
    with cuda.stream(s):
        run()
    cuda.current_stream().wait_stream(s)
    cuda.set_rng_state(state)
    graphs, kept = {}, []
    for n in (1, 2):
        for _ in range(2):
            if n not in graphs:
                g = cuda.CUDAGraph()
                with cuda.graph(g):
                    out = run()
                graphs[n] = g, out
            g, out = graphs[n]
            g.replay()
            kept.append(out.clone())
    return kept
"""


@pytest.mark.parametrize("is_put_back", [True, False])
def test_a_generator_that_was_put_back_is_so_for_graphs_that_come_behind_launches(
    tmp_path: Path, is_put_back: bool
) -> None:
    # GIVEN two graphs, of which the second is captured behind replays of the first, and a warm-up ahead of both
    text = SEVERAL if is_put_back else SEVERAL.replace("    cuda.set_rng_state(state)\n", "")
    names = load(text, tmp_path / "program.py")
    # WHEN it is diagnosed
    with quiet():
        found = pgk.diagnose(names["main"])
    # THEN what the warm-up has drawn is noted where nothing puts that back
    assert any("draws from the default generator" in note for note in found.notes) is not is_put_back
