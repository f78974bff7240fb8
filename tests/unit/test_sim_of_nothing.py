"""Operations on tensors of no numbers: which of them wait all the same, or ask for a library's handle [H200]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from paramgraph_kit.driver.sim.errors import PAGEABLE_COPY
from paramgraph_kit.driver.sim.libraries import forget
from tests.unit.test_sim_capture import captured

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU"),
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty"),
]
Run = Callable[[Callable[..., torch.Tensor]], Any]
WAITS, UNHANDLED = "operation not permitted when stream is capturing", "INTERNAL_ERROR, when calling `cusolverDnCreate"


def whole(n: Callable[..., torch.Tensor]) -> torch.Tensor:
    return n(0, dtype=torch.long)


def mask(n: Callable[..., torch.Tensor]) -> torch.Tensor:
    return n(0, dtype=torch.bool)


FREE: dict[str, Run] = {  # given what makes ones on the device
    "unique": lambda n: torch.unique(whole(n)),
    "unique of rows": lambda n: torch.unique(n(0, 2)),
    "unique and what it counts": lambda n: torch.unique(n(0), return_inverse=True, return_counts=True),
    "unique of flags": lambda n: torch.unique(mask(n)),
    "unique along": lambda n: torch.unique(n(0, 2), dim=0),
    "unique in a row": lambda n: torch.unique_consecutive(n(0), return_inverse=True),
    "unique in a row along": lambda n: torch.unique_consecutive(n(0, 2), dim=0),
    "bincount": lambda n: whole(n).bincount(minlength=3),
    "bincount with weights": lambda n: whole(n).bincount(n(0)),
    "histc": lambda n: torch.histc(n(0), 3),
    "repeat_interleave": lambda n: torch.repeat_interleave(whole(n)),
    "repeats of each": lambda n: n(0).repeat_interleave(whole(n)),
    "normal": lambda n: torch.normal(n(0), n(0)),
    "normal of a mean": lambda n: torch.normal(0.0, n(0)),
    "eigh": lambda n: torch.linalg.eigh(n(0, 0)),
    "eigh of no matrices": lambda n: torch.linalg.eigh(n(0, 2, 2)),
    "svd": lambda n: torch.linalg.svd(n(0, 2, 2)),
    "pinv": lambda n: torch.linalg.pinv(n(0, 0)),
    "a norm of singular values": lambda n: torch.linalg.matrix_norm(n(0, 2, 2), 2),
    "ldl_factor_ex": lambda n: torch.linalg.ldl_factor_ex(n(0, 0)),
    "a product": lambda n: n(0, 2) @ n(2, 3),
    "a product along nothing": lambda n: n(2, 0) @ n(0, 2),
}
REFUSED: dict[str, tuple[Run, str]] = {  # by a thread that has no handle yet
    "nonzero": (lambda n: n(0).nonzero(), WAITS),
    "a mask": (lambda n: n(0)[mask(n)], WAITS),
    "a mask that is written": (lambda n: n(0).index_put_((mask(n),), n(0)), WAITS),
    "masked_select": (lambda n: torch.masked_select(n(0), mask(n)), WAITS),
    "a flag": (lambda n: bool(n(0).all()), WAITS),
    "eig": (lambda n: torch.linalg.eig(n(0, 0)), WAITS),
    "eigvals": (lambda n: torch.linalg.eigvals(n(0, 0)), WAITS),
    "ldl_factor": (lambda n: torch.linalg.ldl_factor(n(0, 0)), WAITS),
    "cholesky": (lambda n: torch.linalg.cholesky(n(0, 0)), WAITS),
    "median": (lambda n: n(0).median(), PAGEABLE_COPY[:40]),
    "qr": (lambda n: torch.linalg.qr(n(0, 2)), UNHANDLED),
    "qr of no matrices": (lambda n: torch.linalg.qr(n(0, 2, 2)), UNHANDLED),
    "lstsq": (lambda n: torch.linalg.lstsq(n(0, 0), n(0, 0)), UNHANDLED),
    "dot": (lambda n: n(0) @ n(0), "CUBLAS_STATUS_NOT_INITIALIZED"),
    "unique along what is left": (lambda n: torch.unique(n(0, 2), dim=1), "There are 0 sized dimensions"),
    "zero points": (
        lambda n: torch.fake_quantize_per_channel_affine(n(0, 2), n(0), n(0, dtype=torch.int32), 0, 0, 255),
        r"min\(\): Expected reduction dim to be specified",
    ),
}


def _ones(sim: torch.device) -> Callable[..., torch.Tensor]:
    return lambda *size, **options: torch.ones(size, device=sim, **options)


@pytest.mark.parametrize("name", FREE)
def test_of_no_numbers_there_is_nothing_to_wait_for(name: str, sim: torch.device, cuda: Any) -> None:
    # GIVEN a thread without handles, and tensors of no numbers WHEN it captures that THEN nothing is refused
    expected = FREE[name](torch.ones)
    forget()
    graph, got = captured(cuda, lambda: FREE[name](_ones(sim)))
    graph.replay()
    # AND THEN what is given has the sizes that the CPU's has
    for one, other in zip(*([e] if isinstance(e, torch.Tensor) else e for e in (got, expected)), strict=True):
        assert one.shape == other.shape


@pytest.mark.parametrize("name", REFUSED)
def test_some_wait_or_ask_for_a_handle_all_the_same(name: str, sim: torch.device, cuda: Any) -> None:
    # GIVEN the same WHEN it captures what asks even then THEN that is refused, as of some numbers
    run, words = REFUSED[name]
    forget()
    told: list[RuntimeError] = []

    def body() -> None:
        try:
            run(_ones(sim))
        except RuntimeError as error:
            told.append(error)
            raise

    with pytest.raises(RuntimeError):
        captured(cuda, body)
    cuda.recover()
    with pytest.raises(RuntimeError, match=words):
        raise told[0]


@pytest.mark.parametrize("name", ["unique", "unique along", "bincount", "histc", "repeat_interleave", "normal"])
def test_of_some_numbers_they_wait(name: str, sim: torch.device, cuda: Any) -> None:
    # GIVEN the same with some numbers WHEN captured THEN it is refused
    def some(*size: int, **options: Any) -> torch.Tensor:
        return torch.ones([each or 4 for each in size], device=sim, **options)

    with pytest.raises(RuntimeError):
        captured(cuda, lambda: FREE[name](some))
    cuda.recover()
