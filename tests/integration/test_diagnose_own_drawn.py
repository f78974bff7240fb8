"""What is said where a warm-up draws from a generator that replays go on drawing from, and where that is put back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.driver.sim.libraries import forget
from tests.programs.reading import PRELUDE, read
from tests.programs.running import diagnosed, load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAMS = read(Path(__file__).parents[1] / "programs" / "own_graphs" / "fiftyfourth_drawn.txt")
MOVED = {
    "sampler whose warm-up": "self.gen",
    "main with a generator of its own": "gen",
    "captured in the constructor, warm-up": "self.gen",
    "seeded anew behind the warm-up": "",
    "eager steps that count": "",
    "the state is put back": "",
}


@pytest.mark.parametrize("title", MOVED)
def test_a_warm_up_that_moves_a_generator_is_said_and_how_it_is_put_back(title: str, tmp_path: Path) -> None:
    # GIVEN a graph that draws, with a warm-up that draws as well, or eager steps that count
    # WHEN it is diagnosed
    found = diagnosed(PROGRAMS, title, tmp_path / "program.py")
    # THEN what was moved is said with the lines that put it back, and nothing else is
    assert not found.failures
    said = [note for note in found.notes if "draws from" in note]
    assert len(said) == bool(MOVED[title])
    assert all(f"`{MOVED[title]}.set_state(state)` behind it" in note for note in said)


def test_the_warm_up_of_our_own_words_puts_generators_back(tmp_path: Path) -> None:
    # GIVEN a process that has used no library yet, and a capture that draws from a generator
    text = PRELUDE + (
        "def main():\n"
        "    gen = torch.Generator(device=device).manual_seed(3)\n"
        "    w, x = torch.eye(4, device=device), torch.ones(4, 4, device=device)\n"
        "    g = cuda.CUDAGraph()\n"
        "    g.register_generator_state(gen)\n"
        "    with cuda.graph(g):\n"
        "        y = x @ w + torch.randn(4, 4, device=device, generator=gen)\n"
        "    g.replay()\n"
        "    return y.clone()\n"
    )
    names = load(text, tmp_path / "program.py")
    pgk.device()
    forget()
    # WHEN
    told = next(f for f in pgk.diagnose(names["main"]).failures if f.code == "cold-library")
    # THEN its words keep the state, and set it behind the warm-up
    assert "state = gen.get_state(); " in told.fix
    assert "put back what that moves (`gen`, `gen.set_state(state)`)" in told.fix
