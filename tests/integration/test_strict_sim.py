"""Options that make it an error to run anything ungraphed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import paramgraph_kit as pgk
from paramgraph_kit.driver.select import driver
from paramgraph_kit.launch.code import PartitionCode
from paramgraph_kit.launch.launcher import MAX_SCALARS, Launcher, Options
from paramgraph_kit.trace.errors import RefusedError, UnsupportedError

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
DEVICE = driver().device


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def detour(x: Tensor) -> Tensor:
    return (x * 2).cpu().relu().to(x.device) + 1


def test_a_place_that_is_in_no_graph_is_an_error_at_its_line() -> None:
    # GIVEN a function with a detour over the host WHEN compiled strictly and called THEN the reason is the error
    compiled: Any = pgk.compile(detour, strict=True)
    for _ in range(2):
        with pytest.raises(Exception, match="a copy from sim to cpu") as found:
            compiled(torch.ones(4).to(DEVICE))
        assert "test_strict_sim.py" in str(found.value)
    # AND without, it is in the report
    loose: Any = pgk.compile(detour)
    assert loose(torch.ones(4).to(DEVICE)).tolist() == [3.0] * 4
    assert "a copy from sim to cpu" in str(pgk.report(loose))


def test_too_many_numbers_are_an_error_at_every_call() -> None:
    # GIVEN a partition that is called with as many numbers as it may have
    launcher = Launcher(driver(), PartitionCode("test", lambda inputs: (inputs[0] * inputs[1],)), Options(strict=True))
    for n in range(MAX_SCALARS):
        launcher([torch.ones(4).to(DEVICE), 0.5 + n])
    for n in (90, 90, 91):
        # WHEN called with others THEN it is an error each time
        with pytest.raises(RefusedError) as found:
            launcher([torch.ones(4).to(DEVICE), n + 0.5])
        assert found.value.reason.code == "changing-scalar"
    # AND the first still run from graphs
    assert launcher([torch.ones(4).to(DEVICE), 0.5])[0].tolist() == [0.5] * 4


def test_what_cannot_be_captured_is_an_error_at_every_call() -> None:
    # GIVEN a partition that waits for the device
    def waits(inputs: list[Any]) -> tuple[Tensor]:
        return (inputs[0] * inputs[0].sum().item(),)

    launcher = Launcher(driver(), PartitionCode("test", waits), Options(strict=True))
    # WHEN called again and again THEN it does not fall silent after the first
    for _ in range(3):
        with pytest.raises(RefusedError) as found:
            launcher([torch.ones(4).to(DEVICE)])
        assert found.value.reason.code == "capture-failed"


def test_what_cannot_be_traced_is_an_error_at_every_call() -> None:
    # GIVEN a function whose host needs a value
    step = pgk.parameterize(lambda x: x * 2 if x.sum().item() > 0 else x, strict=True)
    # WHEN called THEN each call fails
    for _ in range(2):
        with pytest.raises(RefusedError, match="the host needs a value that is on the device"):
            step(torch.ones(4).to(DEVICE))


def test_what_can_be_graphed_is_as_ever_and_a_choice_is_no_error() -> None:
    # GIVEN a function of one partition
    for more in ({}, {"select": "never"}, {"verify": "always"}):
        compiled: Any = pgk.compile(lambda x: x * 2 + 1, strict=True, **more)
        # WHEN called THEN nothing is raised
        assert [compiled(torch.full((4,), float(n)).to(DEVICE)).tolist() for n in range(3)] == [
            [2.0 * n + 1] * 4 for n in range(3)
        ]


def test_another_value_is_refused_in_one_line() -> None:
    # GIVEN a value that is no bool WHEN compile is called THEN it says what to give
    with pytest.raises(UnsupportedError, match=r"^strict='yes': give True or False$"):
        pgk.compile(detour, strict="yes")


def test_random_numbers_that_stay_on_the_host_are_no_reason_to_refuse() -> None:
    # GIVEN a partition one of whose inputs ungraphed code reads on the host and a graph on the device
    def run(inputs: list[Any]) -> tuple[Tensor]:
        x, seed = inputs
        return (x + seed.to(x.device),)

    launcher = Launcher(driver(), PartitionCode("test", run, host_seeds=(1,)), Options(strict=True))
    x = torch.ones(4).to(DEVICE)
    # WHEN what made it was ungraphed, so that it comes on the host THEN the call runs ungraphed too, without an error
    for n in range(3):
        assert launcher([x, torch.tensor(float(n))])[0].tolist() == [1.0 + n] * 4
    assert (launcher.ungraphed_calls, launcher.reasons, launcher.variants) == (3, [], {})
    # AND on the device it is captured and launched
    for n in range(3):
        assert launcher([x, torch.tensor(float(n)).to(DEVICE)])[0].tolist() == [1.0 + n] * 4
    assert launcher.ungraphed_calls == 4
