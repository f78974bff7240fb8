"""A tensor that no root of a step leads to: which one is told, by whom it is held, and to which byte it reaches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.step import capture
from paramgraph_kit.step.capture import _covers, _held_by, _named
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Reason
from tests.integration.launch_bench import DEVICE
from tests.unit.test_exact_steps import ones

HANDED = "give state= what holds it, or hand it over as an argument"


def told(address: int | None) -> tuple[str, str]:
    refusal = RefusedError(Reason("unexplained-word", "as it was"))
    refusal.address = address
    reason = _named(refusal, DEVICE)
    return reason.code, reason.message


def test_of_tensors_on_an_address_the_smallest_is_told_with_what_holds_it() -> None:
    # GIVEN a tensor that a list holds, one that looks at a part of it, and addresses in both, in one and in none
    whole = [ones(6).double()]
    part = {"part": whole[0][:2]}
    begins = whole[0].data_ptr()
    # WHEN refused for these THEN the smallest is told, with its type and its holder
    text = "a kernel reads a tensor of [2] (torch.float64) that neither the arguments nor state= lead to (held by dict)"
    assert told(begins + 47) == ("hidden-tensor", f"{text}: {HANDED}")
    del part
    assert told(begins)[1].startswith("a kernel reads a tensor of [6] (torch.float64) that neither ")
    nobody_s = "a kernel reads memory of the device that neither the arguments nor state= lead to"
    assert told(8) == ("hidden-tensor", f"{nobody_s}: {HANDED}")
    # AND where no address is known all stays as it was said
    assert told(None) == ("unexplained-word", "as it was")


def test_three_kinds_of_holders_are_told_and_nothing_where_nobody_holds_it() -> None:
    # GIVEN a tensor in containers of four kinds, and one that nobody holds WHEN told THEN three of them are named
    x = ones(2)
    held = [x], {"x": x}, (x,), {x}
    assert _held_by(x) == " (held by dict, list, set)"
    assert len(held) == 4
    assert _held_by(ones(2)) == ""
    assert _held_by(None) == ""


def test_a_tensor_covers_the_bytes_of_its_storage_and_none_beside() -> None:
    # GIVEN a tensor of 24 bytes, a part of it, and one without memory WHEN asked THEN the storage counts to its end
    x = ones(6)
    begins = x.data_ptr()
    for each in (x, x[2:4]):
        assert [_covers(each, begins + n) for n in (-1, 0, 23, 24)] == [False, True, True, False]
    assert not _covers(torch.eye(2).to_sparse(), begins)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_each_capture_has_to_make_what_the_call_made(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a step of whose two captures none, the first or the second leaves something else than the call
    numbered, calls = capture.numbered, []

    def otherwise(result: Any, held: Any) -> Any:
        tensors, order = numbered(result, held)
        calls.append(order)
        if len(calls) == which:
            order.plain.append("else")
        return tensors, order

    monkeypatch.setattr(capture, "numbered", otherwise)
    step = pgk.parameterize(lambda x: (x * 2, 3), state=(), verify="off")
    # WHEN called THEN it has a graph where both have left the same
    for _ in range(2):
        step(ones(4))
    assert len(calls) == 3
    assert [reason.code for reason in pgk.report(step).reasons] == (["unstable-capture"] if which else [])
