"""Lines that give gradients, or states, other memory, and the same in place, by the names that a program has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.cleared import clearing, gradients_given
from paramgraph_kit.doctor.observe.moved_words import as_replayed
from paramgraph_kit.trace.model import Frame


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("p.grad = None", "p.grad.zero_()"),
        ("p.grad = new", "p.grad.copy_(new)"),
        ("p.grad.copy_(new)", ""),
    ],
)
def test_gradients_that_are_exchanged_are_written_in_place(line: str, after: str, tmp_path: Path) -> None:
    # GIVEN a function that gives a gradient something else
    (file := tmp_path / "program.py").write_text(f"def step(p, new):\n    {line}\n")
    names: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    # WHEN its lines are looked at
    found = [words for _, words in gradients_given(names["step"].__code__)]
    # THEN each has the same in place
    assert found == ([after] if after else [])


@pytest.mark.parametrize(
    ("line", "held"),
    [
        ("opt.state.clear()", "opt.state.values()"),
        ("opt.state = defaultdict(dict)", "opt.state.values()"),
        ("opt.state[p] = {}", "opt.state[p].values()"),
        ("opt.state[p]['step'] = 0", ""),
        ("cache.clear()", ""),
    ],
)
def test_states_that_are_emptied_are_zeroed(line: str, held: str, tmp_path: Path) -> None:
    # GIVEN a file in which something is emptied
    (file := tmp_path / "program.py").write_text(f"def reset(opt, p):\n    {line}\n")
    # WHEN it is looked through
    found = [*clearing(str(file))]
    # THEN the states of optimizers among it are told, with the function around them
    assert [(at, function) for at, function, _, _ in found] == ([(2, "reset")] if held else [])
    assert not held or held in found[0][3]


@pytest.mark.parametrize("call", ["og.replay()", "self.g.replay()"])
def test_a_replay_of_the_programs_own_stays_as_it_is(call: str, tmp_path: Path) -> None:
    # GIVEN a program whose graph has a name that ends as that of the examples does
    (file := tmp_path / "program.py").write_text(f"def step(self):\n    {call}\n")
    told = BY_ID["gradients-rebound"].failure("other gradients", Frame(str(file), 2, "step", call))
    told = replace(told, fix=f"before  {call}\nafter   p.grad.zero_(), ahead of g.replay()")
    # WHEN the words are given the program's names
    (found,) = as_replayed([told], [str(file)])
    # THEN only the example's name is exchanged
    assert found.fix == f"before  {call}\nafter   p.grad.zero_(), ahead of {call}"
