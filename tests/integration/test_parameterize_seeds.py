"""Functions that seed a generator, or bring one back: they draw what eager draws, and so does who draws next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk

CALLS = 4
DEVICE = pgk.device()
OWN = torch.Generator(DEVICE)
Seeding = Callable[[], Any]  # a generator to draw from, None for the device's

cuda: Any = pgk.cuda
PLACE, STATE = cuda.get_rng_state(), OWN.get_state()


def on(generator: torch.Generator, seed: Seeding) -> torch.Generator:
    seed()
    return generator


SEEDING: dict[str, Seeding] = {
    "torch": lambda: torch.manual_seed(5) and None,
    "the device": lambda: cuda.manual_seed(5),
    "all devices": lambda: cuda.manual_seed_all(5),
    "a place of the device": lambda: cuda.set_rng_state(PLACE),
    "the device's generator": lambda: cuda.default_generators[0].manual_seed(5) and None,
    "a generator of the device": lambda: OWN.manual_seed(5),
    "a place of a generator": lambda: on(OWN, lambda: OWN.set_state(STATE)),
    "a new generator of the device": lambda: torch.Generator(DEVICE).manual_seed(5),
    "a new generator of the host": lambda: torch.Generator().manual_seed(5),
    "the host's generator": lambda: on(torch.default_generator, lambda: torch.default_generator.manual_seed(5)),
}


@pytest.mark.parametrize("whole", [False, True], ids=["function", "step"])
@pytest.mark.parametrize("name", SEEDING)
def test_a_seed_is_set_by_each_call(name: str, whole: bool) -> None:
    # GIVEN a function that seeds a generator and draws from it
    def call(x: torch.Tensor) -> torch.Tensor:
        generator = SEEDING[name]()
        if generator is None:
            return x + torch.rand(4, device=x.device)
        return x + torch.rand(4, device=generator.device, generator=generator).to(x.device)

    # WHEN it is called several times, and more is drawn between
    found = []
    for function in (call, pgk.parameterize(call, state=[]) if whole else pgk.parameterize(call)):
        torch.manual_seed(3)
        OWN.manual_seed(4)
        rows: list[Any] = []
        for k in range(CALLS):
            rows.append(function(torch.full((4,), float(k), device=DEVICE)).tolist())
            rows.append((torch.rand(2, device=DEVICE).tolist(), torch.rand(2).tolist()))
            rows.append(torch.rand(2, device=DEVICE, generator=OWN).tolist())
        found.append(rows)

    # THEN all numbers are eager's
    assert found[0] == found[1]
