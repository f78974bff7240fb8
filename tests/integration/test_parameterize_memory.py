"""Memory that inputs share by storages that do not know of one another, and what refused calls keep of it."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch.utils.dlpack import from_dlpack

import paramgraph_kit as pgk

CALLS = 4


def values(n: int) -> torch.Tensor:
    return torch.arange(4.0, device=pgk.device()) + n


@pytest.mark.parametrize("other", ["an argument", "a parameter"])
@pytest.mark.parametrize("late", [False, True])
def test_memory_that_two_storages_share_is_not_taken_for_two(other: str, late: bool) -> None:
    # GIVEN a function that writes its argument, and then reads another one and a parameter
    model = torch.nn.Linear(4, 4).to(pgk.device()).requires_grad_(False)

    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2 + model.weight.sum()

    # WHEN it is given memory that it knows by another storage, at first or once there are graphs
    rows = []
    for wrap in (call, pgk.parameterize(call)):
        torch.nn.init.ones_(model.weight)
        results = []
        for n in range(2 * CALLS):
            x = values(n)
            y = values(n + 1)
            if n % 2 and (n > CALLS) >= late:
                x, y = (x, from_dlpack(x)) if other == "an argument" else (from_dlpack(model.weight), y)
            results.append((wrap(x, y).tolist(), x.tolist(), y.tolist(), model.weight.tolist()))
        rows.append(results)

    # THEN what one is written is read of the other
    assert rows[0] == rows[1]


@pytest.mark.parametrize("refused", ["reads a value", "a tensor that is no input"])
def test_a_refused_call_keeps_nothing_of_what_it_was_given(refused: str) -> None:
    # GIVEN a function that no trace can have, which hears of that from a stand-in
    own = torch.ones(4, device=pgk.device())
    places = [own]

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * float(x.sum()) if refused == "reads a value" else x * places[0]

    step = pgk.parameterize(function)
    for _ in range(3):
        # WHEN it is called, and what it was given is let go THEN that is gone
        x = torch.ones(4, device=pgk.device())
        known = weakref.ref(x)
        step(x)
        del x
        gc.collect()
        assert known() is None
    assert pgk.report(step).reasons
