"""``set_`` onto storages of the simulated device: one that is too small grows, as on a card [H200, torch 2.11]."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paramgraph_kit.driver.sim.machine import SWAP

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU"),
    pytest.mark.skipif(not hasattr(torch.UntypedStorage, SWAP), reason="storages do not grow with this torch"),
]


@pytest.mark.parametrize("source", ["a storage", "a tensor"])
def test_a_storage_grows_for_who_is_set_beyond_its_end(source: str, sim: torch.device) -> None:
    # GIVEN a tensor, and a view of it
    x = torch.arange(6.0, device=sim)
    part, before, wide = x[2:4], x.data_ptr(), torch.empty(0, device=sim)
    # WHEN another one is set onto its storage, and far beyond
    given: Any = x.untyped_storage() if source == "a storage" else x
    wide.set_(given, 0, (100,), (1,))
    # THEN the storage has moved under all of them, with its numbers
    assert (wide.shape, x.untyped_storage().nbytes(), x.data_ptr() == before) == ((100,), 400, False)
    assert (wide.data_ptr(), part.data_ptr()) == (x.data_ptr(), x.data_ptr() + 8)
    assert (wide[:6].tolist(), part.tolist()) == ([0, 1, 2, 3, 4, 5], [2, 3])
    wide[:6].fill_(7.0)
    assert (x.tolist(), part.tolist()) == ([7] * 6, [7] * 2)


def test_it_grows_by_what_is_reached_and_no_more(sim: torch.device) -> None:
    # GIVEN a storage of 24 bytes WHEN rows are set at an offset THEN it ends behind the last of them
    x, other = torch.arange(6.0, device=sim), torch.empty(0, device=sim)
    storage = x.untyped_storage()
    other.set_(storage, 50, (2, 40), (40, 1))
    assert (storage.nbytes(), other.storage_offset()) == (520, 50)
    # WHEN what is set fits, is nothing, or is one number again and again THEN it stays
    other.set_(storage, 0, (2, 3), (3, 1))
    assert (other.tolist(), storage.nbytes()) == ([[0, 1, 2], [3, 4, 5]], 520)
    other.set_(storage, 5000, (0,), (1,))
    other.set_(storage, 0, (100_000, 2), (0, 1))
    assert storage.nbytes() == 520
    # WHEN its numbers are wider THEN it is counted in bytes
    torch.empty(0, dtype=torch.double, device=sim).set_(storage, 0, (100,), (1,))
    assert storage.nbytes() == 800


def test_who_reaches_beyond_a_storage_as_a_view_is_refused(sim: torch.device) -> None:
    # GIVEN a storage WHEN a view reaches beyond, strides are negative, or it is the host's THEN torch refuses
    x, other = torch.arange(6.0, device=sim), torch.empty(0, device=sim)
    with pytest.raises(RuntimeError, match="setStorage: sizes"):
        x.as_strided((1000,), (1,))
    with pytest.raises(RuntimeError, match="Storage size calculation overflowed"):
        other.set_(x.untyped_storage(), 0, (2,), (-1,))
    with pytest.raises(RuntimeError, match="invalid storage offset -1"):
        other.set_(x.untyped_storage(), -1, (1,), (1,))
    with pytest.raises(RuntimeError, match="Attempted to set the storage of a tensor on device"):
        other.set_(torch.ones(2).untyped_storage(), 0, (100,), (1,))
    # AND THEN nothing has changed
    assert (x.untyped_storage().nbytes(), x.tolist()) == (24, [0, 1, 2, 3, 4, 5])


def test_a_tensor_is_set_onto_nothing(sim: torch.device) -> None:
    # GIVEN a tensor WHEN it is set onto nothing THEN it has no numbers, and whoever shared its memory keeps it
    x = torch.arange(6.0, device=sim)
    part = x[2:4]
    torch.ops.aten.set_.default(x)
    assert (x.shape, x.device.type, part.tolist()) == ((0,), sim.type, [2, 3])


def test_a_graph_of_before_keeps_the_memory_of_before(sim: torch.device, cuda: Any) -> None:
    # GIVEN a graph that reads a tensor WHEN its storage grows behind the capture, and the tensor is filled
    x, wide, graph = torch.ones(6, device=sim), torch.empty(0, device=sim), cuda.CUDAGraph()
    with cuda.graph(graph):
        y = x * 2
    wide.set_(x.untyped_storage(), 0, (100,), (1,))
    x.fill_(5.0)
    # THEN a replay reads where it lay
    graph.replay()
    assert y.tolist() == [2] * 6
