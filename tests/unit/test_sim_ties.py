"""Equal numbers are left by sorts and topk in CUDA's order: indices have to be those that a GPU gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.driver.sim import ties

DEVICE = pgk.device()
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")


def test_what_an_h100_gave() -> None:
    # GIVEN two largest numbers that are equal WHEN they are found THEN their places are as an H100 had them
    x = torch.tensor([1.0, 0, 0, 0, 0, 1, 0, 0], device=DEVICE)
    assert x.topk(2).indices.tolist() == [5, 0]


def test_a_capture_gives_what_an_eager_call_gives(cuda: Any) -> None:
    # GIVEN equal numbers, sorted in a capture, into given tensors too
    x, graph = torch.zeros(3, 5, device=DEVICE), cuda.CUDAGraph()
    with cuda.graph(graph):
        values, places = x.sort(descending=True)
        out = torch.sort(x, out=(torch.empty_like(x), torch.empty(3, 5, dtype=torch.long, device=DEVICE)))
        best = x.topk(3, dim=1)
    # WHEN it is replayed THEN they are in the network's order, as eagerly
    graph.replay()
    assert values.tolist() == x.tolist()
    assert places.tolist() == x.argsort(descending=True).tolist() == out[1].tolist()
    assert places[0].tolist() != [0, 1, 2, 3, 4]
    assert best.indices.tolist() == x.topk(3, dim=1).indices.tolist()


def test_who_asks_for_a_stable_sort_gets_it() -> None:
    # GIVEN equal numbers, few and many WHEN they are sorted THEN the order is kept, of many always
    few, many = torch.zeros(5, device=DEVICE), torch.zeros(ties.NETWORK + 1, device=DEVICE)
    assert few.argsort(stable=True).tolist() == list(range(5))
    assert many.argsort().tolist() == list(range(ties.NETWORK + 1))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("dim", [0, 1])
def test_results_are_right_whatever_the_order(seed: int, dim: int) -> None:
    # GIVEN numbers of which many are equal, and some are none
    torch.manual_seed(seed)
    x = torch.randint(0, 3, (6, 7), device="cpu").float()
    x[0, :2] = torch.nan
    there = x.to(DEVICE)
    for descending in (False, True):
        # WHEN they are sorted THEN the values are the CPU's, and are where the indices say
        values, places = there.sort(dim=dim, descending=descending)
        torch.testing.assert_close(values.cpu(), x.sort(dim=dim, descending=descending).values, equal_nan=True)
        torch.testing.assert_close(x.gather(dim, places.cpu()), values.cpu(), equal_nan=True)
        # and so are the first of them, in order or not
        values, places = there.topk(4, dim, largest=descending)
        torch.testing.assert_close(values.cpu(), x.topk(4, dim, largest=descending).values, equal_nan=True)
        torch.testing.assert_close(x.gather(dim, places.cpu()), values.cpu(), equal_nan=True)
        loose = there.topk(4, dim, largest=descending, sorted=False)
        torch.testing.assert_close(loose.values.sort(dim).values, values.sort(dim).values, equal_nan=True)
        torch.testing.assert_close(x.gather(dim, loose.indices.cpu()), loose.values.cpu(), equal_nan=True)


def test_those_beyond_the_last_come_first_where_nobody_sorts() -> None:
    # GIVEN a largest number behind several that are equal WHEN three are asked for unsorted THEN it is the first
    x = torch.tensor([1.0, 1, 1, 5], device=DEVICE)
    assert x.topk(3, sorted=False).indices.tolist() == [3, 0, 1]


def test_one_number_by_its_rank_is_found_where_it_is_first() -> None:
    # GIVEN rows in which a number by its rank is there twice, or is none WHEN asked for THEN the first place is told
    x = torch.tensor([[3.0, 1, 2], [0, 5, 5], [torch.nan, 1, torch.nan]], device=DEVICE)
    assert x.kthvalue(2).indices.tolist() == [2, 1, 0]
    assert x.median(1).indices.tolist() == [2, 1, 0]
    assert x.nanmedian(dim=1, keepdim=True).indices.tolist() == [[2], [1], [1]]
    values, places = x.T.median(0)
    assert places.tolist() == [2, 1, 0]
    assert values[:2].tolist() == [2.0, 5.0]


def test_what_is_there_most_often_is_found_beside_nan(cuda: Any) -> None:
    # GIVEN rows of which some have NaN, which equals nothing, as an H200 was given them
    nan, inf = torch.nan, torch.inf
    x = torch.tensor([[nan, 1, 2, 1], [nan, 2, nan, 2], [inf, nan, -inf, inf], [3, 1, 3, 1]], device=DEVICE)
    # WHEN asked what is there most often, eagerly and in a graph THEN it is no NaN, and its last place is told
    with cuda.graph(graph := cuda.CUDAGraph()):
        captured = x.T.mode(0, keepdim=True)
    graph.replay()
    assert x.mode(1).values.tolist() == captured.values[0].tolist() == [1.0, 2.0, inf, 1.0]
    assert x.mode(1).indices.tolist() == captured.indices[0].tolist() == [3, 3, 3, 3]
    # and where all are NaN, that is
    alone = torch.full((4,), nan, device=DEVICE).mode()
    assert alone.values.isnan()
    assert alone.indices.item() == 0


def test_a_copy_within_a_tensor_reads_what_was_there(cuda: Any) -> None:
    # GIVEN a history that moves on by one place WHEN copied within itself THEN nothing is read that was just written
    x = torch.arange(6.0, device=DEVICE).view(2, 3)
    x[:, 1:] = x[:, :-1]
    assert x.tolist() == [[0.0, 0.0, 1.0], [3.0, 3.0, 4.0]]
    # and in a graph neither
    with cuda.graph(graph := cuda.CUDAGraph()):
        x[:, 1:] = x[:, :-1]
    graph.replay()
    assert x.tolist() == [[0.0, 0.0, 0.0], [3.0, 3.0, 3.0]]
