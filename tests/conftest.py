"""What all tests share: where the repository is, and skipping what this machine cannot run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parent.parent


LONG = frozenset(Path(__file__).with_name("long.txt").read_text(encoding="utf-8").splitlines())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark those of long.txt as sweeps. Skip tests marked ``gpu``, with the reason, where torch sees no CUDA device."""
    for item in items:
        if item.nodeid in LONG:
            item.add_marker("sweep")
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session", autouse=True)
def _device_before_any_backward() -> None:
    """Make the device first: autograd has a queue only for devices that exist at the process's first ``backward()``."""
    import paramgraph_kit

    if paramgraph_kit.device().type == "sim":
        from paramgraph_kit.driver.sim.guard import rest

        rest()  # the engine's thread has let go of what the first one had: no test counts that memory
    gc.collect()
    gc.freeze()  # what is imported by now: tests that collect garbage need not look at it again


@pytest.fixture
def sim() -> Any:
    """The device of this machine, as torch names it."""
    from paramgraph_kit.driver.select import device

    return device()


@pytest.fixture
def cuda(sim: Any) -> Iterator[Any]:
    """``torch.cuda`` or its simulated twin, put right after the test."""
    from paramgraph_kit.driver.select import twin

    yield twin()
    twin().recover()


@pytest.fixture
def recovered() -> Iterator[None]:
    """Put the process right after the test, whatever captures it has left behind."""
    yield
    import paramgraph_kit

    paramgraph_kit.diagnose.repair()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """What torch computes on the host it computes on one thread, as the device: several round transforms otherwise."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
