"""Calls that are wrong in two ways, in a capture: what a card says first [H200, torch 2.11]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from paramgraph_kit.driver.sim.libraries import forget
from tests.unit.test_sim_capture import captured

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")

Tensor = torch.Tensor
SIZES = r"The size of tensor a \(2\) must match the size of tensor b \(3\)"
RESULT = r"output with shape \[2\] doesn't match the broadcast shape \[3, 2\]"
TWO = "at least two devices"
PAGEABLE = "Cannot copy between CPU and CUDA tensors"
INDICES = "tensors used as indices must be long, int, byte or bool tensors"
MASK = r"The shape of the mask \[3\] at index 0 does not match"

# x is two ones on the device, h three of the host.
REFUSED: dict[str, tuple[Callable[[Tensor, Tensor], Any], type[Exception], str]] = {
    "a sum of other sizes": (lambda x, h: x + h, RuntimeError, SIZES),
    "into one of other sizes": (lambda x, h: x.mul_(h.long()), RuntimeError, SIZES),
    "into one that is smaller": (lambda x, h: x.sub_(h[:, None].expand(3, 2)), RuntimeError, RESULT),
    "a choice of other sizes": (lambda x, h: torch.where(x > 0, h, x), RuntimeError, SIZES),
    "a comparison": (lambda x, h: x >= h, RuntimeError, SIZES),
    "a copy of other sizes": (lambda x, h: x.copy_(h), RuntimeError, SIZES),
    "a sum of the same sizes": (lambda x, h: x + h[:2], RuntimeError, TWO),
    "a copy of the same size": (lambda x, h: x.copy_(h[:2]), RuntimeError, PAGEABLE),
    "a copy that fits": (lambda x, h: x.copy_(h[:1]), RuntimeError, PAGEABLE),
    "floats for places": (lambda x, h: x[h], IndexError, INDICES),
    "floats for places to write": (lambda x, h: x.index_put_((h,), x), IndexError, INDICES),
    "a mask of the host": (lambda x, h: x[h > 0], IndexError, MASK),
    "places and values of the host": (lambda x, h: x.index_put_((h.long(),), h), RuntimeError, PAGEABLE),
    "values of the host": (lambda x, h: x.index_put_((x.long() - 1,), h[:2]), RuntimeError, TWO),
    "too many values of the host": (lambda x, h: x.index_put_((x.long(),), h), RuntimeError, "shape mismatch"),
    "matrices of two types": (lambda x, h: x[None] @ x.long()[:, None], RuntimeError, "float != long int"),
    "whole and floating": (lambda x, h: x.long()[None] @ x[:, None], RuntimeError, "long int != float"),
    "dropping whole numbers": (lambda x, h: F.dropout(x.long(), 0.5), NotImplementedError, "fused_dropout.*'Long'"),
    "dropping flags": (lambda x, h: F.dropout(x > 0, 0.5), NotImplementedError, "fused_dropout.*'Bool'"),
    "a comparison as a whole": (lambda x, h: torch.equal(x, h), RuntimeError, "other is on cpu"),
    "no weight of a convolution": (
        lambda x, h: F.conv1d(x[None, None], h[None].double()),
        RuntimeError,
        "at least three",
    ),
    "a weight of another type": (
        lambda x, h: F.conv1d(x[None, None], h[None, None, :1].double()),
        RuntimeError,
        r"\(torch.cuda.FloatTensor\) and weight type \(torch.DoubleTensor\)",
    ),
    "floats to embed": (lambda x, h: F.embedding(h, x[:, None]), RuntimeError, "Long, Int; but got torch.FloatTensor"),
    "floats of the device": (lambda x, h: F.embedding(x, x[:, None]), RuntimeError, "got torch.cuda.FloatTensor"),
    "a vector of rows": (lambda x, h: F.embedding(h.long(), x), RuntimeError, "'weight' must be 2-D"),
    "a condition that is none": (
        lambda x, h: torch.where(x, h[:2], x),
        RuntimeError,
        "condition to be a boolean tensor",
    ),
    "another type to go to": (lambda x, h: x.lerp(h[:2].double(), 0.5), RuntimeError, "expected dtype float for"),
    "into whole numbers": (lambda x, h: x.long().add_(h[:1]), RuntimeError, "result type Float can't be cast"),
    "several numbers for a mask": (lambda x, h: x.masked_fill(h > 0, h), RuntimeError, "The size of tensor a"),
    "negative padding": (
        lambda x, h: F.conv1d(x[None, None], x[None, None], padding=-1),
        RuntimeError,
        "negative padding",
    ),
    "groups that do not divide": (
        lambda x, h: F.conv1d(x[None, :, None], x.new_ones(3, 1, 1), groups=2),
        RuntimeError,
        "Given groups=2, expected weight to be divisible by 2",
    ),
    "an order of another size": (
        lambda x, h: torch.searchsorted(x, x, sorter=x[:1].long()),
        RuntimeError,
        "boundary and sorter must have the same size",
    ),
    "a strided size below zero": (
        lambda x, h: torch.empty_strided((2, -1), (1, 1), device=x.device),
        RuntimeError,
        r"negative dimension -1: \[2, -1\]",
    ),
    "set where it is beyond": (
        lambda x, h: torch.zeros_like(x).set_(x.untyped_storage(), 1, (2,), (1,)),
        RuntimeError,
        "storage offset 1, and itemsize 4 requiring a storage size of 12 are out of bounds for storage of size 8",
    ),
    "rows of the host": (lambda x, h: F.embedding(h.long(), x[:, None]), RuntimeError, "index is on cpu"),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_card_looks_at_this_first(name: str, sim: torch.device, cuda: Any) -> None:
    # GIVEN a call that is wrong, on a thread without a handle
    call, kind, words = REFUSED[name]
    x, h = torch.ones(2, device=sim), torch.ones(3)
    forget()
    # WHEN it is captured THEN that is what it raises, and the capture is not spoiled
    with pytest.raises(kind, match=words):
        captured(cuda, lambda: (x.add_(0), call(x, h)))


RIGHT: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "a number of the host": lambda x, h: x + h[0],
    "no places": lambda x, h: x.index_put_((h[:0].long(),), x[:0]),
    "nothing dropped": lambda x, h: torch.native_dropout(x.long(), 0.5, False),
    "no whole numbers": lambda x, h: torch.native_dropout(x[:0].long(), 0.5, True),
    "the same vector": lambda x, h: torch.equal(x, x),
    "places of 32 bits": lambda x, h: x[x.int() - 1],
}


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_what_is_right_is_captured(name: str, sim: torch.device, cuda: Any) -> None:
    # GIVEN their neighbours WHEN they are captured THEN nothing is raised
    x, h = torch.ones(2, device=sim), torch.ones(3)
    captured(cuda, lambda: (x.add_(0), RIGHT[name](x, h)))


def test_an_event_takes_flags(cuda: Any) -> None:
    # GIVEN what is no flag WHEN an event is made with it THEN TypeError, as torch's parser raises
    for given in ((5.5,), (True, "y"), (False, False, None)):
        with pytest.raises(TypeError):
            cuda.Event(*given)
    # and numbers are flags
    assert cuda.Event(1, 0).enable_timing


def test_a_largest_byte_is_waited_for(sim: torch.device, cuda: Any) -> None:
    # GIVEN bytes, none of which is below zero WHEN they are counted in a capture THEN the host waits for the largest
    counted = torch.ones(2, device=sim, dtype=torch.uint8)
    with pytest.raises(torch.AcceleratorError, match="previous error during capture"):
        captured(cuda, lambda: torch.bincount(counted))


def test_events_of_other_kinds_come_from_outside_a_capture(sim: torch.device, cuda: Any) -> None:
    # GIVEN an event for other processes, recorded ahead WHEN a capture waits for it THEN that is not permitted at all
    event = cuda.Event(interprocess=True)
    event.record()
    with pytest.raises(torch.AcceleratorError) as caught:
        captured(cuda, lambda: cuda.current_stream().wait_event(event))
    assert "not permitted when stream is capturing" in str(caught.value.__context__)
    # GIVEN a stream of torch.Stream's WHEN it waits for an event of torch.cuda's in a capture THEN it does not join
    x, stream = torch.ones(2, device=sim), torch.Stream(sim)
    cuda.set_stream(cuda.default_stream())

    def forked() -> torch.Tensor:
        stream.wait_event(cuda.current_stream().record_event())
        with stream:
            y = x * 2
        cuda.current_stream().wait_event(stream.record_event())
        return y

    with pytest.raises(torch.AcceleratorError):
        captured(cuda, forked)
    cuda.set_stream(cuda.default_stream())


def test_a_backward_of_before_is_refused_for_its_stream_first(sim: torch.device, cuda: Any) -> None:
    # GIVEN a loss of before the capture, whose input has changed WHEN a capture goes back from it THEN both go wrong
    x = torch.ones(2, device=sim, requires_grad=True)
    loss = (x * x).sum()
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(torch.AcceleratorError, match="previous error during capture"):
        captured(cuda, lambda: torch.autograd.grad(loss, x))
    cuda.set_stream(cuda.default_stream())
