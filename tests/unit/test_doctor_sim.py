"""The doctor and the ledger on the simulator: real exceptions through real library frames, real allocator numbers."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
import torch

from paramgraph_kit.doctor import explain
from paramgraph_kit.driver.select import driver, twin
from paramgraph_kit.ledger import Ledger
from paramgraph_kit.trace import Failure

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")

DEVICE = driver().device
Body = Callable[[torch.Tensor], object]


@pytest.fixture(autouse=True)
def recovered() -> Iterator[None]:
    yield
    twin().recover()


def caught(body: Body) -> Failure:
    """The diagnosis of a body that fails under capture."""
    from paramgraph_kit.driver.sim import cuda_twin

    x = torch.randn(4, 4).to(DEVICE)
    with pytest.raises(Exception) as error:  # noqa: PT011 - which one is the doctor's business
        _capture(cuda_twin, body, x)
    return explain(error.value)


def _capture(cuda: object, body: Body, x: torch.Tensor) -> None:
    with cuda.graph(cuda.CUDAGraph()):  # type: ignore[attr-defined]
        body(x)


def branch(x: torch.Tensor) -> object:
    if x.isnan().any():
        return 1
    return 2


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        (lambda x: x.sum().item(), "sync-item", "x.sum().item()"),
        (lambda x: float(x.sum()), "sync-item", "float(x.sum())"),
        (branch, "data-dependent-branch", "if x.isnan().any():"),
        (lambda x: x.cpu(), "copy-to-cpu", "x.cpu()"),
        (lambda x: x.tolist(), "copy-to-cpu", "x.tolist()"),
        (lambda x: str(x), "print", "str(x)"),
        (lambda x: x.nonzero(), "dynamic-shape", "x.nonzero()"),
        (lambda x: x[x > 0], "dynamic-shape", "x[x > 0]"),
    ],
)
def test_simulated_failures_are_explained_at_the_line(body: Body, code: str, text: str) -> None:
    # GIVEN a body that a capture forbids WHEN it fails on the simulator and is explained
    failure = caught(body)
    # THEN class and line are those of the body, not of torch or of the simulator
    assert failure.code == code
    assert failure.frame is not None
    assert failure.frame.file == __file__
    assert text in failure.frame.text


def test_a_ledger_reads_the_simulated_allocator() -> None:
    # GIVEN the simulator, and nothing of earlier tests that could be freed meanwhile
    gc.collect()
    # WHEN a tensor of 8 MiB lives between two marks
    with Ledger(driver()) as ledger:
        x = torch.empty(2 << 20, dtype=torch.float32, device=DEVICE)
        held = ledger.mark("held")
        del x
        freed = ledger.mark("freed")
    # THEN the allocator's own numbers say so, and the envelope stays
    start = ledger.readings[0]
    assert held.allocated - start.allocated == 8 << 20
    assert freed.allocated == start.allocated
    assert freed.reserved == held.reserved >= held.allocated
    assert held.device >= held.reserved
