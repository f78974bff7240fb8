"""Small kernels of the simulated device run on one thread, and leave torch's number of threads as it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from paramgraph_kit.driver.sim.threads import FEW, OnOneThread


@pytest.fixture
def threads() -> Iterator[int]:
    """Two threads, as on a host with several cores."""
    known = torch.get_num_threads()
    torch.set_num_threads(2)
    yield 2
    torch.set_num_threads(known)


@pytest.mark.parametrize(("numbers", "inside"), [(8, 1), (FEW + 1, 2)])
def test_only_small_kernels_run_on_one_thread(threads: int, numbers: int, inside: int) -> None:
    # GIVEN operands of an operation, alone and in a list WHEN a kernel runs on them
    for operands in ([torch.zeros(numbers)], [[torch.zeros(numbers - 1), torch.zeros(1)], 2.0]):
        with OnOneThread(operands):
            seen = torch.get_num_threads()
        # THEN few numbers have one thread, many have all of them, and afterwards so do all
        assert (seen, torch.get_num_threads()) == (inside, threads)


def test_a_kernel_that_raises_puts_the_threads_back(threads: int) -> None:
    # GIVEN a kernel that raises WHEN it has run
    with pytest.raises(RuntimeError, match="shapes"), OnOneThread([torch.zeros(2)]):
        raise RuntimeError("shapes")
    # THEN torch has its threads
    assert torch.get_num_threads() == threads


def test_the_device_computes_with_the_threads_of_the_host_left_alone(threads: int, cuda: object) -> None:
    # GIVEN a product on the simulated device
    import paramgraph_kit as pgk

    x = torch.ones(4, 4, device=pgk.device())
    # WHEN it is computed THEN nobody sees how many threads it had
    assert (x @ x).sum().item() == 64.0
    assert torch.get_num_threads() == threads
