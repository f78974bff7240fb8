"""What the host keeps and draws is put back between runs, or no comparison of two runs means anything."""

from __future__ import annotations

import os
import random
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import changed

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device")


class Host:
    """What a user's object keeps on the host, and draws from."""

    def __init__(self) -> None:
        self.numpy = np.random.default_rng(0)
        self.older = np.random.RandomState(0)
        self.python = random.Random(0)
        self.torch = torch.Generator().manual_seed(0)
        self.array = np.ones(4, dtype=np.float32)
        self.turned = np.ones((2, 2)).T
        self.plain = array("d", [1.0])
        self.bytes = bytearray(b"a")


@pytest.fixture
def host() -> Iterator[Host]:
    yield Host()
    pgk.diagnose.repair()


DRAWS = {
    "numpy's": lambda host: host.numpy.random(),
    "numpy's of old": lambda host: host.older.rand(),
    "Python's": lambda host: host.python.random(),
    "torch's": lambda host: torch.rand((), generator=host.torch).item(),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_generator_of_one_s_own_is_found_and_put_back(draw: Any, host: Host) -> None:
    # GIVEN a step that is weighted by a number from a generator of the user's
    def f(x: torch.Tensor) -> Any:
        return x * draw(host)

    expected = draw(Host())
    # WHEN looked at THEN the frozen number is found
    found = pgk.diagnose(f, torch.ones(4, device=pgk.device()))
    assert [failure.code for failure in found.failures] in (["scalar-frozen"], ["host-random"])
    # AND told as a story THEN there is something to compare, and the capture as it is is wrong
    story = pgk.story(f, torch.ones(4, device=pgk.device()), say=None)
    assert "24 values of results" in str(story)
    assert "replays go wrong" in str(story)
    # AND the generator stands where it stood
    assert draw(host) == expected


@pytest.mark.parametrize("name", ["array", "turned", "plain", "bytes"])
def test_an_array_that_is_written_in_place_is_put_back(name: str, host: Host) -> None:
    # GIVEN a function that reads an array of the host and writes it
    def f(x: torch.Tensor) -> Any:
        kept = getattr(host, name)
        y = x * float(kept[0] if name != "turned" else kept[0][0])
        kept[0] += 1
        return y

    # WHEN told THEN there is something to compare
    story = pgk.story(f, torch.ones(4, device=pgk.device()), say=None)
    assert "24 values of results" in str(story)
    assert not story.complete or story.fix is not None
    # AND it holds what it held
    assert np.asarray(getattr(host, name)).ravel()[0] == np.asarray(getattr(Host(), name)).ravel()[0]


def test_what_cannot_be_put_back_proves_nothing() -> None:
    # GIVEN a result that no two runs share
    def f(x: torch.Tensor) -> Any:
        return x * os.urandom(2)[0]

    # WHEN told THEN it says so, and claims nothing
    story = pgk.story(f, torch.ones(4, device=pgk.device()), say=None)
    assert not story.complete
    assert "two runs from one state give other results" in str(story)
    assert "bit for bit" not in str(story)


def test_a_scheduler_s_momentum_is_named() -> None:
    # GIVEN a scheduler that moves the momentum with the rate
    model = torch.nn.Linear(4, 1).to(pgk.device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=50)

    def f(x: torch.Tensor) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.detach()

    # WHEN mended THEN it is named, and what reads the momentum runs behind the launch with its scheduler
    found = pgk.diagnose(f, torch.randn(8, 4, device=pgk.device()), fix=True)
    assert any(failure.message.startswith("momentum goes from") for failure in found.failures)
    assert found.fix is not None
    assert found.fix.complete
    behind = str(found.fix).partition("def after_f(loss):")[2]
    assert "optimizer.step()" in behind
    assert "scheduler.step()" in behind
    # AND what makes the optimizer stays as it is, and why its step is not in the graph is told
    assert "torch.optim.SGD" not in "".join(changed(found.fix.diff))
    assert "with `cycle_momentum=False` it can be in the graph" in str(found.fix)


def test_a_list_that_is_a_default_is_told_and_put_back() -> None:
    # GIVEN functions that keep numbers in a list which is the default of a parameter, positional or by name alone
    def one(x: torch.Tensor, seen: list[int] = []) -> torch.Tensor:  # noqa: B006 - as users have it
        seen.append(len(seen))
        return x * 2

    def other(x: torch.Tensor, *, kept: dict[str, int] = {}) -> torch.Tensor:  # noqa: B006
        kept["calls"] = kept.get("calls", 0) + 1
        return x * 2

    for function in (one, other):
        # WHEN they are diagnosed, with a fix THEN it is told as any state of Python's, and afterwards as before
        found = pgk.diagnose(function, torch.ones(2, device=pgk.device()), fix=True)
        assert set(found.codes) == {"host-counter"}
        assert found.fix is not None
        assert found.fix.complete
    assert one.__defaults__ == ([],)
    assert other.__kwdefaults__ == {"kept": {}}
