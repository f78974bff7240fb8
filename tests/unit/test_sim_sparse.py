"""Sparse tensors of the simulated device: the CPU's numbers, and in captures what CUDA does of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch

from paramgraph_kit.driver.select import device, twin

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU"),
    pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The CUDA Graph is empty"),
]

Tensor = torch.Tensor
INDICES = torch.tensor([[0, 1, 1, 3], [2, 0, 0, 4]])
X = torch.arange(15.0).view(5, 3)


@pytest.fixture(autouse=True)
def _unchecked() -> Iterator[None]:
    """Sparse tensors are made unchecked, which torch warns of where nobody has said so."""
    checks: Any = torch.sparse.check_sparse_tensor_invariants
    with checks(False):
        yield


@cache
def indices(kind: str) -> Tensor:
    """Where the numbers are, on a device."""
    return INDICES.to(kind)


def coo(x: Tensor) -> Tensor:
    """A matrix with two numbers in one place, where ``x`` is."""
    return torch.sparse_coo_tensor(indices(x.device.type), x.flatten()[:4] + 1, (4, 5))


def dense(x: Tensor) -> Tensor:
    """The same in full."""
    return coo(x).to_dense()


FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "coalesced": lambda x: coo(x).coalesce(),
    "of a dense one": lambda x: dense(x).to_sparse(),
    "as CSR": lambda x: dense(x).to_sparse_csr(),
    "CSR of COO": lambda x: coo(x).to_sparse_csr(),
    "as CSC": lambda x: dense(x).to_sparse_csc(),
    "COO of CSR": lambda x: dense(x).to_sparse_csr().to_sparse(),
    "a product": lambda x: coo(x) @ x,
    "a product and a sum": lambda x: torch.sparse.addmm(x[:4] * 0 + 1, coo(x), x, beta=0.5, alpha=2.0),
    "of two": lambda x: torch.sparse.mm(coo(x), coo(x).t()),
    "CSR times a matrix": lambda x: dense(x).to_sparse_csr() @ x,
    "CSR times a vector": lambda x: dense(x).to_sparse_csr() @ x[:, 0],
    "sampled": lambda x: torch.sparse.sampled_addmm(dense(x).to_sparse_csr(), x[:4], x.t()),
    "a sum": lambda x: coo(x) + coo(x),
    "a sum with a dense one": lambda x: dense(x) + coo(x),
    "a difference": lambda x: coo(x) - coo(x) * 0.5,
    "by a number in place": lambda x: coo(x).mul_(2).div_(4),
    "by another": lambda x: coo(x).coalesce() * dense(x).to_sparse(),
    "by a dense one": lambda x: coo(x) * dense(x),
    "CSR by a number": lambda x: dense(x).to_sparse_csr() * 2,
    "into itself": lambda x: torch.mul(y := coo(x), 3, out=y),
    "another's in place": lambda x: coo(x).sub_(coo(x), alpha=3),
    "of its values": lambda x: (-coo(x)).relu().sqrt(),
    "turned": lambda x: coo(x).t(),
    "a total": lambda x: torch.sparse.sum(coo(x)),
    "totals of rows": lambda x: torch.sparse.sum(coo(x), 1),
    "a softmax": lambda x: torch.sparse.softmax(coo(x).coalesce(), 1),
    "a mask": lambda x: dense(x).sparse_mask(coo(x).coalesce()),
    "in one": lambda x: torch.cat([coo(x), coo(x)]),
    "a row": lambda x: coo(x)[1],
    "a norm": lambda x: coo(x).norm(),
    "of another type": lambda x: coo(x).double(),
    "moved": lambda x: coo(x).cpu().coalesce(),
    "copied": lambda x: coo(x).copy_(coo(x) * 2),
    "hybrid": lambda x: torch.sparse_coo_tensor(INDICES[:1].to(x.device), x[:4], (4, 3)),
}


@pytest.mark.parametrize("form", sorted(FORMS))
def test_sparse_numbers_are_the_cpus(form: str) -> None:
    # GIVEN a program WHEN it runs on the simulated device THEN layout and numbers are those of the CPU
    device()
    mine, expected = FORMS[form](X.to(device())), FORMS[form](X)
    assert (mine.layout, mine.shape, mine.dtype) == (expected.layout, expected.shape, expected.dtype)
    assert expected.layout is not torch.sparse_coo or mine.is_coalesced() == expected.is_coalesced()
    kept = [each if each.layout is torch.strided else each.to_dense() for each in (mine, expected)]
    assert torch.allclose(kept[0].cpu(), kept[1])


def graphed(step: Callable[[Tensor], Tensor], cuda: Any) -> Tensor:
    """What a replay gives for other numbers than those of the capture."""
    x, graph = X.to(device()), cuda.CUDAGraph()
    step(x)
    with cuda.graph(graph):
        found = step(x)
    x.mul_(2)
    graph.replay()
    return found.cpu()


def test_replays_follow_the_numbers_of_a_sparse_tensor(cuda: Any) -> None:
    # GIVEN matrices that are coalesced, whose values are written in place WHEN replays read them
    matrix, rows = (make(X.to(device())).detach() for make in (FORMS["coalesced"], FORMS["as CSR"]))
    for step in (
        lambda x: matrix @ x,
        lambda x: rows @ x,
        lambda x: matrix.to_dense() @ x,
        lambda x: (matrix * matrix.to_dense()) @ x,
        lambda x: matrix.to_dense().sparse_mask(matrix) @ x,
    ):
        matrix.values().fill_(1)
        rows.values().fill_(1)
        found = graphed(step, cuda)
        # THEN they are those of now
        assert torch.equal(found, (matrix.to_dense().cpu() != 0).float() @ (X * 2))
    # AND so are those of one that is made inside, and of gradients
    assert torch.equal(graphed(dense, cuda), dense(X * 2))


@pytest.mark.parametrize(
    "kind",
    [
        lambda parameters: torch.optim.SparseAdam(parameters, lr=0.1),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
    ],
)
def test_sparse_gradients_train_as_on_the_cpu(kind: Any, cuda: Any) -> None:
    # GIVEN an embedding with sparse gradients and an optimizer for those
    def train(place: Any) -> Tensor:
        torch.manual_seed(1)
        table = torch.nn.Embedding(5, 2, sparse=True).to(place)
        bag = torch.nn.EmbeddingBag(5, 2, sparse=True, mode="mean").to(place)
        parameters = [*table.parameters(), *bag.parameters()]
        optimizer: Any = kind(parameters)
        index = torch.tensor([[1, 3, 1]], device=place)
        for _ in range(3):
            optimizer.zero_grad()
            torch.autograd.backward(table(index).pow(2).sum() + bag(index).pow(2).sum())
            optimizer.step()
        return torch.cat([table.weight, bag.weight]).detach().cpu()

    # WHEN it trains THEN weights are the CPU's
    assert torch.allclose(train(device()), train("cpu"))


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (lambda x: coo(x).coalesce(), "transform: failed to synchronize"),
        (lambda x: x.to_sparse(), "not permitted when stream is capturing"),
        (lambda x: x.to_sparse_csr(), "not permitted when stream is capturing"),
    ],
)
def test_what_waits_for_the_number_of_values_is_no_part_of_a_capture(step: Any, said: str, cuda: Any) -> None:
    # GIVEN an operation whose result has as many values as it finds WHEN a capture begins one THEN it fails as on CUDA
    x, graph = X.to(device()), cuda.CUDAGraph()
    with pytest.raises(RuntimeError) as caught, cuda.graph(graph):
        step(x)
    assert any(pytest.RaisesExc(match=said).matches(each) for each in (caught.value, caught.value.__context__) if each)
    cuda.recover()


def test_the_first_product_in_a_capture_has_no_handle(cuda: Any) -> None:
    # GIVEN a thread that has called no product WHEN the first one is in a capture THEN cuSPARSE can make no handle
    from paramgraph_kit.driver.sim.libraries import forget

    matrix, x = FORMS["as CSR"](X.to(device())), X.to(device())
    forget()
    with pytest.raises(torch.AcceleratorError) as caught, cuda.graph(twin().CUDAGraph()):
        matrix @ x
    assert "initialization error when calling `cusparseCreate(handle)`" in str(caught.value.__context__)
    cuda.recover()


def test_what_is_not_simulated_of_sparse_tensors_says_so(cuda: Any) -> None:
    # GIVEN results whose number of values a capture does not know, and an operation that is not there
    x, graph = X.to(device()), cuda.CUDAGraph()
    matrix, other = coo(x).coalesce(), coo(x * 2).coalesce()
    # WHEN they run THEN the simulator says that it does not know
    with (
        cuda.graph(graph),
        pytest.raises(NotImplementedError, match="has no sparse mul in a capture"),
    ):
        matrix * other
    with pytest.raises(
        NotImplementedError, match="has no floor_divide of sparse tensors: make them dense, or use a GPU"
    ):
        matrix // 2
