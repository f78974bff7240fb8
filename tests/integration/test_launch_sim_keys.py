"""Which graph a call is for: asked of all its tensors at once, and never answered by a look at the wrong memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paramgraph_kit.capture import pair
from paramgraph_kit.driver.tensors import not_carried
from paramgraph_kit.launch import launcher as launcher_module
from tests.integration.launch_bench import DEVICE, codes, host, launcher_of, launches, moved, variants

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")


def two_ways(x: Tensor, y: Tensor, n: int) -> tuple[Tensor]:
    return (x * n + y,)


def _asked_about(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The tensors that a launcher looks at in Python, one by one, from now on."""
    asked: list[Tensor] = []

    def look(tensor: Tensor) -> str | None:
        asked.append(tensor)
        return plain(tensor)

    plain = not_carried
    monkeypatch.setattr(launcher_module, "not_carried", look)
    return asked


def test_calls_that_take_turns_between_graphs_look_at_no_tensor_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a partition with two graphs, one for each number
    launcher = launcher_of(two_ways)
    for n in (2, 3):
        launcher([moved(8), moved(8), n])
    asked = _asked_about(monkeypatch)

    # WHEN calls take turns THEN both are launched, and results are eager's
    for call in range(6):
        x, y, n = moved(8, seed=call), moved(8, seed=call + 1), 2 + call % 2
        (found,) = launcher([x, y, n])
        assert torch.equal(host(found), host(x) * n + host(y))
    assert launches(launcher) == 6
    # AND no tensor was asked about by itself
    assert asked == []

    # AND WHEN one lies otherwise THEN it is, and gets a graph of its own
    x = moved(9, seed=9)[1:]
    launcher([x, moved(8), 2])
    assert len(asked) >= 1
    assert len(variants(launcher)) == 3


def test_a_refused_partition_costs_no_look_at_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a partition that no graph may take, as it waits for the device
    def waits(x: Tensor, y: Tensor) -> tuple[Tensor]:
        return (x + y if float(x.sum()) > 1e9 else x - y,)

    launcher = launcher_of(waits)
    launcher([moved(8), moved(8)])
    assert codes(launcher) == ["capture-failed"]
    asked = _asked_about(monkeypatch)

    # WHEN it is called THEN it runs, and no tensor is asked about
    for call in range(4):
        x, y = moved(8, seed=call), moved(8, seed=call + 1)
        (found,) = launcher([x, y])
        assert torch.equal(host(found), host(x) - host(y))
    assert asked == []


def test_a_seed_that_comes_on_the_host_is_never_taken_for_the_device_s() -> None:
    # GIVEN a partition whose ungraphed code wants a number on the host, launched with it on the device
    def seeded(x: Tensor, seed: Tensor) -> tuple[Tensor]:
        return (x * seed,)

    launcher = launcher_of(seeded, host_seeds=(1,))
    for call in range(3):
        launcher([moved(8), torch.tensor(float(call)).to(DEVICE)])
    assert launches(launcher) == 2

    # WHEN it comes on the host, as well aligned as the device's memory
    memory = torch.zeros(1024)
    start = -memory.data_ptr() % 512 // 4
    memory[start] = 7.0
    x = moved(8, seed=1)
    (found,) = launcher([x, memory[start]])

    # THEN that call runs ungraphed, and the next with one on the device is launched
    assert torch.equal(host(found), host(x) * 7.0)
    assert launches(launcher) == 2
    (found,) = launcher([x, torch.tensor(3.0).to(DEVICE)])
    assert torch.equal(host(found), host(x) * 3.0)
    assert launches(launcher) == 3


def rows_of(seed: int) -> list[Tensor]:
    """Eight rows that start at 32 bytes' distance, so at four kinds of alignment."""
    return list(moved(64, seed=seed).view(8, 8))


def test_kernels_of_inductors_have_one_graph_for_all_addresses_that_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a partition whose kernels are all compiled for addresses that 16 divides
    monkeypatch.setattr(pair, "_GENERATED", ("",))
    launcher = launcher_of(two_ways)

    # WHEN it is called with one row after the other THEN one graph launches them all but the first call
    for seed in range(2):
        for x in rows_of(seed):
            (found,) = launcher([x, moved(8, seed=3), 2])
            assert torch.equal(host(found), host(x) * 2 + host(moved(8, seed=3)))
    assert len(variants(launcher)) == 1
    assert launches(launcher) == 15

    # AND WHEN one lies worse than that THEN it has a graph of its own
    x = moved(9, seed=9)[1:]
    for _ in range(2):
        (found,) = launcher([x, moved(8, seed=3), 2])
        assert torch.equal(host(found), host(x) * 2 + host(moved(8, seed=3)))
    assert len(variants(launcher)) == 2
    assert launches(launcher) == 16


def test_kernels_of_a_library_have_a_graph_for_each_alignment() -> None:
    # GIVEN a partition with kernels that may have been chosen by where their inputs lie
    launcher = launcher_of(two_ways)
    # WHEN it is called with one row after the other
    for seed in range(2):
        for x in rows_of(seed):
            (found,) = launcher([x, moved(8, seed=3), 2])
            assert torch.equal(host(found), host(x) * 2 + host(moved(8, seed=3)))
    # THEN each kind of alignment has its own
    assert len(variants(launcher)) == 4


def test_a_library_that_comes_later_takes_its_partition_s_graphs_back(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a partition whose kernels asked for 16, and which has another kind of kernel for another number
    launcher = launcher_of(two_ways)
    with monkeypatch.context() as patch:
        patch.setattr(pair, "_GENERATED", ("",))
        for x in rows_of(0):
            launcher([x, moved(8), 2])
    assert len(variants(launcher)) == 1

    # WHEN the two take turns THEN results are right, and graphs are told apart by all that may count from then on
    for seed in range(4):
        for n in (3, 2):
            for x in rows_of(seed):
                (found,) = launcher([x, moved(8, seed=3), n])
                assert torch.equal(host(found), host(x) * n + host(moved(8, seed=3)))
    assert len(variants(launcher)) == 8
    assert launcher.aligned == pair.ALIGNMENT
