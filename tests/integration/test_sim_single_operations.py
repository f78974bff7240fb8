"""The simulator against an H200 in programs of one operation each."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from paramgraph_kit.driver.sim.machine import SWAP
from tests.integration.single_operations import (
    LEFT_OUT,
    OTHERWISE,
    SINGLE,
    have_fresh_processes,
    on_simulator,
    seen_and_recorded,
)

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")
have_fresh_processes()
# An older torch gives no storage other memory, and forks CUDA's random numbers where no device is named.
UNMOVED = {each for each in SINGLE if "stor_" in each and "resize_(" in SINGLE[each]["program"]}
OLDER = set() if hasattr(torch.UntypedStorage, SWAP) else {*UNMOVED, "g.rng_fork"}
# Torch 2.15 fills a number in on the device, names the product in an error, raises a narrower one, compares streams
# with None, and has no torch.cholesky.
FILLED = {"a.v_idx_put_scalar", "a.v_set_number_place", "e.overlap_index_put_expand", "kd.init_dirac"}
WORDED = {"a.recover_user_error", "c.fft_bf16", "e.bool_sub", "e.linear_shape_bad_own", "e.mm_shape_bad2_own"}
NEWER = {*FILLED, *WORDED, "d.ag_gradcheck_own", "g.stream_eq", "kd.cholesky_old"}
NOT_THIS = OLDER | (NEWER if torch.__version__ >= "2.15" else set())


@pytest.fixture(scope="module", autouse=True)
def _collect_what_is_new_only() -> Iterator[None]:
    """Programs that look at memory run without garbage: what was there before them is searched for it once."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("name", sorted(set(SINGLE) - set(LEFT_OUT) - set(OTHERWISE) - NOT_THIS))
def test_the_simulator_does_what_an_h200_did(name: str, cuda: Any) -> None:
    # GIVEN a program whose outcome on an H200 is known WHEN it runs on the simulator
    seen, recorded = seen_and_recorded(name, cuda)
    # THEN chain of errors, outcome and output are the same
    assert seen == recorded


@pytest.mark.parametrize("name", sorted({*LEFT_OUT, *(OLDER & UNMOVED)}))
def test_what_is_not_simulated_says_so(name: str, cuda: Any) -> None:
    # GIVEN a program that needs what the simulator has not WHEN it runs THEN it never passes for one that works
    seen, _ = seen_and_recorded(name, cuda)
    assert seen["outcome"] == "fails"
    kind, text = seen["chain"][-1]
    assert kind == "NotImplementedError" or (kind == "AttributeError" and text.startswith("the simulated device"))


def test_they_are_many() -> None:
    # GIVEN the file THEN it holds what it is said to hold
    assert len(SINGLE) > 300
    assert set(LEFT_OUT) | set(OTHERWISE) < set(SINGLE)
    assert on_simulator("device='cuda'") == "device='sim'"
