"""Whole steps whose loops do something between the calls, beside twins without graphs: bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration import steps
from tests.integration.step_lives import LIVES
from tests.integration.test_step_sim import equal

STEPS = 18


def outcome(call: Any, program: steps.Program, number: int) -> Any:
    """What a step returns, or what it raises in words."""
    try:
        return call(*program.batch(number))
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("verify", ["off", pytest.param("first", marks=pytest.mark.sweep)])
@pytest.mark.parametrize("name", LIVES)
def test_what_happens_between_steps_counts(name: str, verify: str) -> None:
    # GIVEN a program and its twin
    ours, theirs = LIVES[name](), LIVES[name]()
    programs = ours, theirs
    calls = pgk.parameterize(ours.step, state=ours.state, verify=verify), theirs.step
    random = [pgk.cuda.get_rng_state()] * 2
    held: tuple[list[Any], list[Any]] = ([], [])
    # WHEN one runs from graphs
    for number in range(STEPS):
        for n, (call, program) in enumerate(zip(calls, programs, strict=True)):
            pgk.cuda.set_rng_state(random[n])
            held[n].append(outcome(call, program, number))
            program.between(number)
            random[n] = pgk.cuda.get_rng_state()
        # THEN results, random positions and state are the same after each step
        assert equal(held[0][-1], held[1][-1]), f"results of step {number} differ"
        assert torch.equal(*random), f"random positions after step {number} differ"
        assert equal(steps.values_of(ours), steps.values_of(theirs)), f"state after step {number} differs"
    # AND so are all that were kept, and it was launched
    assert equal(*held)
    assert sum(row.launches for row in pgk.report(calls[0]).rows) >= 4
